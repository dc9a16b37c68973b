package tiers_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// contents reads every committed file, without those that have temporary names.
func (w *world) contents(dir string, all map[string][]byte) map[string][]byte {
	w.t.Helper()
	names, err := w.names(990, dir)
	must(w.t, err)
	for _, n := range names {
		p := strings.TrimPrefix(dir+"/"+n, "/")
		switch a, err := w.e.Resolve(context.Background(), p); {
		case err != nil || strings.Contains(n, ".tmp"):
		case a.Mode&0o170000 == 0o040000:
			w.contents(p, all)
		default:
			data, err := w.get(990, p)
			if err != nil {
				w.t.Errorf("%s: %v", p, err)
			}
			all[p] = data
		}
	}
	return all
}

// TestStormRestart: after a storm the engine is closed, or dies, or dies with its
// memory, and the next one has every block again, bytes and all: what only memory had
// if that is there still, and what was copied down in any case (A11).
func TestStormRestart(t *testing.T) {
	seed := seed(t)
	for i, end := range []string{"close", "crash", "memory gone"} {
		t.Run(end, func(t *testing.T) {
			dir := shmDir(t)
			disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Latency: time.Millisecond, Clock: jitter{}, OnJob: checkJob})
			var clock aheadClock
			o := state.Options{CapacityBytes: 32 * page, WriteTimeout: 20 * time.Millisecond, Now: clock.now}
			s := newStorm(openLower(t, dir, o, disk))
			s.blow(seed + uint64(i))
			clock.add(24 * time.Hour) // temporary files, of which memory may be full, go
			s.e.Expire()
			s.quiesce()
			want := s.contents("", map[string][]byte{})
			s.quiesce() // what reading has evicted was copied before
			if end != "close" {
				s.crash()
				must(t, disk.Close(context.Background()))
			} else {
				s.close(true)
			}
			again := disk.Reopen()
			if end == "memory gone" {
				must(t, os.RemoveAll(dir+"/s"))
			}
			next := openLower(t, dir, o, again)
			next.quiesce()
			got := next.contents("", map[string][]byte{})
			for name, data := range want {
				if !bytes.Equal(got[name], data) {
					t.Errorf("%s: %d bytes after the restart, %d before", name, len(got[name]), len(data))
				}
				delete(got, name)
			}
			for name := range got {
				t.Errorf("%s is there after the restart, but was not before", name)
			}
			next.end()
		})
	}
}
