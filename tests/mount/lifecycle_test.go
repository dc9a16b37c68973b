package mount

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// wantUnmounted fails if anything is mounted at the mount point.
func wantUnmounted(t *testing.T, d *harness.Daemon) {
	t.Helper()
	if got := harness.MountPoints(d.Dir); len(got) != 0 {
		t.Errorf("still mounted: %q", got)
	}
}

// TestStop shows that SIGTERM unmounts, exits with 0 and gives the memory back, also while files are open.
func TestStop(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := harness.Mount(t, harness.Options{})
	store(t, d.Path("x"), pattern("x", 8*mib))
	open(t, d.Path("x"), unix.O_RDONLY, 0)
	w := open(t, d.Path("y"), unix.O_WRONLY|unix.O_CREAT, 0o644)
	w.write(pattern("y", mib))
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	w.closed = true
	unix.Close(w.fd) // may fail
	wantUnmounted(t, d)
	if got := harness.MountPoints(d.MemoryDir); len(got) != 0 {
		t.Errorf("the memory tier is still mounted: %q", got)
	}
	if left, err := os.ReadDir(d.MemoryDir); err == nil && len(left) != 0 {
		t.Errorf("left in the memory directory: %q", left)
	}
	d.Restart()
	wantAbsent(t, harness.Self(), d.Path("x"))
}

// TestKeep shows that --memory-keep leaves the blocks for the next start.
func TestKeep(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := harness.Mount(t, harness.Options{Flags: []string{"--memory-keep"}})
	mkdir(t, d.Path("group"))
	for i := range 20 {
		p := d.Path("group", fmt.Sprint(i))
		store(t, p, pattern(p, 300*kib))
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	wantUnmounted(t, d)
	d.Restart()
	for i := range 20 {
		p := d.Path("group", fmt.Sprint(i))
		wantBytes(t, p, pattern(p, 300*kib))
	}
}

// TestUmountCommand unmounts a live mount with kvfs umount. TestUmountStale of cmd/kvfs does so with a dead one.
func TestUmountCommand(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := harness.Mount(t, harness.Options{})
	stdout, stderr, code := harness.Kvfs(t, "umount", "--json", d.Dir)
	if code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if want := fmt.Sprintf("{\n  \"mount\": %q,\n  \"ending_pid\": 0\n}\n", d.Dir); stdout != want {
		t.Errorf("it prints %s, want %s", stdout, want)
	}
	wantUnmounted(t, d)
	harness.Poll(t, "the daemon has ended", func() bool { return !d.Running() })
	if d.ExitCode != 0 {
		t.Errorf("daemon's exit code: got %d, want 0", d.ExitCode)
	}
}

// TestStartSelfTest (A10): a mount that is ready has read what memory holds through the kernel, by each
// path, also after a crash. That leaves nothing in counters and listings. Only root may do it.
func TestStartSelfTest(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	for passthrough, paths := range map[string][]string{"auto": {"passthrough", "splice"}, "off": {"splice"}} {
		t.Run(passthrough, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{Flags: []string{"--memory-passthrough", passthrough}})
			check := func(blocks int64) {
				t.Helper()
				harness.Poll(t, "nothing of it is left", func() bool { return field(d.Status().Raw, []string{"mount", "backing_files"}) == 0.0 })
				s := d.Status()
				if !s.Mount.Tested || !slices.Contains(paths, s.Mount.ReadPath) || s.Tiers[0].Blocks != blocks {
					t.Errorf("%+v, %d blocks", s.Mount, s.Tiers[0].Blocks)
				}
				if n := field(s.Raw, []string{"counters", "opens"}); n != 0.0 {
					t.Errorf("%v opens", n)
				}
				if names := listNames(t, d.Path(".kvfs")); slices.Contains(names, "probe") {
					t.Errorf("names: %q", names)
				}
			}
			check(0)
			_, err := harness.NewActor(t, nobody).Open(d.Path(".kvfs", "probe"), unix.O_RDONLY, 0)
			wantErrno(t, "open by nobody", err, unix.EACCES)
			_, err = tryOpen(t, d.Path(".kvfs", "probe"), unix.O_WRONLY, 0)
			wantErrno(t, "open for writing", err, unix.EACCES)
			store(t, d.Path("x"), pattern("x", mib))
			d.Kill()
			d.Restart()
			check(1)
			wantBytes(t, d.Path("x"), pattern("x", mib))
		})
	}
}

