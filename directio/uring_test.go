//go:build giouring

package directio

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

// openRing opens an io_uring engine or skips.
func openRing(t testing.TB, o Options) Engine {
	t.Helper()
	e, err := openUring(valid(o.withDefaults()))
	if err != nil {
		t.Skipf("no io_uring here: %v", err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

// TestStaleFlags alternates reads, writes and syncs in one slot of the ring: an entry
// that kept the flags of a sync would make the next read fail with EINVAL.
func TestStaleFlags(t *testing.T) {
	e := openRing(t, Options{Entries: 8})
	f, m := fileWith(t, "", make([]byte, 4096)), mem(t, 4096)
	for range 50 {
		for _, kind := range []Kind{Sync, Read, Sync, Write} {
			if _, err := one(e, Op{Kind: kind, File: f, Mem: m}); err != nil {
				t.Fatalf("%v: %v", kind, err)
			}
		}
	}
}

// TestUringLeavesNothing opens and closes engines, with work and without, and counts
// descriptors, mappings and threads' goroutines left behind.
func TestUringLeavesNothing(t *testing.T) {
	openRing(t, Options{})
	f, m := fileWith(t, "", make([]byte, 1<<20)), mem(t, 1<<20)
	count := func() (rings, goroutines int) {
		fds, err := filepath.Glob("/proc/self/fd/*")
		must(t, err)
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && (strings.Contains(to, "io_uring") || strings.Contains(to, "eventfd")) {
				rings++
			}
		}
		return rings, runtime.NumGoroutine()
	}
	rings, goroutines := count()
	for i := range 20 {
		e, err := openUring(valid(Options{}.withDefaults()))
		must(t, err)
		if i%2 == 0 {
			if _, err := one(e, Op{Kind: Read, File: f, Mem: m}); err != nil {
				t.Error(err)
			}
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { closeEngine(t, e) })
		}
		wg.Wait()
	}
	eventually(t, "nothing to be left", func() bool {
		r, g := count()
		return r <= rings && g <= goroutines
	})
}

// TestUringStuck shows that Close of a ring gives up with its context while an op is
// stuck, and ends later: the op reads from a file system of a process that waits, which
// is a pipe here.
func TestUringStuck(t *testing.T) {
	e, err := openUring(valid(Options{}.withDefaults()))
	if err != nil {
		t.Skipf("no io_uring here: %v", err)
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	m := mem(t, 4096)
	ops := []Op{{Kind: Read, File: &File{f: r, fd: int(r.Fd())}, Mem: m}}
	done := make(chan error, 1)
	go func() { done <- e.Do(context.Background(), ops) }()
	eventually(t, "the read to be stuck", func() bool { return e.Stuck() > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Close(ctx); !errors.Is(err, context.Canceled) || len(done) > 0 {
		t.Errorf("Close with a stuck op: %v, Do has returned: %v", err, len(done) > 0)
	}
	if _, err := w.Write(bytes.Repeat([]byte{7}, 4096)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || m[4095] != 7 {
		t.Errorf("the op in the end: %v, %d", err, m[4095])
	}
	closeEngine(t, e)
}

// TestExplain shows what likelyCause makes of errnos that have no other test.
func TestExplain(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.ENOMEM: "RLIMIT_MEMLOCK", unix.EMFILE: "RLIMIT_NOFILE", unix.EACCES: "seccomp",
	} {
		err := explain("io_uring_setup", errno)
		if why := likelyCause(err); !strings.Contains(why, want) || !errors.Is(err, errno) {
			t.Errorf("%v: %v (%s)", errno, err, why)
		}
	}
}

// TestAuto shows that auto is io_uring where that works, without a word.
func TestAuto(t *testing.T) {
	openRing(t, Options{})
	core, logs := observer.New(zapcore.DebugLevel)
	for _, engine := range []string{"", EngineAuto, EngineUring} {
		e, err := Open(t.Context(), Options{Engine: engine, Logger: zap.New(core)})
		must(t, err)
		closeEngine(t, e)
		if e.Name() != EngineUring || logs.Len() != 0 {
			t.Errorf("engine %q is %s, %v", engine, e.Name(), logs.All())
		}
	}
}
