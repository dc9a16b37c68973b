package daemon

import (
	"strings"
	"sync/atomic"
	"time"
)

// health is what a process tells about itself from its start to its end. Its methods may be called in parallel.
type health struct {
	step   atomic.Pointer[string] // what the start or the stop does now; nil: the daemon works
	daemon atomic.Pointer[daemon] // set when the start is over

	steps  *atomic.Int64 // counts calls of at; nil: nobody counts
	asking atomic.Int64  // calls of lacks that wait for the daemon
}

// at notes what the start or the stop does now.
func (h *health) at(step string) {
	h.step.Store(&step)
	if h.steps != nil {
		h.steps.Add(1)
	}
}

// works notes that the start is over.
func (h *health) works(d *daemon) {
	h.daemon.Store(d)
	h.step.Store(nil)
}

// Limits of lacks: it waits for the daemon for askTime, and no more than maxAsking calls do.
const (
	askTime   = 2 * time.Second
	maxAsking = 8
)

// lacks returns why the process is not ready, a line for each thing. It is empty if the process is ready.
func (h *health) lacks() []string {
	if step := h.step.Load(); step != nil {
		return []string{*step}
	}
	d := h.daemon.Load()
	if d == nil {
		return []string{"starting"}
	}
	hangs := []string{"daemon: does not answer"}
	if h.asking.Add(1) > maxAsking {
		h.asking.Add(-1)
		return hangs
	}
	got := make(chan []string, 1)
	go func() { // ends when the engine answers
		defer h.asking.Add(-1)
		st := d.engine.Stats()
		got <- d.unready(&st)
	}()
	t := time.NewTimer(askTime)
	defer t.Stop()
	select {
	case lines := <-got:
		return lines
	case <-t.C:
		return hangs
	}
}

// oneLine returns a text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