// TestSplicePages reads ranges that touch one page more than their length says. Pipes count pages, and a pipe that
// was a page too small made such a read short. Each mount is new, because its pipes only grow.
func TestSplicePages(t *testing.T) {
	harness.KvfsOnly(t, "mount options")
	for slots := 16; slots <= 256; slots *= 2 {
		n := (slots-1)*4096 - 16
		for name, read := range map[string]int{"inside": n, "over the end": n + mib} {
			t.Run(fmt.Sprintf("%d pages, %s", slots, name), func(t *testing.T) {
				d := harness.Mount(t, harness.Options{Flags: []string{"--memory-passthrough", "off"}})
				want := pattern("x", 4095+n)
				store(t, d.Path("x"), want)
				f := open(t, d.Path("x"), unix.O_RDONLY, 0)
				for range 3 {
					sameBytes(t, "from 4095 on", f.pread(read, 4095), want[4095:])
				}
			})
		}
	}
}

// TestMatrix runs the main rows on mounts with other options: without
// passthrough, without kernel caches, on one processor, with each eviction
// order. With -short it runs them on the mount that differs most.
func TestMatrix(t *testing.T) {
	harness.KvfsOnly(t, "mount options")
	rows := slices.Concat(lookupRows, renameRows, openRows, rwRows, rawRows, mapRows, sizeRows, timeRows)
	mounts := []struct {
		name  string
		flags []string
		env   []string
	}{
		{"passthrough off", []string{"--memory-passthrough", "off"}, nil},
		{"no kernel caches, arc", []string{"--mount-entry-timeout", "0s", "--mount-attr-timeout", "0s", "--memory-policy", "arc"}, nil},
		{"one processor, s3fifo, no huge pages", []string{"--memory-policy", "s3fifo", "--memory-huge", "never"}, []string{"GOMAXPROCS=1"}},
		{
			"one processor, max_write 128 KiB, passthrough off", []string{"--mount-max-write", "128KiB", "--memory-passthrough", "off"},
			[]string{"GOMAXPROCS=1"},
		},
	}
	if testing.Short() {
		mounts = mounts[len(mounts)-1:]
	}
	for _, m := range mounts {
		t.Run(m.name, func(t *testing.T) {
			d := harness.Mount(t, harness.Options{MemorySize: "1GiB", Flags: m.flags, Env: m.env})
			runRows(t, d, rows)
		})
	}
}

// TestMountWhileEnding: a mount on the directory of a daemon that has not ended yet waits for it.
func TestMountWhileEnding(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	d := harness.Mount(t, harness.Options{Disk: "64MiB"})
	store(t, d.Path("block"), pattern("x", mib))
	file, err := os.Open(d.Path("block"))
	must(t, "open", err)
	defer file.Close()
	if _, errs, code := harness.Kvfs(t, "umount", "--lazy", d.Dir); code != 0 {
		t.Fatalf("umount: exit code %d: %s", code, errs)
	}
	next := exec.Command(harness.Binary(t), "mount", "--memory-dir", d.MemoryDir, "--memory-size=256MiB", "--disk", "path="+d.DiskDir+",size=64MiB", d.Dir)
	log, err := next.StderrPipe()
	must(t, "pipe", err)
	must(t, "start", next.Start())
	t.Cleanup(func() { next.Process.Kill() }) // if it has not ended
	said := false
	for lines := bufio.NewScanner(log); lines.Scan(); {
		switch {
		case strings.Contains(lines.Text(), "waiting for another kvfs process to end"):
			said = true
			file.Close()
		case strings.Contains(lines.Text(), "\tmounted\t"):
			if _, errs, code := harness.Kvfs(t, "umount", d.Dir); code != 0 {
				t.Errorf("umount: exit code %d: %s", code, errs)
			}
		}
	}
	if err := next.Wait(); err != nil || !said {
		t.Errorf("the second mount: %v; it has waited: %v", err, said)
	}
}

// TestFailedStartLeavesNothing: a start that fails takes away the tmpfs that it has made, and keeps one
// that an earlier daemon has left, with its blocks.
func TestFailedStartLeavesNothing(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, "write", os.WriteFile(plain, nil, 0o644))
	bad := []string{"--disk", "path=" + plain + ",size=64MiB"}
	fresh := harness.Mount(t, harness.Options{ExpectFail: true, Flags: bad})
	if points := harness.MountPoints(fresh.MemoryDir); len(points) != 0 {
		t.Errorf("still mounted: %q", points)
	}
	d := harness.Mount(t, harness.Options{})
	store(t, d.Path("block"), pattern("x", mib))
	d.Kill()
	d.RestartWith(harness.Options{ExpectFail: true, Flags: bad})
	d.RestartWith(harness.Options{})
	wantBytes(t, d.Path("block"), pattern("x", mib))
}
