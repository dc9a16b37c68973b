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

// coldGoal is the goal for cold reads as a share of fio's read bandwidth; 0: no goal.
func coldGoal(size int) float64 {
	switch size {
	case 64 * kib:
		return 0.70
	case mib, 4 * mib, 16 * mib:
		return 0.95
	}
	return 0
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
	diskTitle := "plain " + fsType(d.config.diskDir)
	table := d.report.table("cold", "Cold reads",
		fmt.Sprintf("(open, one read, close; %d threads, each block once, in random order, page cache dropped; "+
			"%s of blocks%s; processor time of the daemon for each MiB promoted)", coldReaders, sizeText(total), note),
		"block", "fio GB/s", "kvfs GB/s", "min-max", "to fio", "goal", "",
		diskTitle+" GB/s", "to it", "goal", "", "us/MiB")
	layout := filepath.Join(d.rawDir, "cold")
	if d.fio.missing == "" {
		d.say("cold: lay out fio's file")
		if err := d.fio.layOut(ctx, layout, total); err != nil {
			return err
		}
	}
	for _, size := range d.config.sizes {
		if err := d.coldSize(ctx, table, size, total, layout); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

func (d *diskBench) coldSize(ctx context.Context, table *table, size, total int, layout string) (err error) {
	count := total / size
	d.say("cold: %d blocks of %s", count, sizeText(size))
	m, err := d.mount(ctx, "kvfs-disk", total*5/4+256*mib, 2*total+diskSlack, total*5/4+64*mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	s := &coldSets{diskBench: d, kvfs: m, size: size, count: count}
	if err := s.store(ctx); err != nil {
		return err
	}
	contenders := []contender{
		{kvfsName, s.kvfsPass},
		{diskName, func(ctx context.Context, round int) (float64, error) {
			return s.pass(ctx, s.onDisk, s.onDisk.read, round)
		}},
	}
	if d.fio.missing == "" {
		contenders = append(contenders, contender{fioName, func(ctx context.Context, _ int) (float64, error) {
			if err := d.dropPageCache(layout); err != nil {
				return 0, err
			}
			return d.fio.run(ctx, fioJob{file: layout, pattern: "randread", blockBytes: size, totalBytes: count * size})
		}})
	}
	perSec, err := d.rotate(ctx, contenders)
	if err != nil {
		return err
	}
	d.coldRow(table, size, perSec, s.cpuPerMiB())
	return errors.Join(s.onDisk.remove(), d.syncDisk())
}

// coldSets are the same blocks in kvfs and in plain files.
type coldSets struct {
	*diskBench
	kvfs         *tierMount
	inKVFS       *blockSet
	onDisk       *blockSet
	size, count  int
	daemonTime   time.Duration // in all timed passes
	promotedMiBs float64
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

// pass reads all blocks in random order with an empty page cache.
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
	order := rand.New(rand.NewPCG(uint64(round), uint64(set.size))).Perm(set.count)
	before, counted := bytesFromDisk()
	result, err := s.readers.run(ctx, sequence(coldReaders, order, op), time.Hour)
	if err != nil {
		return 0, err
	}
	total := set.count * set.size
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
		s.promotedMiBs += float64(s.count*s.size) / mib
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
	if promoted := int(after.Promoted - before.Promoted); promoted < s.count-s.count/100 {
		return 0, fmt.Errorf("only %d of %d blocks read were promoted from the disk tier: not a cold read", promoted, s.count)
	}
	return rate, nil
}

// cpuPerMiB returns microseconds of processor time.
func (s *coldSets) cpuPerMiB() float64 {
	return float64(s.daemonTime.Microseconds()) / s.promotedMiBs
}

func (d *diskBench) coldRow(table *table, size int, perSec series, cpu float64) {
	add := func(name string, other string, goal float64) (row, []string) {
		r := row{Topic: "cold", Target: name, BlockBytes: size, Threads: coldReaders, Unit: "GB/s",
			Samples: gigabytes(perSec[name])}
		r.Value = median(r.Samples)
		var cells []string
		if other != "" {
			cells = d.versus(&r, perSec, other, goal)
		}
		d.report.add(r)
		return r, cells
	}
	cells := []string{sizeText(size)}
	if d.fio.missing == "" {
		base, _ := add(fioName, "", 0)
		r, verdict := add(kvfsName, fioName, coldGoal(size))
		cells = append(cells, fmt.Sprintf("%.2f", base.Value), fmt.Sprintf("%.2f", r.Value), spread(r.Samples))
		cells = append(cells, verdict...)
	} else {
		kvfs := gigabytes(perSec[kvfsName])
		cells = append(cells, "no fio", fmt.Sprintf("%.2f", median(kvfs)), spread(kvfs))
		cells = append(cells, d.fio.skipped(coldGoal(size))...)
	}
	disk, _ := add(diskName, "", 0)
	_, verdict := add(kvfsName, diskName, coldDiskGoal(size))
	cells = append(append(cells, fmt.Sprintf("%.2f", disk.Value)), verdict...)
	d.report.add(row{Topic: "cold", Target: kvfsName, BlockBytes: size, Threads: coldReaders, Value: cpu,
		Unit: "us of the daemon's processor time for each MiB promoted"})
	table.add(append(cells, fmt.Sprintf("%.0f", cpu))...)
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
