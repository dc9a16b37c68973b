package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
)

// TestGravesKept shows that what a node knows of removals is known to its next process, also if
// it ends without Close: that is told of them, and so are peers that were away.
func TestGravesKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "graves")
	keep := func(o *Options) { o.GraveFile = file }
	a := start(t, "a", keep)
	const removed = 50
	seq := uint64(time.Now().UnixNano())
	for i := range removed {
		a.put(fmt.Sprintf("g/%d", i), seq, pattern(i, 10))
		a.remove(fmt.Sprintf("g/%d", i), seq+1)
	}
	var killed []byte // the file as somebody finds it who comes after a kill
	eventually(t, "all are in the file", func() bool {
		killed, _ = os.ReadFile(file)
		return strings.Contains(string(killed), fmt.Sprintf("g/%d", removed-1))
	})
	a.Node.Close()
	closed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, content := range map[string][]byte{
		"killed": killed, "closed": closed, "killed while it wrote": append(closed[:len(closed):len(closed)], 40, 0, 0, 0, 1, 2),
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
			c := start(t, "c", nil) // has all of it still
			for i := range removed {
				c.put(fmt.Sprintf("g/%d", i), seq, pattern(i, 10))
			}
			next := start(t, "a", keep, c)
			if got := next.index.Stats().Graves; got != removed {
				t.Errorf("%d graves, want %d", got, removed)
			}
			if next.buriedSeq("g/7") != seq+1 || next.observedSeq() != seq+1 {
				t.Errorf("the backend was told of %d, and of version %d, want %d", next.buriedSeq("g/7"), next.observedSeq(), seq+1)
			}
			eventually(t, "the other one drops them", func() bool {
				return c.buriedSeq("g/0") == seq+1 && c.buriedSeq(fmt.Sprintf("g/%d", removed-1)) == seq+1
			})
			next.remove("g/new", seq+2)
			next.Node.Close()
			again := start(t, "a", keep)
			if again.index.Buried(location.HashPath("g/new")) != seq+2 {
				t.Error("what came after is not in the file")
			}
			again.Node.Close()
			c.Node.Close()
		})
	}
	if err := os.WriteFile(file, []byte("something else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := start(t, "a", keep)
	if other.logs.FilterMessageSnippet("file of removals cannot be used").Len() != 1 {
		t.Error("no warning of a file that is none of graves")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "something else\n" {
		t.Errorf("it was written to: %q, %v", b, err)
	}
}
