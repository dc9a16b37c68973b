package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestOwnerInside shows that no path of an owner leads into a mount: not into one that attaches, and not into one that waits
// for the next owner.
func TestOwnerInside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mnt")
	must(t, os.Mkdir(dir, 0o755))
	endpoint := "ipc://" + filepath.Join(dir, "events")
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink("/nowhere", link))
	flags := []string{"--mode", "standalone-store", "--store-owner-timeout", "3s"}
	attach := func(o *harness.Daemon) (string, int) {
		_, said, code := harness.Kvfs(t, append(append([]string{"mount", "--store-socket", o.Socket}, flags...), dir)...)
		return said, code
	}
	o := serve(t, "--events-zmq-connect", endpoint)
	if said, code := attach(o); code != 4 || !strings.Contains(said, "events.zmq.connect") || !strings.Contains(said, "wait for itself") {
		t.Errorf("attach: exit code %d\n%s", code, said)
	}
	if len(harness.MountPoints(dir)) > 0 {
		t.Error("still mounted")
	}
	o.Stop()

	o = serve(t)
	d := o.Attach()
	o.Stop()
	must(t, os.Remove(link))
	must(t, os.Symlink(filepath.Join(d.Dir, "token"), link))
	o.RestartWith(harness.Options{
		MemorySize: "64MiB", Flags: []string{"--http", "127.0.0.1:0", "--http-token-file", link}, ExpectFail: true,
	})
	if o.ExitCode != 3 || !strings.Contains(o.LastLog(), "wait for itself") {
		t.Errorf("exit code %d\n%s", o.ExitCode, o.LastLog())
	}
	o.RestartWith(harness.Options{MemorySize: "64MiB"})
	write(t, d, 1)
	check(t, d, 1)
}
