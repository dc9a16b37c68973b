package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Names of the targets, as in -targets.
const (
	shmName      = "shm"
	hugeName     = "huge"
	kvfsName     = "kvfs"
	loopbackName = "loopback"
	diskName     = "disk"
)

// references are what a user would have without kvfs: a plain tmpfs, one with huge pages, and files in the page cache of
// a disk.
func references() []string { return []string{shmName, hugeName, diskName} }

// target is a directory to measure.
type target struct {
	name   string
	dir    string  // absolute; blocks live in directories below it
	server *server // serves dir; nil: the kernel alone
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

// settle lets the target finish the work of a pass, untimed. Otherwise write-back to the disk, or
// checksums and clean-up in a daemon, would run while the next target is measured.
func (t *target) settle(ctx context.Context) error {
	if t.server != nil {
		return t.server.awaitIdle(ctx)
	}
	if t.name != diskName {
		return nil
	}
	fd, err := unix.Open(t.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// setup makes the directories and starts the daemons. b.close removes them, also after an error.
func (b *bench) setup(ctx context.Context) error {
	var err error
	if b.workDir, err = os.MkdirTemp("", "kvfs-bench-"); err != nil {
		return err
	}
	if b.shmDir, err = os.MkdirTemp(b.config.shmDir, "kvfs-bench-"); err != nil {
		return err
	}
	for _, name := range b.config.targets {
		if !b.config.wants(hotTopics()...) {
			break // The topics of the disk tier start their own.
		}
		t, err := b.newTarget(ctx, name)
		if (name == loopbackName || name == hugeName) && err != nil {
			// Only for comparison: kvfs can be measured without it.
			b.say("no %s: %v", name, err)
			continue
		}
		if err != nil {
			return err
		}
		b.targets = append(b.targets, t)
	}
	return nil
}

func (b *bench) newTarget(ctx context.Context, name string) (*target, error) {
	t := &target{name: name}
	var err error
	switch name {
	case shmName:
		t.dir = filepath.Join(b.shmDir, "plain")
		err = os.Mkdir(t.dir, 0o755)
	case hugeName:
		t.dir, err = b.hugeTmpfs()
	case diskName:
		b.diskDir, err = os.MkdirTemp(b.config.diskDir, "kvfs-bench-")
		t.dir = b.diskDir
	case loopbackName:
		t.server, err = b.loopback()
	case kvfsName:
		t.server, err = b.kvfs("kvfs", b.config.memoryMiB)
	}
	if err != nil {
		return nil, err
	}
	if t.server != nil {
		t.dir = t.server.mount
		err = b.start(ctx, t.server)
	}
	return t, err
}

// hugeTmpfs mounts a tmpfs with huge pages where files are large enough. That needs root.
func (b *bench) hugeTmpfs() (string, error) {
	dir, err := b.mountPoint(hugeName)
	if err != nil {
		return "", err
	}
	if err := unix.Mount("kvfs-bench", dir, "tmpfs", 0, "huge=within_size"); err != nil {
		return "", fmt.Errorf("mount a tmpfs: %w", err)
	}
	b.hugeDir = dir
	return dir, nil
}

// start starts servers at once. b.close stops them.
func (b *bench) start(ctx context.Context, servers ...*server) error {
	b.mu.Lock()
	b.mu.servers = append(b.mu.servers, servers...)
	b.mu.Unlock()
	errs := make([]error, len(servers))
	ready := make([]*os.File, len(servers))
	for i, s := range servers {
		ready[i], errs[i] = s.launch()
	}
	for i, s := range servers {
		if errs[i] == nil {
			errs[i] = s.finish(ctx, ready[i])
		}
	}
	return errors.Join(errs...)
}

// kvfs makes a server that mounts at a directory of that name, with further flags.
func (b *bench) kvfs(name string, memoryMiB int, flags ...string) (*server, error) {
	mount, err := b.mountPoint(name)
	if err != nil {
		return nil, err
	}
	if b.kvfsPath == "" {
		b.kvfsPath = b.config.kvfs
	}
	if b.kvfsPath == "" {
		b.kvfsPath, err = b.build("cmd/kvfs", "kvfs")
	}
	argv := []string{b.kvfsPath, "mount", "--memory-size", fmt.Sprintf("%dMiB", memoryMiB),
		"--ready-fd", "3"}
	argv = append(append(append(argv, flags...), b.config.kvfsArgs...), mount)
	return &server{argv: argv, mount: mount, verbose: b.config.verbose, adopts: true}, err
}

func (b *bench) loopback() (*server, error) {
	mount, err := b.mountPoint("loopback")
	if err != nil {
		return nil, err
	}
	backing := filepath.Join(cmp.Or(b.hugeDir, b.shmDir), "loopback") // the faster tmpfs, if it is there
	if err := os.Mkdir(backing, 0o755); err != nil {
		return nil, err
	}
	path, err := b.build("tests/bench/loopback", "loopback-server")
	return &server{argv: []string{path, mount, backing}, mount: mount, verbose: b.config.verbose}, err
}

func (b *bench) mountPoint(name string) (string, error) {
	dir := filepath.Join(b.workDir, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, nil
}

// build compiles a package of this module, with the flags of the Makefile.
func (b *bench) build(pkg, name string) (string, error) {
	path := filepath.Join(b.workDir, name+".bin")
	out, err := exec.Command("go", "build", "-tags=giouring", "-ldflags=-checklinkname=0", "-o", path,
		"github.com/kvfs/kvfs/"+pkg).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

// close stops the daemons and removes all that setup made.
func (b *bench) close() error {
	close(b.closing)
	b.mu.Lock()
	servers := b.mu.servers
	b.mu.Unlock()
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.stop())
	}
	if b.hugeDir != "" {
		errs = append(errs, unix.Unmount(b.hugeDir, unix.MNT_DETACH))
	}
	for _, dir := range []string{b.shmDir, b.diskDir, b.tierDir} {
		if dir != "" {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	if b.workDir != "" {
		errs = append(errs, removeWorkDir(b.workDir))
	}
	if b.pool != nil {
		errs = append(errs, b.pool.close())
	}
	return errors.Join(errs...)
}

// removeWorkDir removes binaries and mount points. It uses rmdir for mount points, so a remaining
// mount is never emptied.
func removeWorkDir(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(append(errs, os.Remove(dir))...)
}
