package query

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/names"
)

// TestTraced shows of which requests a Service tells: of those with a traceparent for a name, in both forms, and of
// faulty ones too.
func TestTraced(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var got []string
	s, err := New(Options{
		Engine: &fakeEngine{blocks: map[string]names.Place{"g/aa": {Presence: driver.Hit}}}, Tiers: []string{"memory"},
		Traced: func(r Traced) {
			if r.Context != parent || r.Start.IsZero() || r.End.Before(r.Start) {
				t.Errorf("got %+v", r)
			}
			got = append(got, fmt.Sprintf("%s %d %v", r.Operation, r.Blocks, r.Err != nil))
		},
	})
	must(t, err)
	now := time.Unix(0, 0)
	s.now = func() time.Time { now = now.Add(time.Second); return now }
	for _, name := range []string{parent, "req-1", "01" + parent[2:]} {
		request := `"keys": ["g/aa", "g/bb"], "request": "` + name + `"}`
		s.Query(t.Context(), nil, []byte(`{"op": "exists", `+request), io.Discard)
		s.Query(t.Context(), nil, []byte(`{"op": "exists", "spec": "none", `+request), io.Discard)
		s.Query(t.Context(), nil, []byte(`{"op": "no such", `+request), io.Discard)
		s.Query(t.Context(), nil, []byte(`{"op": "release", "request": "`+name+`"}`), io.Discard)
		s.Query(t.Context(), nil, binaryForm{op: binaryExists, flags: binaryText, size: 2, count: 3, subject: "g", request: name, hashes: []byte("aabbcc")}.encode(), io.Discard)
		s.Prefetch(t.Context(), nil, []byte(`{`+request), io.Discard)
	}
	s.Prefetch(t.Context(), nil, []byte(`{"keys": ["g/aa"]}`), io.Discard)
	if want := "exists 2 false, exists 2 true, release 0 false, exists 3 false, prefetch 2 false"; strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
}
