package run

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// ownerOptions has runs start an owner in a cluster of one, at a socket of the test, if none serves there.
func ownerOptions(t *testing.T) (o options, socket string) {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.Skip(t, "needs root, to mount without fusermount3")
	}
	dir := resolved(t, t.TempDir())
	socket = filepath.Join(dir, "run", "store.sock")
	shm, err := harness.MemoryDir("run")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(shm)) })
	memory := filepath.Join(shm, "memory") // what the owner keeps lies beside it
	file := filepath.Join(dir, "owner.yaml")
	must(t, os.WriteFile(file, []byte("{memory: {size: 64MiB, dir: "+memory+"}, bind: '127.0.0.1:0', node_name: owner-1}"), 0o644))
	return options{plain: true, flags: []string{"--mode", "standalone-store", "--store-socket", socket, "--owner-config", file}}, socket
}

// ownerOf returns the process of the owner at a socket, 0 if there is none.
func ownerOf(t *testing.T, socket string) int {
	t.Helper()
	out, _, code := harness.Kvfs(t, "status", "--store", socket)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); code == 0 && len(f) == 2 && f[0] == "pid" {
			pid, err := strconv.Atoi(f[1])
			must(t, err)
			return pid
		}
	}
	return 0
}

// TestOwner shows that a run starts the owner where none serves, that the command has its socket and its
// name, that a second run uses the owner and leaves it, and that it ends with the run that has started it,
// also if that is killed (E3, B9, F2).
func TestOwner(t *testing.T) {
	o, socket := ownerOptions(t)
	first := start(t, o, "sh", "-c", `mkdir "$KVFS_MOUNT/g" && echo block >"$KVFS_MOUNT/g/b" && echo "$KVFS_SOCKET $KVFS_PREFERRED_SEGMENT" && read -r line`)
	first.wantLine(socket + " owner-1")
	owner := ownerOf(t, socket)
	if owner == 0 {
		t.Fatal("nobody serves")
	}
	other := o
	other.env = []string{"KVFS_PREFERRED_SEGMENT=mine"}
	out := start(t, other, "sh", "-c", `cat "$KVFS_MOUNT/g/b" && echo "$KVFS_PREFERRED_SEGMENT"`).wantCode(0)
	if out != "block\nmine\n" {
		t.Errorf("a second run: got %q", out)
	}
	if now := ownerOf(t, socket); now != owner {
		t.Errorf("owner after the second run: %d, want %d", now, owner)
	}
	first.say("end")
	first.wantCode(0)
	if pid := ownerOf(t, socket); pid != 0 {
		t.Errorf("the owner %d outlives its run", pid)
	}

	killed := start(t, o, "sh", "-c", `echo ready && read -r line`)
	killed.wantLine("ready")
	killed.signal(unix.SIGKILL)
	harness.Poll(t, "the owner ends", func() bool { return ownerOf(t, socket) == 0 })
}

// TestOwnersAtOnce shows that of several runs that find no owner one starts it, and all use it (F2).
func TestOwnersAtOnce(t *testing.T) {
	o, socket := ownerOptions(t)
	var runs []*launcher
	for range 3 {
		runs = append(runs, start(t, o, "sh", "-c", `[ -d "$KVFS_MOUNT/.kvfs" ] && echo ready && read -r line`))
	}
	for _, l := range runs {
		l.wantLine("ready")
	}
	if ownerOf(t, socket) == 0 {
		t.Error("nobody serves")
	}
	for _, l := range runs {
		l.say("end")
	}
	for _, l := range runs {
		l.wantCode(0)
	}
}

// TestOwnerRefused shows that a file that makes no sense, or is not for this mode, fails before anything is started.
func TestOwnerRefused(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	must(t, os.WriteFile(bad, []byte("memory: {size: -1}"), 0o644))
	for _, c := range []struct {
		flags []string
		code  int
		want  string
	}{
		{[]string{"--owner-config", bad}, 2, "--owner-config is for --mode standalone-store"},
		{[]string{"--mode", "standalone-store", "--owner-config", bad}, 3, "memory.size"},
		{[]string{"--mode", "standalone-store", "--owner-config", bad + "x"}, 3, "no such file"},
	} {
		l := start(t, options{plain: true, flags: c.flags}, "true")
		l.wantCode(c.code)
		if !strings.Contains(l.stderr.String(), c.want) {
			t.Errorf("%q: no %q in %s", c.flags, c.want, l.stderr.String())
		}
	}
}
