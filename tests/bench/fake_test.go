package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/sets"
	"github.com/kvfs/kvfs/tiers/lane"
)

// fakeKVFSEnv makes the test binary play kvfs: see fakeKVFS.
const fakeKVFSEnv = "BENCH_TEST_FAKE_KVFS"

// failDiskEnv makes it fail to start with a disk tier; failDrain makes it fail to cascade what it
// finds in memory.
const (
	failDiskEnv  = "BENCH_TEST_FAIL_DISK"
	failDrainEnv = "BENCH_TEST_FAIL_DRAIN"
)

func TestMain(m *testing.M) {
	if os.Getenv(fakeKVFSEnv) == "" || os.Getenv(roleEnv) != "" {
		sets.Select()
		os.Exit(m.Run())
	}
	if err := fakeKVFS(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fake kvfs:", err)
		os.Exit(1)
	}
}

// fakeKVFS has the command line of kvfs, as far as this program uses it. Its mount is the plain
// directory itself. Its disk tier "has" every file in it, one scan after the write. Between a clean
// stop and the next start the files are in the tier's directory, or in one beside the mount point
// if they are kept in "memory". If no daemon takes these, the bench cannot remove the directory.
func fakeKVFS(args []string) error {
	f := flag.NewFlagSet("fake kvfs", flag.ContinueOnError)
	disk := f.String("disk", "", "")
	for _, name := range []string{"memory-size", "disk-cascade", "disk-cascade-queue", "tier"} {
		f.String(name, "", "")
	}
	readyFD := f.Uint("ready-fd", 0, "")
	keep := f.Bool("memory-keep", false, "")
	all := f.Bool("all", false, "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	dir := f.Arg(0)
	switch args[0] {
	case "evict":
		if !*all {
			return errors.New("evict without --all")
		}
		return fakeEvict(filepath.Join(dir, ".kvfs", "evicted"))
	case "mount":
		if *disk != "" && os.Getenv(failDiskEnv) != "" {
			return errors.New("no disk tier today")
		}
		kvfs := &fakeDaemon{dir: dir, seen: map[string]bool{}, status: lane.Stats{Name: "disk"}}
		kvfs.status.State = "online"
		path, _, _ := strings.Cut(strings.TrimPrefix(*disk, "path="), ",")
		kvfs.diskDir, kvfs.keep, kvfs.perScan = path, *keep, math.MaxInt64
		return kvfs.serve(*readyFD)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// fakeEvict asks the daemon to evict and returns when status shows it.
func fakeEvict(mark string) error {
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(mark); errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // reason: the removal of a file has no event
	}
}

type fakeDaemon struct {
	dir, diskDir string
	keep         bool
	perScan      int64 // bytes at which a scan stops cascading
	readers      int   // inotify for reads of status; 0: status was read, or need not be
	seen         map[string]bool
	status       lane.Stats
}

// memoryDir is where kept files are between two daemons.
func (k *fakeDaemon) memoryDir() string { return k.dir + ".memory" }

// adopt takes the files that an earlier daemon kept. It then cascades slowly, after the first read
// of status, so that the bench sees a drain.
func (k *fakeDaemon) adopt() error {
	err := moveFiles(k.memoryDir(), k.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	k.perScan = 512 * kib
	if err == nil {
		err = k.watchReaders()
	}
	if k.diskDir != "" && os.Getenv(failDrainEnv) != "" {
		k.perScan, k.status.CascadeFailed = 0, 1
	}
	return errors.Join(err, os.Remove(k.memoryDir()))
}

// watchReaders begins to watch for reads of status.
func (k *fakeDaemon) watchReaders() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	k.readers = fd
	_, err = unix.InotifyAddWatch(fd, filepath.Join(k.dir, ".kvfs"), unix.IN_CLOSE_NOWRITE)
	return os.NewSyscallError("inotify_add_watch", err)
}

// unread reports whether status must still be read for the first time.
func (k *fakeDaemon) unread() bool {
	if k.readers == 0 {
		return false
	}
	if n, _ := unix.Read(k.readers, make([]byte, 4*kib)); n <= 0 { // It would block.
		return true
	}
	unix.Close(k.readers)
	k.readers = 0
	return false
}

// leave moves the files to where the next daemon finds them.
func (k *fakeDaemon) leave() error {
	err := os.RemoveAll(filepath.Join(k.dir, ".kvfs"))
	to := k.diskDir
	if k.keep {
		to = k.memoryDir()
		err = errors.Join(err, os.Mkdir(to, 0o755))
	}
	return errors.Join(err, moveFiles(k.dir, to))
}

func (k *fakeDaemon) serve(readyFD uint) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if err := os.MkdirAll(filepath.Join(k.dir, ".kvfs"), 0o755); err != nil {
		return err
	}
	if err := errors.Join(moveFiles(k.diskDir, k.dir), k.adopt()); err != nil {
		return err
	}
	if err := k.scan(); err != nil {
		return err
	}
	ready := os.NewFile(uintptr(readyFD), "ready")
	fmt.Fprintln(ready, "ready", k.dir)
	ready.Close()
	tick := time.NewTicker(20 * time.Millisecond) // Rests between: see awaitIdle.
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := k.scan(); err != nil {
				return err
			}
		case <-stop:
			return k.leave()
		}
	}
}

// moveFiles moves all entries. With to "" it removes them; with from "" there are none.
func moveFiles(from, to string) error {
	if from == "" {
		return nil
	}
	entries, err := os.ReadDir(from)
	for _, e := range entries {
		path := filepath.Join(from, e.Name())
		if to == "" {
			err = errors.Join(err, os.RemoveAll(path))
		} else {
			err = errors.Join(err, os.Rename(path, filepath.Join(to, e.Name())))
		}
	}
	return err
}

// scan counts new files as cascaded and, after an evict, all files as promoted.
func (k *fakeDaemon) scan() error {
	blocks, cascaded := 0, int64(0)
	if k.unread() {
		cascaded = k.perScan // it takes nothing
	}
	err := filepath.WalkDir(k.dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() && e.Name() == ".kvfs" {
			return filepath.SkipDir // only the bench opens files in there
		}
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".bin") {
			return nil // Removed meanwhile, or no block.
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		blocks++
		// Inodes are reused: the time distinguishes their files.
		version := fmt.Sprint(path, info.Sys().(*syscall.Stat_t).Ino, info.ModTime())
		if !k.seen[version] && cascaded < k.perScan {
			k.seen[version] = true
			cascaded += info.Size()
			k.status.Cascaded++
			k.status.CascadedBytes += uint64(info.Size())
		}
		return nil
	})
	if err != nil {
		return err
	}
	mark := filepath.Join(k.dir, ".kvfs", "evicted")
	_, noEvict := os.Stat(mark)
	if noEvict == nil {
		k.status.Promoted += uint64(blocks)
	}
	k.status.Blocks = int64(blocks)
	k.status.Detail = json.RawMessage(`{"devices": [{"recovery_seconds": 0.25}]}`)
	doc := map[string]any{"tiers": []any{map[string]any{"name": "memory", "used_bytes": 0}}}
	if k.diskDir != "" {
		doc["secondaries"] = []any{k.status}
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	temporary := filepath.Join(k.dir, ".kvfs", "status.tmp")
	if err := os.WriteFile(temporary, text, 0o644); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(k.dir, ".kvfs", "status")); err != nil || noEvict != nil {
		return err
	}
	return os.Remove(mark)
}
