package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	coldReaders = 8 // threads, as many as fio has requests in flight
	// diskSlack is the room of a disk tier besides its blocks: partly filled slabs, headers.
	diskSlack = 1 * gib
	// stallLimit is how long a cascade may make no progress.
	stallLimit = time.Minute
	pollEvery  = 10 * time.Millisecond
	// timedPollEvery bounds the error of a drain's end, if it counts. The daemon takes a fifth of a
	// millisecond to answer.
	timedPollEvery = 5 * time.Millisecond
)

// diskBench is the common state of the topics of the disk tier.
type diskBench struct {
	*bench
	readers *pool
	writer  *pool
	fio     *fio
	pattern []byte // content of the buffers of newClient
	kvfsDir string // ours, for the directories of disk tiers
	rawDir  string // ours, for fio
	blocks  string // ours, for plain files
}

// measureDiskTier measures the topics of the disk tier. If one fails, the others are still
// measured.
func (b *bench) measureDiskTier(ctx context.Context) error {
	if !b.config.wants(diskTopics()...) || !slices.Contains(b.config.targets, kvfsName) {
		return nil
	}
	if kind := fsType(b.config.diskDir); strings.HasPrefix(kind, "tmpfs") {
		for _, topic := range diskTopics() {
			if b.config.wants(topic) {
				b.report.skip(topic, fmt.Sprintf("%s is on tmpfs; give -disk a directory on a disk", b.config.diskDir))
			}
		}
		return nil
	}
	// A processor for each reader, as in run. Between passes there is little to do.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), coldReaders+2)))
	d, err := b.newDiskBench(ctx)
	defer d.close()
	if err != nil {
		return err
	}
	steps := map[string]func(context.Context) error{
		"cold": d.cold, "drain": d.drain, "hotcascade": d.hotCascade, "recovery": d.recovery,
		"prefetch": d.prefetch, "lookfirst": d.lookFirst,
	}
	var errs []error
	for _, topic := range diskTopics() {
		if !b.config.wants(topic) {
			continue
		}
		if err := steps[topic](ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", topic, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// newDiskBench returns its result also after an error. The caller must close it.
func (b *bench) newDiskBench(ctx context.Context) (*diskBench, error) {
	d := &diskBench{bench: b}
	var err error
	if b.tierDir, err = os.MkdirTemp(b.config.diskDir, "kvfs-bench-tier-"); err != nil {
		return d, err
	}
	for name, dir := range map[string]*string{"kvfs": &d.kvfsDir, "fio": &d.rawDir, "plain": &d.blocks} {
		*dir = filepath.Join(b.tierDir, name)
		if err := os.Mkdir(*dir, 0o755); err != nil {
			return d, err
		}
	}
	size := max(mib, slices.Max(b.config.sizes))
	if d.readers, err = newPool(coldReaders, size); err != nil {
		return d, err
	}
	if d.writer, err = newPool(1, max(size, cascadeBlockBytes)); err != nil {
		return d, err
	}
	d.pattern = make([]byte, size)
	fillPattern(d.pattern)
	if b.config.wants("cold", "drain") {
		d.fio = findFio(ctx, d.rawDir)
	}
	b.report.machine = append(b.report.machine, d.describe())
	return d, nil
}

func (d *diskBench) describe() string {
	line := "disk tier: " + fsType(d.config.diskDir)
	if kib := readAhead(d.tierDir); kib != "" {
		line += ", read-ahead " + kib + " KiB" // it determines the speed of plain files
	}
	if os.Getuid() != 0 {
		line += "; not root: page cache dropped file by file, inodes stay in memory"
	}
	switch {
	case d.fio == nil:
		return line
	case d.fio.missing != "":
		return line + "; NO FIO: " + d.fio.missing
	}
	return line + "; " + d.fio.version
}

// readAhead returns the read-ahead in KiB of the disk of dir; empty: unknown.
func readAhead(dir string) string {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return ""
	}
	device := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, place := range []string{"queue", "../queue"} { // Of a disk, of a partition.
		text, err := os.ReadFile(device + place + "/read_ahead_kb")
		if err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return ""
}

// close removes files and clients; b.close stops the daemons.
func (d *diskBench) close() {
	for _, p := range []*pool{d.readers, d.writer} {
		if p != nil {
			p.close() // Unmapping own memory does not fail.
		}
	}
	os.RemoveAll(d.rawDir) // b.close tells if this is impossible.
	os.RemoveAll(d.blocks)
}

// fit returns how many of the wanted bytes of blocks can be used if a byte takes onDisk bytes on
// the disk and inMemory bytes in memory, besides slack for disk tiers. It also returns a note if
// that is less than all.
func (d *diskBench) fit(want int, onDisk, inMemory float64, slack int) (int, string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.tierDir, &st); err != nil {
		return 0, "", err
	}
	free, available := int(st.Bavail)*int(st.Bsize), memInfo("MemAvailable")
	got := fitBytes(want, free-slack, available, onDisk, inMemory)
	if got < 16*mib && got < want {
		return 0, "", fmt.Errorf("%d MiB of disk and %d MiB of memory are free: too little", free/mib, available/mib)
	}
	if got < want {
		return got, fmt.Sprintf("; REDUCED from %s: %d MiB of disk and %d MiB of memory are free",
			sizeText(want), free/mib, available/mib), nil
	}
	return got, "", nil
}

// fitBytes leaves a tenth of the disk and a third of the memory free.
func fitBytes(want, free, available int, onDisk, inMemory float64) int {
	byDisk := 0.9 * float64(free) / onDisk
	byMemory := 0.66 * float64(available) / inMemory
	got := int(min(byDisk, byMemory))
	return max(0, min(want, got/mib*mib))
}

// tierStatus is the status of a secondary tier; totals since the start.
type tierStatus struct {
	Name              string          `json:"name"`
	State             string          `json:"state"`
	Reason            string          `json:"reason"`
	Blocks            int64           `json:"blocks"`
	QueuedBlocks      int64           `json:"queued_blocks"`
	QueuedBytes       int64           `json:"queued_bytes"`
	Cascaded          uint64          `json:"cascaded_blocks"`
	CascadedBytes     uint64          `json:"cascaded_bytes"`
	CascadeDropped    uint64          `json:"cascade_dropped_blocks"`
	CascadeSkipped    uint64          `json:"cascade_skipped_blocks"`
	CascadeFailed     uint64          `json:"cascade_failed_blocks"`
	AdmissionRejected uint64          `json:"cascade_not_admitted_blocks"`
	Promoted          uint64          `json:"promoted_blocks"`
	PromotedBytes     uint64          `json:"promoted_bytes"`
	PromoteCorrupt    uint64          `json:"promotion_corrupt_blocks"`
	PromoteFailed     uint64          `json:"promotion_failed_blocks"`
	PromoteTimeouts   uint64          `json:"promotion_timeouts"`
	Detail            json.RawMessage `json:"detail"`
}

// lost is how many blocks the cascade gave up.
func (s *tierStatus) lost() uint64 {
	return s.CascadeDropped + s.CascadeSkipped + s.CascadeFailed + s.AdmissionRejected
}

// tierMount is a kvfs with a tier below memory, or without one for comparison.
type tierMount struct {
	target
	bench    *bench
	tierName string
	diskDir  string // ours; empty: no disk tier
}

// mount starts a kvfs at a mount point of that name, with further flags.
// diskBytes 0: no disk tier.
func (d *diskBench) mount(ctx context.Context, name string, memoryBytes, diskBytes, queueBytes int,
	flags ...string) (*tierMount, error) {
	m := &tierMount{bench: d.bench, tierName: "disk", target: target{name: kvfsName}}
	if diskBytes > 0 {
		var err error
		if m.diskDir, err = os.MkdirTemp(d.kvfsDir, name+"-"); err != nil {
			return nil, err
		}
		flags = append(flags, "--disk", fmt.Sprintf("path=%s,size=%dMiB", m.diskDir, mebibytes(diskBytes)),
			"--disk-cascade", "async", "--disk-cascade-queue", fmt.Sprintf("%dMiB", mebibytes(queueBytes)))
	}
	var err error
	if m.server, err = d.kvfs(name, mebibytes(memoryBytes), flags...); err != nil {
		return nil, err
	}
	m.dir = m.server.mount
	return m, d.start(ctx, m.server)
}

func mebibytes(n int) int { return (n + mib - 1) / mib }

// close stops the daemon and removes the disk tier's files.
func (m *tierMount) close() error {
	err := m.server.stop()
	if m.diskDir != "" {
		err = errors.Join(err, os.RemoveAll(m.diskDir))
	}
	return err
}

// tier returns the status of the tier below memory.
func (m *tierMount) tier() (*tierStatus, error) {
	s, err := readStatus(&m.target)
	if err != nil {
		return nil, err
	}
	for i := range s.Secondaries {
		if t := &s.Secondaries[i]; t.Name == m.tierName {
			if t.State != "" && t.State != "online" {
				return nil, fmt.Errorf("the tier %s is %s: %s", m.tierName, t.State, t.Reason)
			}
			return t, nil
		}
	}
	return nil, fmt.Errorf("no entry %q in \"secondaries\" of .kvfs/status", m.tierName)
}

// drained waits until the tier has taken count blocks more than at base and its queue is empty. It
// calls see, if not nil, with each status on the way, and fails if a block was lost.
func (m *tierMount) drained(ctx context.Context, base *tierStatus, count int, see func(time.Time, *tierStatus)) error {
	var progress uint64
	every := pollEvery
	if see != nil {
		every = timedPollEvery
	}
	for since := time.Now(); ; {
		s, err := m.tier()
		if err != nil {
			return err
		}
		now := time.Now()
		if see != nil {
			see(now, s)
		}
		if lost := s.lost() - base.lost(); lost > 0 {
			return fmt.Errorf("the tier %s did not take %d blocks: %d dropped, %d skipped, %d failed, %d not admitted",
				m.tierName, lost, s.CascadeDropped, s.CascadeSkipped, s.CascadeFailed, s.AdmissionRejected)
		}
		done := s.Cascaded - base.Cascaded
		if done >= uint64(count) && s.QueuedBlocks == 0 {
			return nil
		}
		if done != progress {
			progress, since = done, now
		}
		if now.Sub(since) > stallLimit {
			return fmt.Errorf("the cascade is stuck for %v: %d of %d blocks stored, %d queued",
				stallLimit, done, count, s.QueuedBlocks)
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

// emptyLimit bounds the attempts of empty: a file that the kernel keeps open for longer is in use.
const emptyLimit = 10 * time.Second

// empty evicts until the memory tier is empty. A file that is still open stays. On a busy machine
// so does a file that the kernel has not released yet.
func (m *tierMount) empty(ctx context.Context) error {
	for begin := time.Now(); ; {
		if err := m.evict(ctx); err != nil {
			return err
		}
		s, err := readStatus(&m.target)
		if err != nil || memoryUsed(s) == 0 || time.Since(begin) > emptyLimit {
			return err
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// evict drops all blocks from the memory tier.
func (m *tierMount) evict(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, m.bench.kvfsPath, "evict", "--tier", "memory", "--all", m.dir)
	cmd.Env = plainEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// dropPageCache writes back dirty pages and drops cached ones: as root those of all files, otherwise
// those of the given files. It drops no directory entries or inodes.
func (d *diskBench) dropPageCache(files ...string) error {
	if err := d.syncDisk(); err != nil {
		return err
	}
	if os.Getuid() == 0 {
		err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0)
		if err == nil || !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.EROFS) {
			return err
		}
	}
	for _, name := range files {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: name, Err: err}
		}
		err = errors.Join(unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED), unix.Close(fd))
		if err != nil {
			return &os.PathError{Op: "fadvise", Path: name, Err: err}
		}
	}
	return nil
}

// syncDisk lets write-back, and discards of removed files, end.
func (d *diskBench) syncDisk() error {
	fd, err := unix.Open(d.tierDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// contender is one side of a comparison.
type contender struct {
	name string
	pass func(ctx context.Context, round int) (figure float64, err error) // bytes a second, or what the topic says
}

// rotate runs the passes of all contenders in turn, round after round. Each round begins with
// another contender.
func (b *bench) rotate(ctx context.Context, contenders []contender) (series, error) {
	out := series{}
	for round := range b.config.rounds {
		for i := range contenders {
			c := contenders[(round+i)%len(contenders)]
			rate, err := c.pass(ctx, round)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			out[c.name] = append(out[c.name], rate)
		}
	}
	return out, nil
}

// sequence is a work whose threads take the indexes of order one after another.
func sequence(threads int, order []int, op func(c *client, i int) error) *work {
	w := newWork(threads, len(order), func(c *client, i int) error { return op(c, order[i]) })
	w.once, w.queue = true, new(atomic.Int64)
	return w
}

// versus returns the cells for the ratio to another, the goal and the verdict; a goal of 0 is none.
// It also enters them into r.
func (b *bench) versus(r *row, perSec series, other string, goal float64) []string {
	ratio := median(perSec[r.Target]) / median(perSec[other])
	if r.RatioTo == nil {
		r.RatioTo = map[string]float64{}
	}
	r.RatioTo[other] = ratio
	cells := []string{fmt.Sprintf("%.2f", ratio), "", ""}
	if goal > 0 {
		cells[1] = strconv.FormatFloat(goal, 'f', 2, 64)
		cells[2] = b.report.judge(r, goal, ratio >= goal)
	}
	return cells
}

// spread is the range of figures.
func spread(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f-%.2f", slices.Min(values), slices.Max(values))
}

// gigabytes turns bytes a second into GB/s.
func gigabytes(perSec []float64) []float64 {
	out := make([]float64, len(perSec))
	for i, v := range perSec {
		out[i] = v / 1e9
	}
	return out
}
