package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/home"
)

// diskChecks are about the SSD tier.
func diskChecks() []Check {
	return []Check{
		{Name: "disk directories", Run: needDisk(checkDirs), Fits: true},
		{Name: "disk room", Run: needDisk(usable(checkRoom)), Fits: true},
		{Name: "disk test", Run: needDisk(usable(checkDisk))},
	}
}

// needDisk is a check of the directories of the SSD tier. The result is the worst of those of each directory.
func needDisk(run func(context.Context, *Env, config.DiskDir) Result) func(context.Context, *Env) Result {
	return needConfig(func(ctx context.Context, e *Env, cfg *config.Config) Result {
		if len(cfg.Disk.Dirs) == 0 {
			return skip("there is no SSD tier")
		}
		var all []Result
		for i, d := range cfg.Disk.Dirs {
			r := run(ctx, e, d)
			if r.Remedy != "" {
				at := fmt.Sprintf("disk.dirs[%d]", i)
				r.Reason = fmt.Sprintf("%s (%v): %s", at, cfg.Origin(at), r.Reason)
			}
			all = append(all, r)
		}
		return worst(all)
	})
}

// usable is a check of a directory that can be one of the SSD tier: checkDirs tells why another one cannot.
func usable(run func(context.Context, *Env, config.DiskDir) Result) func(context.Context, *Env, config.DiskDir) Result {
	return func(ctx context.Context, e *Env, d config.DiskDir) Result {
		if checkDirs(ctx, e, d).Verdict == Fail {
			return skip("%s cannot be used: see disk directories", d.Path)
		}
		return run(ctx, e, d)
	}
}

// worst returns the worst results: those that are well in one sentence, the others each for itself.
func worst(all []Result) Result {
	order := map[Verdict]int{Skip: 0, OK: 1, Warn: 2, Fail: 3}
	var w Result
	for i, r := range all {
		switch {
		case i == 0 || order[r.Verdict] > order[w.Verdict]:
			w = r
		case r.Verdict == w.Verdict && r.Remedy == "":
			w.Reason += "; " + r.Reason
		case r.Verdict == w.Verdict:
			w.also = append(w.also, r)
		}
	}
	return w
}

// existing returns dir, or the directory above it if dir is absent: kvfs makes it.
func existing(dir string) string {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return filepath.Dir(dir)
	}
	return dir
}

func checkDirs(_ context.Context, e *Env, d config.DiskDir) Result {
	place := home.Options{RequireMount: e.Config.Disk.RequireMount, StateDir: daemon.StateDir(os.Getenv)}
	var wrong *home.DirError
	if errors.As(home.CheckPlace(d.Path, place), &wrong) {
		return fail("the file system mounted, or --disk-require-mount=false", "%v", wrong)
	}
	dir := existing(d.Path)
	r, err := directio.Probe(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("mkdir -p "+dir+", or mount the disk that it is on", "%s: its parent %s does not exist", d.Path, dir)
	case r.FileSystem == "tmpfs" || r.FileSystem == "ramfs":
		return fail("a directory on ext4 or xfs", "%s is on %s, in memory", d.Path, r.FileSystem)
	case errors.Is(err, directio.ErrNotDirect):
		return fail("a directory on ext4 or xfs", "%s has no direct I/O: %v", d.Path, err)
	case err != nil:
		return fail("another disk.dirs[].path, or access to this one", "%s: %v", d.Path, err)
	case !r.Direct:
		return warn("a directory on ext4 or xfs", "%s is on %v", d.Path, r)
	}
	return ok("%s is on %v", d.Path, r)
}

func checkRoom(_ context.Context, e *Env, d config.DiskDir) Result {
	st, err := e.statfsNear(d.Path)
	if err != nil {
		return fail("dmesg, smartctl, or another disk.dirs[].path", "%s: %v", d.Path, err)
	}
	room := int64(st.Bavail) * st.Bsize
	entries, _ := os.ReadDir(d.Path) // the directory may be absent
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			if own, is := info.Sys().(*syscall.Stat_t); is {
				room += own.Blocks * 512
			}
		}
	}
	if room < int64(d.Size) {
		return warn("a smaller disk.dirs[].size, or other files removed", "%s has room for %s, less than its size %v", d.Path, show.Bytes(room), d.Size)
	}
	return ok("%s has room for its size %v", d.Path, d.Size)
}

