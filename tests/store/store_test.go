package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestTwoMounts shows that two mounts of one owner have the same blocks, passed through by the
// kernel, and contribute nothing themselves (B1, B3, E16).
func TestTwoMounts(t *testing.T) {
	o := serve(t)
	a, b := o.Attach(), o.Attach()
	for i := range 8 {
		write(t, a, i)
		check(t, b, i)
		write(t, b, 100+i)
		check(t, a, 100+i)
	}
	for _, d := range []*harness.Daemon{a, b} {
		s := harness.StatusOf(t, d.Dir)
		m := s.Mount
		if s.PID != o.Pid || m.Dir != d.Dir || m.Mode != "standalone-store" || m.State != "serving" || m.PID != d.Pid || m.OwnerPID != o.Pid || m.Epoch != 1 {
			t.Errorf("status of %s: %+v", d.Dir, s)
		}
		if len(s.Tiers) != 1 || s.Tiers[0].CapacityBytes != 64<<20 || s.Tiers[0].Blocks != 16 {
			t.Errorf("tiers of %s: %+v", d.Dir, s.Tiers)
		}
		if m.ReadPath != "passthrough" {
			t.Errorf("read path of %s: %s", d.Dir, m.ReadPath)
		}
	}
	if s := statusOf(t, o); len(s.Store.Mounts) != 2 || s.Store.Socket != o.Socket || s.PID != o.Pid {
		t.Errorf("status of the owner: %+v", s)
	}
	must(t, os.Remove(a.Path("g", "0000")))
	harness.Poll(t, "a removed name is gone in the other mount", func() bool {
		_, err := os.Stat(b.Path("g", "0000"))
		return errors.Is(err, os.ErrNotExist)
	})
	if code := a.Stop(); code != 0 {
		t.Errorf("exit code %d of a mount that was stopped", code)
	}
	check(t, b, 1)
	harness.Poll(t, "the owner has one mount", func() bool { return len(statusOf(t, o).Store.Mounts) == 1 })
	if code := o.Stop(); code != 0 {
		t.Errorf("exit code %d of the owner", code)
	}
}

// TestOwnerKilled shows that mounts outlive their owner: operations wait for the next one,
// and files that are open are read meanwhile (B1).
func TestOwnerKilled(t *testing.T) {
	o := serve(t)
	mounts := []*harness.Daemon{o.Attach(patient...), o.Attach(patient...)}
	for i := range 8 {
		write(t, mounts[i%2], i)
	}
	var open []*os.File
	for i, d := range mounts {
		f, err := os.Open(d.Path("g", fmt.Sprintf("%04d", i)))
		must(t, err)
		defer f.Close()
		open = append(open, f)
	}
	for epoch := 2; epoch < 5; epoch++ {
		o.Kill()
		for i, f := range open {
			got := make([]byte, len(block(i)))
			if _, err := f.ReadAt(got, 0); err != nil || string(got) != string(block(i)) {
				t.Errorf("an open file without an owner: %v", err)
			}
		}
		done := make(chan error, 2*len(mounts))
		for i, d := range mounts {
			go func() { // ends when there is an owner
				_, err := os.Stat(d.Path("g", "0001"))
				done <- err
			}()
			go func() { // as above
				name := d.Path("g", fmt.Sprintf("new%d.%d", epoch, i))
				done <- os.WriteFile(name, block(i), 0o644)
			}()
		}
		o.Restart()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Errorf("an operation that waited for owner %d: %v", epoch, err)
			}
		}
		for _, d := range mounts {
			for i := range 8 {
				check(t, d, i)
			}
			if s := harness.StatusOf(t, d.Dir); s.Mount.OwnerPID != o.Pid || s.Mount.Epoch != epoch || s.Mount.PID != d.Pid {
				t.Errorf("status after owner %d: %+v", epoch, s.Mount)
			}
		}
		write(t, mounts[0], epoch*100)
		check(t, mounts[1], epoch*100)
	}
}

