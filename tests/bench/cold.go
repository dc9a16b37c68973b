package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const pageBytes = 4 * kib

// coldDepths are the numbers of readers, and of fio's requests in flight.
func coldDepths() []int { return []int{1, 2, coldReaders} }

// coldGoal is the goal for cold reads as a share of fio's read bandwidth; 0: no goal.
func coldGoal(size, readers int) float64 {
	goals := map[int]map[int]float64{
		64 * kib: {1: 0.70, 2: 0.80, 8: 0.80},
		mib:      {1: 0.80, 2: 0.95, 8: 0.95},
		4 * mib:  {1: 0.95, 2: 1, 8: 0.95},
		16 * mib: {8: 0.95},
	}
	return goals[size][readers]
}

// coldCPUGoal is the goal for processor seconds of the daemon for each GB, with coldReaders; 0: no goal.
func coldCPUGoal(size int) float64 {
	return map[int]float64{64 * kib: 0.8, mib: 0.2, 4 * mib: 0.1}[size]
}

// coldDiskGoal is the same compared with plain files on the disk.
func coldDiskGoal(size int) float64 {
	if size == 4*mib {
		return 1.5
	}
	return 0
}

// cold measures reads of blocks that only the disk tier has.
func (d *diskBench) cold(ctx context.Context) error {
	total, note, err := d.fit(d.config.diskBytes, 4, 2.5, diskSlack)
	if err != nil {
		return err
	}
	total = max(total, slices.Max(d.config.sizes))
	toFio := d.report.table("cold", "Cold reads", fmt.Sprintf("(open, one read, close; each block once, in random order, page cache dropped; "+
		"%s of blocks, with 1 and 2 readers a quarter of them%s; fio has as many requests in flight)", sizeText(total), note),
		"block", "readers", "fio GB/s", "kvfs GB/s", "min-max", "to fio", "goal", "")
	toPlain := d.report.table("cold", fmt.Sprintf("Cold reads by %d readers, beside plain files", coldReaders), "(and processor time of the daemon)",
		"block", fsType(d.config.diskDir)+" GB/s", "kvfs GB/s", "to it", "goal", "", "daemon s/GB", "goal", "")
	layout := filepath.Join(d.rawDir, "cold")
	if d.fio.missing == "" {
		d.say("cold: lay out fio's file")
		if err := d.fio.layOut(ctx, layout, total); err != nil {
			return err
		}
	}
	for _, size := range d.config.sizes {
		s := &coldSets{diskBench: d, toFio: toFio, toPlain: toPlain, size: size, count: total / size}
		if err := s.measure(ctx, layout); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

// measure stores the blocks and reads them with each number of readers.
func (s *coldSets) measure(ctx context.Context, layout string) (err error) {
	s.say("cold: %d blocks of %s", s.count, sizeText(s.size))
	total := s.count * s.size
	s.kvfs, err = s.mount(ctx, "kvfs-disk", total*5/4+256*mib, 2*total+diskSlack, total*5/4+64*mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.kvfs.close()) }()
	s.depthReaders, s.part = coldReaders, s.count
	if err := s.store(ctx); err != nil {
		return err
	}
	for _, readers := range coldDepths() {
		if err := s.depth(ctx, readers, layout); err != nil {
			return fmt.Errorf("%d readers: %w", readers, err)
		}
	}
	return errors.Join(s.onDisk.remove(), s.syncDisk())
}

// depth measures and reports one number of readers. Few readers are slow: they read a quarter of the blocks.
func (s *coldSets) depth(ctx context.Context, readers int, layout string) error {
	s.depthReaders, s.part, s.daemonTime, s.times = readers, s.count, 0, nil
	contenders := []contender{{kvfsName, s.kvfsPass}}
	if readers == coldReaders {
		contenders = append(contenders, contender{diskName, func(ctx context.Context, round int) (float64, error) {
			return s.pass(ctx, s.onDisk, s.onDisk.read, round)
		}})
	} else {
		s.part = max(1, s.count/4)
	}
	if s.fio.missing == "" {
		contenders = append(contenders, contender{fioName, func(ctx context.Context, _ int) (float64, error) {
			if err := s.dropPageCache(layout); err != nil {
				return 0, err
			}
			return s.fio.run(ctx, fioJob{file: layout, pattern: "randread", blockBytes: s.size, totalBytes: s.part * s.size, depth: readers})
		}})
	}
	perSec, err := s.rotate(ctx, contenders)
	if err != nil {
		return err
	}
	s.fioRow(perSec)
	if readers == 1 {
		s.report.add(tailsOf(s.times).rows(row{Topic: "cold", Target: kvfsName, BlockBytes: s.size, Threads: 1}, "us")...)
	}
	if readers == coldReaders {
		s.plainRow(perSec)
	}
	return nil
}

// coldSets are the same blocks in kvfs and in plain files.
type coldSets struct {
	*diskBench
	toFio, toPlain *table
	size, count    int
	kvfs           *tierMount
	inKVFS, onDisk *blockSet

	// Of the depth under way.
	depthReaders int
	part         int             // how many of the blocks a pass reads
	daemonTime   time.Duration   // in all timed passes
	times        []time.Duration // of each read through the mount, with one reader
}

// store writes the blocks, waits until the disk tier has them and reads each of them back cold
// once, untimed, and compares all bytes.
func (s *coldSets) store(ctx context.Context) error {
	var err error
	if s.inKVFS, err = newBlockSet(&s.kvfs.target, "cold", s.size, 0, s.count); err != nil {
		return err
	}
	plain := &target{name: diskName, dir: s.blocks}
	if s.onDisk, err = newBlockSet(plain, "cold", s.size, 0, s.count); err != nil {
		return err
	}
	base, err := s.kvfs.tier()
	if err != nil {
		return err
	}
	copy(s.writer.clients[0].buf, s.pattern) // Without marks of other sizes.
	for _, set := range []*blockSet{s.inKVFS, s.onDisk} {
		err := s.writer.once(ctx, newWork(1, s.count, func(c *client, i int) error {
			stampPages(c.buf[:s.size], i)
			return c.store(set.temp.at(i), set.final.at(i), s.size)
		}))
		if err != nil {
			return fmt.Errorf("%s: %w", set.dir, err)
		}
	}
	if err := s.kvfs.drained(ctx, base, s.count, nil); err != nil {
		return err
	}
	check := func(set *blockSet) func(c *client, i int) error {
		return func(c *client, i int) error {
			if err := c.read(set.final.at(i), s.size); err != nil {
				return err
			}
			return verifyPages(c.buf[:s.size], s.pattern, i)
		}
	}
	_, err = s.promoting(ctx, func() (float64, error) {
		return s.pass(ctx, s.inKVFS, check(s.inKVFS), 0)
	})
	if err == nil {
		_, err = s.pass(ctx, s.onDisk, check(s.onDisk), 0)
	}
	return err
}

// pass reads blocks in random order with an empty page cache.
func (s *coldSets) pass(ctx context.Context, set *blockSet, op func(*client, int) error, round int) (float64, error) {
	var files []string
	if set == s.onDisk { // in kvfs the cached pages are the blocks in memory
		for i := range set.count {
			files = append(files, unix.BytePtrToString(set.final.at(i)))
		}
	}
	if err := s.dropPageCache(files...); err != nil {
		return 0, err
	}
	if err := pretouch(s.part*set.size*5/4 + 256*mib); err != nil { // for the blocks in memory, or in the page cache
		return 0, err
	}
	order := rand.New(rand.NewPCG(uint64(round), uint64(set.size))).Perm(set.count)[:s.part]
	w := sequence(s.depthReaders, order, op)
	w.times = newTimes(w.threads)
	before, counted := bytesFromDisk()
	result, err := s.readers.run(ctx, w, time.Hour)
	if err != nil {
		return 0, err
	}
	s.times = append(s.times, w.times...)
	total := s.part * set.size
	after, _ := bytesFromDisk()
	if got := after - before; set == s.onDisk && counted && got < total/10*9 {
		return 0, fmt.Errorf("only %d of %d bytes came from the disk: not a cold read", got, total)
	}
	return float64(total) / result.elapsed.Seconds(), nil
}

// bytesFromDisk returns how many bytes this process made the kernel read from disks so far; false
// if the kernel does not count them.
func bytesFromDisk() (int, bool) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if digits, ok := strings.CutPrefix(line, "read_bytes: "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(digits))
			return n, err == nil
		}
	}
	return 0, false
}

