package control

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
)

// TestKilledClient kills processes while they wait for an answer. The daemon cancels their requests and serves other
// processes.
func TestKilledClient(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{})
	keys := keysOf("g", hashes(40))
	coldBlocks(t, d, 256*kib, keys...)
	request, err := json.Marshal(obj{"keys": keys, "request": "req-killed"})
	must(t, "request", err)
	g.Hold()
	var killed []*askingProcess
	for range 3 {
		killed = append(killed, startAsker(t, d.Path(".kvfs/prefetch"), string(request)))
	}
	killed = append(killed, startAsker(t, d.Path(".kvfs/events"), `{"since":0}`))
	g.Await(t)
	for _, p := range killed {
		p.Kill()
	}
	c := talk(t, d, "query")
	put(t, d.Path("g/other"), []byte("x"))
	wantStates(t, c, "m", "g/other")
	g.Release()
	noneLeft(t, d)
	got := talk(t, d, "prefetch").prefetch(obj{"keys": keys})
	if strings.Trim(got.Results, "ml") != "" || len(got.Results) != len(keys) {
		t.Errorf("prefetch after it: %q", got.Results)
	}
}