// TestOwnerKilledFull: where memory is full, and the kernel has the files of a killed owner open for a while, so that to
// evict them frees nothing, the next owner's loads and stores wait, and do not fail.
func TestOwnerKilledFull(t *testing.T) {
	const size, n = 4 << 20, 40
	o := serve(t, "--disk", "size=512MiB,path="+t.TempDir(), "--mount-lookup-lease", "0", "--mount-write-timeout", "60s")
	d := o.Attach(patient...)
	name := func(i int) string { return d.Path("g", fmt.Sprint(i)) }
	data := func(i int) []byte { return bytes.Repeat([]byte{byte(i), 1, 2, 3}, size/4) }
	store := func(i int) {
		t.Helper()
		if err := os.WriteFile(name(i), data(i), 0o644); err != nil {
			t.Errorf("store of %d: %v", i, err)
		}
	}
	must(t, os.Mkdir(d.Path("g"), 0o755))
	for i := range n {
		store(i)
	}
	for round := range 3 {
		var open []*os.File
		for i := range 8 { // half of memory
			f, err := os.Open(name(n - 1 - i))
			must(t, err)
			open = append(open, f)
		}
		o.Kill()
		o.Restart()
		for i := range n {
			got, err := os.ReadFile(name(i))
			if err != nil || !bytes.Equal(got, data(i)) {
				t.Errorf("round %d: load of %d: %d bytes, %v", round, i, len(got), err)
			}
			store(i)
		}
		for _, f := range open {
			f.Close()
		}
	}
}

// TestOwnerTimeout shows that operations fail clean when no owner comes within owner_timeout,
// that open files go on, and that all is well when one comes after all (B1).
func TestOwnerTimeout(t *testing.T) {
	o := serve(t)
	d := o.Attach("--store-owner-timeout", "200ms")
	write(t, d, 1)
	f, err := os.Open(d.Path("g", "0001"))
	must(t, err)
	defer f.Close()
	for round := range 2 {
		o.Kill()
		if _, err := os.Stat(d.Path("g", "0002")); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("stat: %v", err)
		}
		if _, err := os.Open(d.Path("g", "0001")); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("open: %v", err)
		}
		if err := os.Mkdir(d.Path("x"), 0o755); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("mkdir: %v", err)
		}
		got := make([]byte, len(block(1)))
		if _, err := f.ReadAt(got, 0); err != nil || string(got) != string(block(1)) {
			t.Errorf("the open file: %v", err)
		}
		o.Restart()
		harness.Poll(t, "the mount is served again", func() bool { return len(statusOf(t, o).Store.Mounts) == 1 })
		check(t, d, 1)
		write(t, d, 10+round)
		check(t, d, 10+round)
	}
}

// TestOwnerStops shows that an owner that is stopped and keeps its memory hands over to the
// next one as one that was killed does: an upgrade.
func TestOwnerStops(t *testing.T) {
	o := serve(t, "--memory-keep")
	d := o.Attach(patient...)
	write(t, d, 1)
	if code := o.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(o.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is there: %v", err)
	}
	o.Restart()
	check(t, d, 1)
	write(t, d, 2)
	check(t, d, 2)
}

// TestMountKilled shows that a mount process that dies takes along its own mount only, what
// it was writing is not committed, and its mount point can be used again (B1).
func TestMountKilled(t *testing.T) {
	o := serve(t)
	a, b := o.Attach(), o.Attach()
	write(t, a, 1)
	f, err := os.Create(a.Path("g", "unfinished"))
	must(t, err)
	defer f.Close()
	if _, err := f.Write(block(2)); err != nil {
		t.Fatal(err)
	}
	a.Kill()
	harness.Poll(t, "the owner has let go", func() bool { return len(statusOf(t, o).Store.Mounts) == 1 })
	check(t, b, 1)
	if _, err := os.Stat(b.Path("g", "unfinished")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a block that was never finished: %v", err)
	}
	if _, err := os.Stat(a.Path("g")); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("the dead mount: %v", err)
	}
	a.Restart()
	check(t, a, 1)
	write(t, a, 3)
	check(t, b, 3)
}

// TestUmount shows that kvfs umount ends a mount process cleanly whether it has an owner, waits
// for one, or answers with errors.
func TestUmount(t *testing.T) {
	for _, c := range []struct {
		name, timeout string
		kill          bool
		said          string // in the log, before the umount
	}{
		{"served", "30s", false, "mounted"},
		{"waiting", "300s", true, "waiting for an owner"},
		{"failing", "50ms", true, "operations on the mount fail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := serve(t)
			d := o.Attach("--store-owner-timeout", c.timeout)
			write(t, d, 1)
			if c.kill {
				o.Kill()
			}
			harness.Poll(t, c.said, func() bool { return strings.Contains(d.LastLog(), c.said) })
			if _, stderr, code := harness.Kvfs(t, "umount", d.Dir); code != 0 {
				t.Errorf("exit code %d, %s", code, stderr)
			}
			<-d.Exited()
			if d.ExitCode != 0 {
				t.Errorf("exit code %d of the mount process", d.ExitCode)
			}
			if len(harness.MountPoints(d.Dir)) > 0 {
				t.Error("still mounted")
			}
			if !c.kill {
				harness.Poll(t, "the owner has let go", func() bool { return len(statusOf(t, o).Store.Mounts) == 0 })
			}
		})
	}
}
