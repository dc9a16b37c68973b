package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/tiers/lane"
)

// Names of the targets.
const (
	shmName      = "shm"
	hugeName     = "huge"
	kvfsName     = "kvfs"
	loopbackName = "loopback"
	diskName     = "disk"
)

// references are what a user would have without kvfs: a plain tmpfs, one with huge pages, and files in the page cache
// of a disk.
func references() []string { return []string{shmName, hugeName, diskName} }

// target is a directory to measure.
type target struct {
	name   string
	dir    string  // absolute; blocks live in directories below it
	server *server // serves dir; nil: the kernel alone
	tier   string  // of kvfs: the name of the tier below memory
}

// title is the target's column heading.
func (t *target) title() string {
	switch t.name {
	case shmName:
		return "tmpfs"
	case hugeName:
		return "huge tmpfs"
	case diskName:
		return "page cache"
	}
	return t.name
}

// syncFS lets write-back, and discards of removed files, end.
func syncFS(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// target returns the one with that name, or nil.
func (j *job) target(name string) *target {
	i := slices.IndexFunc(j.targets, func(t *target) bool { return t.name == name })
	if i < 0 {
		return nil
	}
	return j.targets[i]
}

// startTargets makes the file systems that are compared: those with these names, all without names.
func (j *job) startTargets(names ...string) {
	makers := []struct {
		name string
		make func() *target
	}{
		{shmName, func() *target { return &target{dir: j.dirIn(j.config.shmDir)} }},
		{hugeName, j.hugeTmpfs},
		{diskName, func() *target { return &target{dir: j.dirIn(j.config.diskDir)} }},
		{kvfsName, func() *target { return j.mount(mountOptions{name: "kvfs", memory: j.config.memoryMiB * mib}) }},
		{loopbackName, j.loopback},
	}
	for _, m := range makers {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		var t *target
		err := try(func() { t = m.make() })
		if err != nil && (m.name == loopbackName || m.name == hugeName) { // kvfs can be measured without
			j.say("no %s: %v", m.name, err)
			continue
		}
		must(err)
		t.name = m.name
		j.targets = append(j.targets, t)
	}
}

// dirIn makes a directory, and removes it at the end of the job.
func (j *job) dirIn(parent string) string {
	dir := get(os.MkdirTemp(parent, "kvfs-bench-"))
	j.later(func() { must(os.RemoveAll(dir)) })
	return dir
}

// hugeTmpfs mounts a tmpfs with huge pages where files are large enough. That needs root.
func (j *job) hugeTmpfs() *target {
	dir := j.mountPoint(hugeName)
	must(os.NewSyscallError("mount a tmpfs", unix.Mount("kvfs-bench", dir, "tmpfs", 0, "huge=within_size")))
	j.later(func() { must(unix.Unmount(dir, unix.MNT_DETACH)) })
	return &target{dir: dir}
}

// loopback mounts go-fuse's loopback of the faster tmpfs.
func (j *job) loopback() *target {
	backing := j.dirIn(j.config.shmDir)
	if huge := j.target(hugeName); huge != nil {
		backing = filepath.Join(huge.dir, "loopback")
		must(os.Mkdir(backing, 0o755))
	}
	s := &server{mount: j.mountPoint("loopback")}
	s.argv = childArgs(role{Mount: s.mount, Path: backing})
	return j.serve(s)
}

type mountOptions struct {
	name   string
	memory int // bytes
	disk   int // bytes of an SSD tier; 0: none
	queue  int // bytes of its queue
	flags  []string
}

// mount starts a kvfs until the end of the job.
func (j *job) mount(o mountOptions) *target {
	flags := o.flags
	if o.disk > 0 {
		flags = append(slices.Clone(flags), "--disk", fmt.Sprintf("path=%s,size=%dMiB", j.dirIn(j.config.diskDir), mebibytes(o.disk)),
			"--disk-cascade", "async", "--disk-cascade-queue", fmt.Sprintf("%dMiB", mebibytes(o.queue)))
	}
	t := j.serve(j.kvfs(o.name, mebibytes(o.memory), flags...))
	if t.name = kvfsName; o.disk > 0 {
		t.tier = "disk"
	}
	return t
}

func mebibytes(n int) int { return (n + mib - 1) / mib }

// serve starts a server until the end of the job.
func (j *job) serve(s *server) *target {
	must(start(j.ctx, s))
	j.later(func() { must(s.stop()) })
	return &target{dir: s.mount, server: s}
}

// readJSON reads a file of the control directory.
func readJSON(t *target, name string, into any) {
	if err := json.Unmarshal(get(os.ReadFile(t.dir+"/.kvfs/"+name)), into); err != nil {
		must(fmt.Errorf("%s/.kvfs/%s: %w", t.dir, name, err))
	}
}

func (t *target) status() *status.Document {
	doc := &status.Document{}
	readJSON(t, "status", doc)
	return doc
}

func (t *target) memoryUsed() int64 {
	for _, tier := range t.status().Tiers {
		if tier.Name == "memory" {
			return tier.UsedBytes
		}
	}
	return 0
}

// lower returns the status of the tier below memory. A tier that is not fit for a measurement is a failure.
func (t *target) lower() *lane.Stats {
	all := t.status().Secondaries
	i := slices.IndexFunc(all, func(one lane.Stats) bool { return one.Name == t.tier })
	if i < 0 {
		must(fmt.Errorf("no entry %q in \"secondaries\" of .kvfs/status", t.tier))
	}
	if one := &all[i]; one.State != "" && one.State != "online" {
		must(fmt.Errorf("the tier %s is %s: %s", t.tier, one.State, one.Reason))
	}
	return &all[i]
}

// told returns the value of a field in the details of the tiers below memory, "" if there is none.
func (t *target) told(field string) string {
	text := get(json.Marshal(t.status().Secondaries))
	if m := regexp.MustCompile(`"` + field + `":([^,}]+)`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// lost is how many blocks a cascade gave up.
func lost(s *lane.Stats) uint64 {
	return s.CascadeDropped + s.CascadeSkipped + s.CascadeFailed + s.AdmissionRejected
}

// drained waits until the tier has taken count blocks more than at base and its queue is empty. It calls see, if not
// nil, with each status on the way, and fails if a block was lost.
func (j *job) drained(t *target, base *lane.Stats, count int, see func(time.Time, *lane.Stats)) {
	var progress uint64
	every := pollEvery
	if see != nil {
		every = timedPollEvery
	}
	for since := time.Now(); ; j.pause(every) {
		s, now := t.lower(), time.Now()
		if see != nil {
			see(now, s)
		}
		if n := lost(s) - lost(base); n > 0 {
			must(fmt.Errorf("the tier %s did not take %d blocks: %d dropped, %d skipped, %d failed, %d not admitted",
				t.tier, n, s.CascadeDropped, s.CascadeSkipped, s.CascadeFailed, s.AdmissionRejected))
		}
		done := s.Cascaded - base.Cascaded
		if done >= uint64(count) && s.QueuedBlocks == 0 {
			return
		}
		if done != progress {
			progress, since = done, now
		}
		if now.Sub(since) > clusterLimit {
			must(fmt.Errorf("the cascade is stuck for %v: %d of %d blocks stored, %d queued", clusterLimit, done, count, s.QueuedBlocks))
		}
	}
}

// empty evicts until the memory tier is empty. On a busy machine the kernel may not have released a file yet: then
// again.
func (j *job) empty(t *target) {
	j.settle(t) // a file that is still open cannot be evicted
	j.await("memory is empty", func() bool {
		j.command(j.kvfsPath, "evict", "--tier", "memory", "--all", t.dir)
		return t.memoryUsed() == 0
	})
	j.settle(t)
}

func command(ctx context.Context, argv ...string) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = plainEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		must(fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out))
	}
}

func (j *job) command(argv ...string) { command(j.ctx, argv...) }

// start starts servers at once. The caller must stop them.
func start(ctx context.Context, servers ...*server) error {
	errs, ready := make([]error, len(servers)), make([]*os.File, len(servers))
	for i, s := range servers {
		ready[i], errs[i] = s.launch(ctx)
	}
	for i, s := range servers {
		if errs[i] == nil {
			errs[i] = s.finish(ctx, ready[i])
		}
	}
	return errors.Join(errs...)
}

// kvfs makes a server that mounts at a directory of that name, with further flags.
func (b *bench) kvfs(name string, memoryMiB int, flags ...string) *server {
	mount := b.mountPoint(name)
	argv := []string{b.kvfsPath, "mount", "--memory-size", fmt.Sprintf("%dMiB", memoryMiB), "--ready-fd", "3"}
	return &server{argv: append(append(argv, flags...), mount), mount: mount, adopts: true}
}

// mountPoint makes a directory below workDir.
func (b *bench) mountPoint(name string) string {
	dir := filepath.Join(b.workDir, name)
	must(os.MkdirAll(dir, 0o755))
	return dir
}