// kvfsPass is a timed pass through the mount.
func (s *coldSets) kvfsPass(ctx context.Context, round int) (float64, error) {
	return s.promoting(ctx, func() (float64, error) {
		before, err := s.kvfs.server.cpu()
		if err != nil {
			return 0, err
		}
		rate, err := s.pass(ctx, s.inKVFS, s.inKVFS.readMarked, round)
		if err != nil {
			return 0, err
		}
		if err := s.kvfs.settle(ctx); err != nil { // The last RELEASE counts too.
			return 0, err
		}
		after, err := s.kvfs.server.cpu()
		s.daemonTime += after - before
		return rate, err
	})
}

// promoting empties the memory tier, then runs a pass. It fails if the reads did not come from the
// disk tier.
func (s *coldSets) promoting(ctx context.Context, pass func() (float64, error)) (float64, error) {
	before, err := s.kvfs.tier()
	if err == nil {
		err = s.kvfs.settle(ctx) // A file that is still open cannot be evicted.
	}
	if err == nil {
		err = s.kvfs.empty(ctx)
	}
	if err == nil {
		err = s.kvfs.settle(ctx)
	}
	if err != nil {
		return 0, err
	}
	rate, err := pass()
	if err != nil {
		return 0, err
	}
	after, err := s.kvfs.tier()
	if err != nil {
		return 0, err
	}
	// One in a hundred may have been busy when its memory was to be freed.
	if promoted := int(after.Promoted - before.Promoted); promoted < s.part-s.part/100 {
		return 0, fmt.Errorf("only %d of %d blocks read were promoted from the disk tier: not a cold read", promoted, s.part)
	}
	return rate, nil
}

