package otlp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/fs/query"
	"github.com/kvfs/kvfs/tiers/lane"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	parent  = "00-" + traceID + "-b7ad6b7169203331-01"
)

// receive starts a collector. The function returns a line for each span that it has received.
func receive(t *testing.T) (url string, spans func() []string) {
	var mu sync.Mutex
	var lines []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var got collector.ExportTraceServiceRequest
		if err := errors.Join(err, proto.Unmarshal(body, &got)); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range got.ResourceSpans {
			for _, in := range of.ScopeSpans {
				for _, s := range in.Spans {
					line := fmt.Sprintf("%s %x/%x", s.Name, s.TraceId, s.ParentSpanId)
					for _, a := range s.Attributes {
						line += fmt.Sprintf(" %s=%s%d", a.Key, a.Value.GetStringValue(), a.Value.GetIntValue())
					}
					lines = append(lines, line+" "+time.Duration(s.EndTimeUnixNano-s.StartTimeUnixNano).String()+" "+s.Status.GetMessage())
				}
			}
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(lines)
		return lines
	}
}

func open(t *testing.T, url string, log *zap.Logger) *Exporter {
	t.Helper()
	e, err := Open(t.Context(), Options{Endpoint: url, Node: "n1", Version: "1.2.3", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestSpans shows which spans a collector gets: those of sampled requests, as children of the request's span.
func TestSpans(t *testing.T) {
	url, spans := receive(t)
	e := open(t, url, zap.NewNop())
	at := time.Unix(1800000000, 0)
	for _, name := range []string{parent, strings.TrimSuffix(parent, "1") + "0", "00-" + strings.Repeat("z", 52)} {
		e.Query(query.Traced{Context: name, Operation: "exists", Blocks: 3, Start: at, End: at.Add(5 * time.Millisecond)})
		e.Load(&lane.Batch{Tier: "disk", Request: name, Keys: 4, Success: 3, Bytes: 300, Took: time.Second})
	}
	e.Query(query.Traced{Context: parent, Operation: "longest_hit", Start: at, End: at, Err: errors.New("/spec: is missing")})
	e.Load(&lane.Batch{Tier: "disk", Request: "req-1", Keys: 4})
	e.Load(&lane.Batch{Tier: "disk", Keys: 4})
	e.Close()
	below := " " + traceID + "/b7ad6b7169203331 "
	want := []string{
		"kvfs.exists" + below + "kvfs.blocks=3 5ms ",
		"kvfs.load" + below + "kvfs.tier=disk0 kvfs.blocks=4 kvfs.loaded_blocks=3 kvfs.loaded_bytes=300 1s ",
		"kvfs.longest_hit" + below + "kvfs.blocks=0 0s /spec: is missing",
	}
	if got := spans(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSilentCollector shows that a collector that never answers stops nobody: what is told of spans returns, so does
// Close, and the log has one line.
func TestSilentCollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections by itself, and nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	core, lines := observer.New(zap.WarnLevel)
	e := open(t, "http://"+l.Addr().String(), zap.New(core))
	for range 10000 { // more than the exporter keeps
		e.Query(query.Traced{Context: parent, Operation: "exists"})
	}
	e.Close()
	if n := lines.FilterMessageSnippet("dropped").Len(); n != 1 {
		t.Errorf("%d lines in the log, want 1: %v", n, lines.All())
	}
}

// TestOff shows that no Exporter is one that does nothing.
func TestOff(t *testing.T) {
	var e *Exporter
	e.Query(query.Traced{Context: parent})
	e.Load(&lane.Batch{Request: parent})
	e.Close()
}