// holder returns the process that holds a lock on a file; 0 if none does, -1 if it is in another pid name space.
func (e *Env) holder(file string) int {
	var st unix.Stat_t
	text, err := os.ReadFile(e.path("proc/locks"))
	if err != nil || unix.Stat(file, &st) != nil {
		return 0
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(text)) {
		// For example: "1: FLOCK ADVISORY WRITE 4711 00:1a:23 0 EOF"
		lock := strings.Fields(line)
		if len(lock) > 5 && lock[1] == "FLOCK" && lock[5] == want {
			var pid int
			if _, err := fmt.Sscan(lock[4], &pid); err != nil || pid <= 0 {
				return -1
			}
			return pid
		}
	}
	return 0
}

// The disk test writes for at most testTime and at most testBytes, and reads as long.
const (
	testTime  = time.Second
	testBytes = 256 << 20
	testChunk = 1 << 20
)

func checkDisk(ctx context.Context, e *Env, d config.DiskDir) Result {
	if e.holder(filepath.Join(d.Path, format.SuperName)) != 0 && !e.DiskTest {
		return skip("a daemon uses %s: --disk-test tests it nevertheless", d.Path)
	}
	dir := existing(d.Path)
	var st unix.Statfs_t
	if err := e.Statfs(dir, &st); err != nil {
		return fail("dmesg, smartctl, or another disk.dirs[].path", "%s: %v", dir, err)
	}
	if int64(st.Bavail)*st.Bsize < 2*testBytes {
		return skip("%s has less than %s left", dir, show.Bytes(2*testBytes))
	}
	wrote, read, err := tryDisk(ctx, dir)
	if err != nil {
		return fail("kvfs fsck, dmesg, smartctl", "%s: %v", dir, err)
	}
	return ok("%s writes %s/s and reads %s/s", dir, show.Bytes(wrote), show.Bytes(read))
}

// tryDisk writes a file in dir, reads it back and compares. It removes the file. It returns bytes a second.
func tryDisk(ctx context.Context, dir string) (wrote, read int64, err error) {
	f, err := testFile(dir)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	mem, err := unix.Mmap(-1, 0, 2*testChunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
	if err != nil {
		return 0, 0, os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(mem))) }()
	want, got := mem[:testChunk], mem[testChunk:]
	for i := range want {
		want[i] = byte(i*31 + i>>8)
	}
	wrote, size, err := timed(ctx, testBytes, func(off int64) error {
		_, err := f.WriteAt(want, off)
		return err
	})
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return 0, 0, err
	}
	read, _, err = timed(ctx, size, func(off int64) error {
		if _, err := f.ReadAt(got, off); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !bytes.Equal(want, got) {
			return directio.ErrSelfTest
		}
		return nil
	})
	return wrote, read, err
}

// testFile makes a file that has no name, or has it no more.
func testFile(dir string) (*os.File, error) {
	const flags = unix.O_DIRECT | os.O_RDWR
	f, err := os.OpenFile(dir, flags|unix.O_TMPFILE, 0o600)
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return f, err
	}
	named, err := os.CreateTemp(dir, ".kvfs-probe-*")
	if err != nil {
		return nil, err
	}
	defer named.Close()
	f, err = os.OpenFile(named.Name(), flags, 0)
	return f, errors.Join(err, os.Remove(named.Name()))
}

// timed calls do for one chunk after the other, up to size or for testTime.
func timed(ctx context.Context, size int64, do func(off int64) error) (perSecond, done int64, err error) {
	begin := time.Now()
	for done < size && (done == 0 || time.Since(begin) < testTime) {
		if err := errors.Join(ctx.Err(), do(done)); err != nil {
			return 0, done, err
		}
		done += testChunk
	}
	return int64(float64(done) / max(time.Since(begin).Seconds(), 1e-6)), done, nil
}
