package control

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestTraces gives requests of one mount a trace context: a collector gets a span of each, and of the load from the
// SSD that one of them causes. Requests without a trace context give none. A stop sends what is left.
func TestTraces(t *testing.T) {
	var mu sync.Mutex
	names := map[string][]string{} // by trace
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		must(t, "read", err)
		var got collector.ExportTraceServiceRequest
		must(t, "unmarshal", proto.Unmarshal(body, &got))
		mu.Lock()
		defer mu.Unlock()
		for _, of := range got.ResourceSpans {
			for _, s := range of.ScopeSpans[0].Spans {
				names[string(s.TraceId)] = append(names[string(s.TraceId)], s.Name)
			}
		}
	}))
	t.Cleanup(srv.Close)
	d := diskMount(t, harness.Options{Flags: []string{"--otlp", srv.URL}})
	keys := keysOf("g", hashes(8))
	coldBlocks(t, d, 64*kib, keys...)
	const context = "00-0123456789abcdef0123456789abcdef-b7ad6b7169203331-01"
	c, q := talk(t, d, "prefetch"), talk(t, d, "query")
	for _, name := range []string{"req-1", context} {
		q.exists(obj{"keys": keys, "request": name})
	}
	c.prefetch(obj{"keys": keys[:1], "request": "req-1"})
	c.prefetch(obj{"keys": keys[1:], "request": context})
	d.Stop()
	mu.Lock()
	defer mu.Unlock()
	got := names["\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef"]
	slices.Sort(got)
	if want := []string{"kvfs.exists", "kvfs.load", "kvfs.prefetch"}; len(names) != 1 || !slices.Equal(slices.Compact(got), want) {
		t.Errorf("traces %v, want one of %v", names, want)
	}
}
