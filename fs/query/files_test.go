package query

import (
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/names"
)

// TestHints shows that what is to be promoted is told in few calls and in order, and that the engine
// is not given too much at a time, neither of many short paths nor of long ones.
func TestHints(t *testing.T) {
	const n = maxFiles + 10
	hashes := hashList(n)
	long := strings.Repeat("d", 200) + "/" + strings.Repeat("e", 200) + "/"
	s, e := newService(t, nil)
	for _, prefix := range []string{"g/", long} {
		e.blocks = map[string]names.Place{}
		for _, h := range hashes {
			e.blocks[prefix+h] = onDisk
		}
		e.mu.hinted, e.mu.hints = nil, 0
		ask(t, s, `{"op": "exists", "promote": true, "template": "`+prefix+`{hash}", "hashes": `+list(hashes)+`}`)
		if len(e.mu.hinted) != n || e.mu.hints != 2 {
			t.Fatalf("%d hinted in %d calls", len(e.mu.hinted), e.mu.hints)
		}
		for i, path := range e.mu.hinted {
			if path != prefix+hashes[i] {
				t.Fatalf("%s at position %d", path, i)
			}
		}
	}
}
