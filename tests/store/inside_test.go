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
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	endpoint := "ipc://" + filepath.Join(dir, "events")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/nowhere", link); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--mode", "standalone-store", "--store-owner-timeout", "3s"}
	attach := func(o *owner) (string, int) {
		_, said, code := harness.Kvfs(t, append(append([]string{"mount", "--store-socket", o.socket}, flags...), dir)...)
		return said, code
	}
	o := serve(t, "--events-zmq-connect", endpoint)
	if said, code := attach(o); code != 4 || !strings.Contains(said, "events.zmq.connect") || !strings.Contains(said, "wait for itself") {
		t.Errorf("attach: exit code %d\n%s", code, said)
	}
	if len(harness.MountPoints(dir)) > 0 {
		t.Error("still mounted")
	}
	o.stop()

	o = serve(t)
	d := o.mount()
	o.stop()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(d.Dir, "token"), link); err != nil {
		t.Fatal(err)
	}
	before := o.flags
	o.flags = append(o.flags[:len(o.flags):len(o.flags)], "--http", "127.0.0.1:0", "--http-token-file", link)
	if line, err := o.launch(); err == nil {
		t.Errorf("an owner started: %s", line)
	}
	<-o.exited
	if code := o.cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(o.log(), "wait for itself") {
		t.Errorf("exit code %d\n%s", code, o.log())
	}
	o.flags = before
	o.start()
	write(t, d, 1)
	check(t, d, 1)
}
