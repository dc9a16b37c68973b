package page

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/reuse"
)

// Limits of the evictions that a Source tells one by one.
const (
	maxRecent = 40
	chunk     = 256 // events that it copies at a time while it holds up the writer of the log
)

// Source is what the numbers come from.
type Source struct {
	Config *config.Config // as requested
	Engine *tiers.Engine
	Began  time.Time // when the daemon started
	Log    *Log
	Status func() []byte // the status document

	next   uint64    // number of the first event that was not read yet; 0: none was
	recent []removal // newest last
}

type numbers struct {
	Time      time.Time       `json:"time"`
	Node      string          `json:"node"`
	Status    json.RawMessage `json:"status"`
	Memory    *estimate       `json:"memory"` // hit ratios of other sizes of memory
	SSD       *estimate       `json:"ssd"`    // of memory and SSD together
	Advise    bool            `json:"advise"` // the estimates are good for advice
	Evictions []evictions     `json:"evictions"`
	Recent    []removal       `json:"recent"` // newest first
	Log       []string        `json:"log"`    // newest first
	Settings  []setting       `json:"settings"`
}

// estimate has the hit ratios of caches of Scales times the present size.
type estimate struct {
	Scales []float64 `json:"scales"`
	Ratios []float64 `json:"ratios"` // nil: not known yet
	Asks   uint64    `json:"asks"`   // that it rests on
}

// evictions are how many blocks left a tier for one reason.
type evictions struct {
	Tier   string `json:"tier"`
	Rule   string `json:"rule"`
	Blocks uint64 `json:"blocks"`
}

// removal is one block that left a tier.
type removal struct {
	Time  time.Time `json:"time"`
	Name  string    `json:"name"` // escaped
	Tier  string    `json:"tier"`
	Rule  string    `json:"rule"`
	Bytes int64     `json:"bytes"`
}

// JSON returns the numbers. No two calls may run in parallel. It takes no I/O.
func (s *Source) JSON() []byte {
	st := s.Engine.Stats()
	n := numbers{
		Time: time.Now(), Node: show.Text(s.Config.NodeName), Status: s.Status(), Memory: estimateOf(&st.Reuse.Memory), SSD: estimateOf(st.Reuse.SSD),
		Settings: settings(s.Config), Advise: advisable(time.Since(s.Began), &st),
	}
	for of, blocks := range s.Engine.Events().Evictions() {
		n.Evictions = append(n.Evictions, evictions{of.Tier, of.Rule.String(), blocks})
	}
	slices.SortFunc(n.Evictions, func(a, b evictions) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(b.Blocks, a.Blocks), cmp.Compare(a.Rule, b.Rule))
	})
	s.follow(s.Engine.Events())
	n.Recent = slices.Clone(s.recent)
	slices.Reverse(n.Recent)
	for _, line := range s.Log.Lines() {
		n.Log = append(n.Log, show.Lines(line))
	}
	return status.JSON(&n)
}

// advisable reports whether a daemon has seen enough for advice on sizes: a day, or as many bytes evicted from memory as it
// holds and somebody who came back for one of them.
func advisable(uptime time.Duration, st *tiers.Stats) bool {
	returned := slices.ContainsFunc(st.Reuse.Back.N[:], func(n uint64) bool { return n > 0 })
	return uptime >= 24*time.Hour || returned && st.Counters.EvictedBytes >= uint64(st.CapacityBytes)
}

func estimateOf(e *reuse.Estimate) *estimate {
	if e == nil {
		return nil
	}
	known := &estimate{Scales: reuse.Scales[:], Asks: e.Asks}
	if e.Valid {
		known.Ratios = e.Ratio[:]
	}
	return known
}

func (s *Source) follow(log *event.Log) {
	end := log.Next()
	s.next = max(s.next, 1)
	buf := make([]event.Event, chunk)
	for s.next < end {
		n, _, err := log.Read(context.Background(), s.next, buf) // begins with the oldest there is, and does not wait before end
		if err != nil {
			return // closed
		}
		s.next = buf[n-1].Seq + 1
		for _, e := range buf[:n] {
			if e.Kind == event.Evicted {
				s.recent = append(s.recent, removal{e.Time, show.Text(e.Key.Path()), e.Tier, e.Reason.String(), e.Size})
			}
		}
		s.recent = slices.Delete(s.recent, 0, max(0, len(s.recent)-maxRecent))
	}
}

type setting struct {
	Path   string `json:"path"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

func settings(c *config.Config) (list []setting) {
	for _, v := range config.Public(c) {
		list = append(list, setting{show.Lines(v.Path), show.Lines(v.Text), show.Lines(v.Origin)})
	}
	return list
}
