package llama

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// places are the directories on which the engine has to work. The plain one is
// the control: what fails there is a fault of the test.
var places = []struct {
	name string
	open func(testing.TB) string
}{
	{"plain", func(tb testing.TB) string { return tb.TempDir() }},
	{"kvfs", openMount},
}

// openMount returns an empty directory on a new mount.
func openMount(tb testing.TB) string {
	tb.Helper()
	dir := harness.Mount(tb, harness.Options{}).Path("slots")
	if err := os.Mkdir(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// inEachPlace runs f with the engine and each of the directories.
func inEachPlace(t *testing.T, f func(t *testing.T, e *Engine, dir string)) {
	e := prepare(t)
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) { f(t, e, p.open(t)) })
	}
}

func prepare(t *testing.T) *Engine {
	t.Helper()
	e, skipReason := Prepare(t)
	if skipReason != "" {
		harness.Skip(t, "%s", skipReason)
	}
	return e
}

// TestLlamaSaveRestore shows that a state survives the directory: a process
// that has only the file generates the same tokens, with the same probabilities
// to the last bit, as the process that wrote the file and went on from memory.
// It does so in both ways in which the engine writes: in long pieces, and in
// many short ones.
func TestLlamaSaveRestore(t *testing.T) {
	inEachPlace(t, func(t *testing.T, e *Engine, dir string) {
		for _, tt := range []struct {
			name string
			e    *Engine
		}{
			{"flash", e},
			{"transposed", e.WithTransposedValues()},
		} {
			t.Run(tt.name, func(t *testing.T) {
				file := tt.name + ".bin"
				saved := tt.e.Save(t, dir, file)
				if len(saved.Context) != promptLength {
					t.Fatalf("state covers %d tokens, want %d", len(saved.Context), promptLength)
				}
				checkSize(t, filepath.Join(dir, file), saved.Bytes)
				if saved.Bytes < 1<<20 {
					t.Errorf("state file has %d bytes, want at least 1 MiB", saved.Bytes)
				}
				if d := Diff(tt.e.Restore(t, dir, file), saved); d != "" {
					t.Errorf("restored process differs: %s", d)
				}
			})
		}
	})
}

// checkSize fails t unless the file at path has the size that the engine says
// it wrote.
func checkSize(t *testing.T, path string, want int64) {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Size() != want {
		t.Fatalf("%s has %d bytes, want the %d that the engine wrote", path, fi.Size(), want)
	}
}
