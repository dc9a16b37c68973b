package top

import (
	"context"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/cmd/kvfs/watch"
	"github.com/kvfs/kvfs/tiers/latency"
)

// Frame is what the view shows at one moment.
type Frame struct {
	Doc      *status.Document
	Rates    *watch.Rates              // since the last frame; nil for the first
	Requests map[string]latency.Counts // of the kernel, since the last frame, by FUSE operation
	Events   []string                  // the last ones, the oldest first
	EventErr error                     // why there are none
}

// shownEvents is how many events a frame has, and eventsWait how long they may take.
const (
	shownEvents = 8
	eventsWait  = time.Second
)

// Reader reads the frames of a mount, one at a time.
type Reader struct {
	Dir     string
	Connect client.Connector

	earlier *watch.Sample
	pages   map[string]latency.Counts // all requests until the last frame
	events  []string
	next    uint64 // number of the event after events
}

// Next returns the present frame. It fails as watch.Of does. Latencies and events may be missing.
func (r *Reader) Next(ctx context.Context) (*Frame, error) {
	now, err := watch.Of(r.Dir)()
	if err != nil {
		return nil, err
	}
	f := &Frame{Doc: now.Doc}
	if r.earlier != nil {
		rates := watch.Between(r.earlier, now)
		f.Rates = &rates
	}
	r.earlier = now
	f.Requests = r.requests()
	f.EventErr = r.readEvents(ctx, now.Doc)
	f.Events = r.events
	return f, nil
}

// requests returns the requests since the last frame.
func (r *Reader) requests() map[string]latency.Counts {
	page, err := client.Read(r.Dir, "metrics", mounts.Timeout)
	if err != nil {
		return nil // an older daemon
	}
	all, err := metrics.Durations(page, metrics.RequestDurations)
	if err != nil {
		return nil
	}
	since := map[string]latency.Counts{}
	for op, c := range all {
		if before, ok := r.pages[op]; ok || r.pages != nil {
			since[op] = c.Since(&before)
		}
	}
	r.pages = all
	return since
}

// readEvents reads the last events if there are new ones.
func (r *Reader) readEvents(ctx context.Context, doc *status.Document) error {
	if doc.Events == nil || doc.Events.Next == r.next {
		return nil
	}
	c, err := r.Connect()
	if err != nil {
		return err
	}
	mount, err := c.Root(r.Dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, eventsWait)
	defer cancel()
	events, err := blocks.Recent(ctx, c, mount, doc.Events.Next, shownEvents)
	if err == nil {
		r.events, r.next = events, doc.Events.Next
	}
	return err
}
