package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/publish"
)

// roleEnv makes this program a child of itself. It has the role as JSON.
const roleEnv = "BENCH_ROLE"

const eventsTopic = "kv-events"

// The roles.
const (
	engineRole    = "engine"
	followRole    = "follow"
	subscribeRole = "subscribe"
)

// role is the task of a child.
type role struct {
	Name        string
	Mount       string // of the engine: the mount point
	Memory      string // and the directory of its memory tier
	MemoryBytes int64
	Rate        int    // events a second
	Path        string // of an audience: the file, or the address; of a node: its IP address
	Count       int    // and how many there are
}

// childArgs returns the command line of a child with a role.
func childArgs(r role) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(r)
	// A server has the environment of this program; env(1) adds to it and becomes the child.
	return []string{"env", roleEnv + "=" + string(text), self, "-test.run=^TestRole$"}, err
}

// play runs a child.
func play(text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	switch r.Name {
	case engineRole:
		return playEngine(r)
	case followRole, subscribeRole:
		return playAudience(r, os.Stdin, os.Stdout)
	case rdmaRole:
		runtime.UnlockOSThread() // See init: it starts no children.
		return playRDMA(r, os.Stdin, os.Stdout)
	}
	return fmt.Errorf("no role %q", r.Name)
}

// engineProcess is an engine with a mount, whose log gets events from a source as well.
type engineProcess struct {
	engine *tiers.Engine
	lines  *publish.Lines
	made   atomic.Int64 // events by the source

	mu struct {
		sync.Mutex
		publisher *publish.Publisher // nil: nothing is published
	}
}

// playEngine serves until SIGTERM. It reports on descriptor 3 that it is ready.
func playEngine(r role) (err error) {
	runtime.UnlockOSThread() // See init: it starts no children.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	memory, err := mem.Open(ctx, mem.Options{ID: "bench-events", Dir: r.Memory, SizeBytes: r.MemoryBytes})
	if err != nil {
		return err
	}
	hooks := &fs.Hooks{}
	p := &engineProcess{}
	p.engine, err = tiers.Open(ctx, tiers.Options{
		Primary: memory, CapacityBytes: r.MemoryBytes, HeadroomBytes: r.MemoryBytes / 8, LookupLease: -1,
		Alive: hooks.Alive, Invalidate: hooks.Invalidate, Dropped: hooks.Dropped,
	})
	if err != nil {
		return errors.Join(err, memory.Close(false))
	}
	defer func() { err = errors.Join(err, p.engine.Close(context.Background(), false)) }()
	p.lines = publish.NewLines(p.engine.Events())
	defer p.lines.Close()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.endPublisherLocked()
	}()
	server, err := fs.Mount(p.engine, hooks, fs.Options{
		Dir: r.Mount, EntryTimeout: time.Minute, AttrTimeout: time.Minute,
		Status: func() []byte { return []byte("{}\n") },
		Control: []control.File{
			{Name: "events", Open: p.follow, Stream: true},
			{Name: "bench", Open: control.Same(control.StreamJSON(p.control))},
		},
	})
	if err != nil {
		return err
	}
	var source sync.WaitGroup
	defer source.Wait()
	source.Go(func() { p.source(ctx, r.Rate) }) // ends with ctx
	ready := os.NewFile(3, "ready")
	fmt.Fprintln(ready, "ready")
	ready.Close()
	<-ctx.Done()
	err = server.Unmount()
	server.Wait()
	return err
}

// follow answers .kvfs/events from the open on, like the daemon.
func (p *engineProcess) follow(*event.Viewer) control.Dialogue {
	next := p.engine.Events().Next()
	return control.StreamJSON(func(ctx context.Context, _ struct{}, answer io.Writer) error {
		f, err := p.lines.Follow(publish.Filter{Since: next})
		if err != nil {
			return err
		}
		defer f.Close()
		buf := make([]byte, 64*kib)
		for {
			n, err := f.Read(ctx, buf)
			if err == nil {
				_, err = answer.Write(buf[:n])
			}
			if err != nil {
				return nil // the reader has gone, or the mount
			}
		}
	})
}

// engineCounts are totals.
type engineCounts struct {
	Endpoint  string // of the publisher; empty: there is none
	Made      int64  // events by the source
	Messages  int64  // of ZeroMQ
	Published int64  // events in them
	Dropped   int64  // messages that a subscriber missed, and gaps of the publisher
}

// engineQuestion is a request to .kvfs/bench.
type engineQuestion struct {
	Publish *bool // begin or end to publish; absent: leave it as it is
}

// control carries out a request and answers with counts.
func (p *engineProcess) control(ctx context.Context, q engineQuestion, answer io.Writer) error {
	p.mu.Lock() // also while sockets open and close: there is no other caller
	defer p.mu.Unlock()
	if q.Publish != nil {
		p.endPublisherLocked()
	}
	if q.Publish != nil && *q.Publish {
		var err error
		p.mu.publisher, err = publish.Open(ctx, publish.Options{
			Log: p.engine.Events(), Bind: "tcp://127.0.0.1:0", Topic: eventsTopic, Snapshot: p.engine.Blocks,
		})
		if err != nil {
			return err
		}
	}
	counts := engineCounts{Made: p.made.Load()}
	if p.mu.publisher != nil {
		s := p.mu.publisher.Stats()
		counts.Endpoint, counts.Messages, counts.Published = s.Endpoint, int64(s.Messages), int64(s.Events)
		counts.Dropped = int64(s.Dropped + s.Gaps)
	}
	return json.NewEncoder(answer).Encode(counts)
}

// endPublisherLocked ends publishing.
func (p *engineProcess) endPublisherLocked() {
	if p.mu.publisher == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.mu.publisher.Close(ctx) // subscribers that missed the end have counted already
	p.mu.publisher = nil
}

// source adds rate events a second to the log, as evenly as a tick of a millisecond allows, until
// ctx ends. After a stall it makes up for a few milliseconds only: a burst larger than the log
// would be a gap for every reader.
func (p *engineProcess) source(ctx context.Context, rate int) {
	const tick, most = time.Millisecond, 20 // ticks
	keys := make([]block.Key, 0, 4096)
	for _, name := range queryNames(0, cap(keys)) {
		keys = append(keys, block.Key{Group: "source", Hash: block.Hash(name)})
	}
	log := p.engine.Events()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := time.Now()
	owed := 0.0
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		owed = min(owed+now.Sub(last).Seconds()*float64(rate), float64(rate)*(most*tick).Seconds())
		last = now
		for ; owed >= 1; owed-- {
			n := p.made.Add(1)
			log.Add(event.Event{Time: now, Kind: event.Stored, Tier: "memory", Key: keys[n%int64(len(keys))], Size: eventsBlockSize})
		}
	}
}
