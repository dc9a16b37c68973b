// Package examples runs the programs of docs/examples: kvfs with one more type of tier, and a router.
package examples

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	os.Exit(harness.Main(m))
}

// typesFile is the one file of kvfs that names its types of tiers, and what is added to it.
const typesFile = "cmd/kvfs/types.go"

var added = []struct{ before, more string }{
	{"\t\"github.com/kvfs/kvfs/tiers/driver\"\n", "\tfiles \"github.com/kvfs/kvfs/docs/examples/tier\"\n"},
	{"\t)\n}\n", "\t\tr.Register(\"files\", func() driver.Opener { return &files.Options{} }),\n"},
}

// program builds kvfs with the type files, as the author of another type of tier would.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(harness.Root(t), typesFile)
	text, err := os.ReadFile(path)
	must(t, err)
	for _, a := range added {
		if n := bytes.Count(text, []byte(a.before)); n != 1 {
			t.Fatalf("%s has %q %d times, want once", typesFile, a.before, n)
		}
		text = bytes.Replace(text, []byte(a.before), []byte(a.more+a.before), 1)
	}
	dir := t.TempDir()
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(dir, "types.go")}})
	must(t, err)
	for name, b := range map[string][]byte{"types.go": text, "overlay.json": overlay} {
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	return harness.Build(t, "-overlay", filepath.Join(dir, "overlay.json"))
}

// TestAddedTier mounts such a program. Blocks cascade to its tier, memory evicts them, and a read promotes them with
// the same bytes. With a disk they are in both tiers, in the order of the list. Errors in the list are reported, with
// the types that there are (A1, A35).
func TestAddedTier(t *testing.T) {
	harness.KvfsOnly(t, "tiers")
	bin := program(t)
	t.Run("refused", func(t *testing.T) { refused(t, bin) })
	t.Run("alone", func(t *testing.T) {
		flow(t, harness.Options{Binary: bin}, "{type: memory}, {type: files, name: cold, root: %q, cascade_queue: 64MiB}", "cold")
	})
	t.Run("above a disk", func(t *testing.T) {
		flow(t, harness.Options{Binary: bin, Disk: "256MiB"}, "{type: files, root: %q, cascade_queue: 64MiB}, {type: disk}", "files", "disk")
	})
}

// flow stores more than memory holds, and reads it all. below are the tiers below memory, of which the
// first is of type files. Their queues have room for all, so that no block leaves memory before it is in
// each of them.
func flow(t *testing.T, o harness.Options, list string, below ...string) {
	root := t.TempDir()
	o.MemorySize = "32MiB"
	o.Config = "tiers: [" + fmt.Sprintf(list, root) + "]\nmount: {write_timeout: 60s}\ndisk: {cascade_queue: 64MiB}\n"
	d := harness.Mount(t, o)
	rng := rand.New(rand.NewPCG(1, 35))
	blocks := map[string][]byte{}
	for i := range 48 {
		data := make([]byte, 1<<20+rng.IntN(8192)-4096)
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		path := d.Path("g", fmt.Sprintf("%064x", i))
		blocks[path] = data
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o600))
	}
	nonresident := 0
	for path := range blocks {
		harness.Poll(t, filepath.Base(path)+" is in all tiers below", func() bool {
			in := strings.TrimPrefix(tiersOf(path), "memory,")
			return in == strings.Join(below, ",")
		})
		if !strings.HasPrefix(tiersOf(path), "memory") {
			nonresident++
		}
	}
	if nonresident < 8 {
		t.Errorf("%d blocks left memory, want 8 at least", nonresident)
	}
	if found, err := filepath.Glob(filepath.Join(root, "*", "*")); err != nil || len(found) != len(blocks) {
		t.Errorf("the directory has %d files, %v, want %d", len(found), err, len(blocks))
	}
	for path, want := range blocks {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v, want the %d that were written", path, len(got), err, len(want))
		}
	}
	s := d.Status()
	if got := s.Secondary(t, below[0]); got.Cascaded != 48 || got.Promoted < uint64(nonresident) || got.PromoteFailed+got.PromoteCorrupt+got.CascadeFailed > 0 {
		t.Errorf("the tier says %+v, want 48 cascaded and %d promoted", got, nonresident)
	}
	want := append([]string{"memory"}, below...)
	for i, tier := range s.Tiers {
		if kind := []string{"memory", "files", "disk"}[i]; tier.Name != want[i] || tier.Type != kind || tier.State != "online" {
			t.Errorf("tier %d is %+v, want %s of type %s", i, tier, want[i], kind)
		}
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("the tier was not closed: %v, %v", left, err)
	}
}

// tiersOf returns the names of the tiers that hold a block, fastest first, or "".
func tiersOf(path string) string {
	buf := make([]byte, 64)
	n, err := unix.Getxattr(path, "user.kvfs.tier", buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// refused shows the answer of kvfs config check, and that a tier that cannot be opened ends the daemon.
func refused(t *testing.T, bin string) {
	environ := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "KVFS_") })
	for list, want := range map[string]string{
		"{root: /r}":                       "tiers[0].type: it is missing; one of disk, files, memory, object, peer\n",
		"{type: flies, root: /r}":          `tiers[0].type: unknown value "flies"; one of disk, files, memory, object, peer` + "\n",
		"{type: files, rot: /r, root: /s}": `unknown key "tiers[0].rot"; did you mean "tiers[0].root"?` + "\n",
		"{type: files}":                    "tiers[0]: root is missing\n",
	} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		must(t, os.WriteFile(file, []byte("tiers: ["+list+"]\n"), 0o600))
		cmd := exec.CommandContext(t.Context(), bin, "config", "check", file)
		var stderr bytes.Buffer
		cmd.Env, cmd.Stderr = environ, &stderr
		if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 3 || stderr.String() != "kvfs: "+file+":1: "+want {
			t.Errorf("%s: %v, %q, want exit code 3 and %q", list, err, stderr.String(), want)
		}
	}
	d := harness.Mount(t, harness.Options{Binary: bin, ExpectFail: true, Config: "tiers: [{type: files, root: /dev/null/x}]\n"})
	if log := d.Log(); d.ExitCode != 1 || !strings.Contains(log, "kvfs: files tier: mkdir /dev/null: not a directory") {
		t.Errorf("exit code %d\n%s", d.ExitCode, log)
	}
}