// row is the rates of one side.
func (s *coldSets) row(name string, perSec series) row {
	r := row{Topic: "cold", Target: name, BlockBytes: s.size, Threads: s.depthReaders, Unit: "GB/s", Samples: gigabytes(perSec[name])}
	r.Value = median(r.Samples)
	return r
}

// fioRow compares with fio.
func (s *coldSets) fioRow(perSec series) {
	r, goal := s.row(kvfsName, perSec), coldGoal(s.size, s.depthReaders)
	base, verdict := "no fio", s.fio.skipped(goal)
	if s.fio.missing == "" {
		other := s.row(fioName, perSec)
		s.report.add(other)
		base, verdict = fmt.Sprintf("%.2f", other.Value), s.versus(&r, perSec, fioName, goal)
	}
	s.report.add(r)
	cells := []string{sizeText(s.size), fmt.Sprint(s.depthReaders), base, fmt.Sprintf("%.2f", r.Value), spread(r.Samples)}
	s.toFio.add(append(cells, verdict...)...)
}

// plainRow compares with plain files, and judges the processor time.
func (s *coldSets) plainRow(perSec series) {
	disk, r := s.row(diskName, perSec), s.row(kvfsName, perSec)
	verdict := s.versus(&r, perSec, diskName, coldDiskGoal(s.size))
	cpu := row{Topic: "cold", Target: kvfsName, BlockBytes: s.size, Threads: s.depthReaders,
		Unit: "processor seconds of the daemon for each GB", Value: s.daemonTime.Seconds() * 1e9 / float64(s.part*s.size*s.config.rounds)}
	cells := append([]string{sizeText(s.size), fmt.Sprintf("%.2f", disk.Value), fmt.Sprintf("%.2f", r.Value)}, verdict...)
	cells = append(cells, fmt.Sprintf("%.2f", cpu.Value), "", "")
	if goal := coldCPUGoal(s.size); goal > 0 {
		cells[len(cells)-2], cells[len(cells)-1] = fmt.Sprintf("%.2f", goal), s.report.judge(&cpu, goal, cpu.Value <= goal)
	}
	s.report.add(disk, r, cpu)
	s.toPlain.add(cells...)
}

// open opens block i and closes it.
func (s *blockSet) open(_ *client, i int) error {
	fd, err := open(s.final.at(i), unix.O_RDONLY)
	if err != nil {
		return err
	}
	return closeFd(fd)
}

// readMarked reads block i and checks only its first page, which costs nothing.
func (s *blockSet) readMarked(c *client, i int) error {
	if err := s.read(c, i); err != nil {
		return err
	}
	return verifyPage(c.buf[:min(pageBytes, s.size)], i, 0)
}

// stampPages marks each page of block i, so that swapped, missing or foreign pages show. The rest
// of buf is the pattern.
func stampPages(buf []byte, i int) {
	for at := 0; at < len(buf); at += pageBytes {
		page := buf[at:min(at+pageBytes, len(buf))]
		mark := pageMark(i, at/pageBytes)
		binary.LittleEndian.PutUint64(page, mark)
		binary.LittleEndian.PutUint64(page[len(page)-8:], ^mark)
	}
}

func pageMark(i, page int) uint64 { return uint64(i)<<32 | uint64(page) }

// verifyPages compares all bytes of block i with the written ones.
func verifyPages(buf, pattern []byte, i int) error {
	for at := 0; at < len(buf); at += pageBytes {
		end := min(at+pageBytes, len(buf))
		if err := verifyPage(buf[at:end], i, at/pageBytes); err != nil {
			return err
		}
		if !bytes.Equal(buf[at+8:end-8], pattern[at+8:end-8]) {
			return fmt.Errorf("wrong bytes between %d and %d", at+8, end-8)
		}
	}
	return nil
}

func verifyPage(page []byte, i, index int) error {
	mark := pageMark(i, index)
	first := binary.LittleEndian.Uint64(page)
	last := binary.LittleEndian.Uint64(page[len(page)-8:])
	if first != mark || last != ^mark {
		return fmt.Errorf("wrong bytes in page %d: got %x %x, want %x %x", index, first, last, mark, ^mark)
	}
	return nil
}
