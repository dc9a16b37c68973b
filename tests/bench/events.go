package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/publish"
	"github.com/kvfs/kvfs/tiers/state"
)

const (
	eventsRate      = 100_000 // a second
	eventsAudience  = 3
	eventsWriters   = 2
	eventsBlockSize = 64 * kib

	nobody    = "nobody"
	followers = "3 followers of .kvfs/events"
)

// eventsBench is an engine with a mount in its own process, to which a source adds events.
type eventsBench struct {
	*job
	engine *child
	dir    string // of the mount
	set    *blockSet

	// By audience: events a second while blocks are written, the same received by each; ns of the processor time of the
	// engine's process for each event without writes, the same of the audience, each; gaps.
	made, got, cpu, audienceCPU, gaps series
}

// events measures how much followers of the events slow down writers of blocks.
//
// No daemon makes 100,000 events a second from files on a few processors. So the engine and the mount run in a child of
// this program (playEngine). There a source adds events to the log, at the same rate with and without an audience. The
// audience is another process (playAudience).
func (j *job) events() {
	count := j.config.count(eventsBlockSize)
	e := &eventsBench{job: j, dir: j.mountPoint("events"), made: series{}, got: series{}, cpu: series{}, audienceCPU: series{}, gaps: series{}}
	memory := filepath.Join(j.dirIn(j.config.shmDir), "memory")
	j.later(func() { detach(e.dir); detach(memory) }) // if it was killed
	e.engine = j.child(role{Name: engineRole, Mount: e.dir, Path: memory, MemoryBytes: int64(2*count*eventsBlockSize + 256*mib)})
	e.counts() // it has mounted
	e.set = newBlockSet(&target{dir: e.dir}, "events", eventsBlockSize, 0, count)
	j.fill(e.set)
	var sides []side
	for _, name := range []string{nobody, followers} {
		sides = append(sides, side{name, func(int) (perSec float64) {
			j.scope(func(j *job) { perSec = e.writing(j, name) })
			return perSec
		}})
	}
	// Differences of a few percent need more and longer passes than other topics.
	figs := j.rotate(0, 2*j.rounds, sides)
	table := j.table(fmt.Sprintf("Writing with %d events a second", eventsRate),
		fmt.Sprintf("(%d writers of blocks of %s, write and rename; a source in the process of the engine adds the events in all cases; "+
			"the audience counts; processor time of its processes while nothing is written: of the engine's the difference to nobody)",
			eventsWriters, sizeText(eventsBlockSize)),
		"audience", "blocks/s", "min-max", "to nobody", "goal", "events/s", "each got/s", "gaps", "engine ns/event", "audience ns/event each")
	whole := func(s samples) string { return fmt.Sprintf("%.0f", median(s)) }
	for _, s := range sides {
		gaps, cpu := 0.0, median(e.cpu[s.name])
		for _, n := range e.gaps[s.name] {
			gaps += n
		}
		cells := []any{s.name, whole(figs[s.name]), fmt.Sprintf("%.0f-%.0f", slices.Min(figs[s.name]), slices.Max(figs[s.name])), "", "",
			whole(e.made[s.name]), "", fmt.Sprint(gaps), "", ""}
		if s.name != nobody {
			ratio := figs.over(s.name, nobody)
			cells[3], cells[4], cells[6], cells[9] = ratio, j.atLeast(0.95, ratio), whole(e.got[s.name]), whole(e.audienceCPU[s.name])
			cpu = max(cpu-median(e.cpu[nobody]), 0) // below it is noise
			if median(e.made[s.name]) < 0.98*eventsRate || gaps > 0 {
				cells[4] = "no verdict: too few events, or gaps"
			}
		}
		cells[8] = fmt.Sprintf("%.0f", cpu)
		table.row(cells...)
	}
}

// writing measures with an audience, or without: first only events, then blocks being written. It returns blocks a
// second.
func (e *eventsBench) writing(j *job, name string) float64 {
	var a *child
	if name == followers {
		a = j.child(role{Name: followRole, Count: eventsAudience, Path: e.dir + "/.kvfs/events"})
		j.await("each of the audience gets events", func() bool {
			return !slices.ContainsFunc(e.read(a).audience.Each, func(one listenerCounts) bool { return one.Units == 0 })
		})
	}
	length := 4 * j.passTime
	quiet := e.span(a, func() { j.pause(length) })
	perSec := 0.0
	busy := e.span(a, func() { perSec = j.pass(newWork(eventsWriters, e.set.count, e.set.store), length).perSec })
	for into, value := range map[*series]float64{
		&e.made: busy.made, &e.got: busy.got, &e.cpu: quiet.engineTime, &e.audienceCPU: quiet.audienceTime, &e.gaps: float64(busy.gaps + quiet.gaps),
	} {
		(*into)[name] = append((*into)[name], value)
	}
	return perSec
}

// counts asks the engine.
func (e *eventsBench) counts() (c engineCounts) {
	e.engine.ask(nil, &c)
	return c
}

// span is the difference over a period of time.
type span struct {
	made         float64 // events a second by the source
	got          float64 // the same, received by the slowest of the audience
	gaps         int64
	engineTime   float64 // ns of processor time for each event
	audienceTime float64 // ns for each event that one member received
}

type reading struct {
	engine                engineCounts
	audience              audienceCounts
	engineCPU, audienceIn time.Duration // processor time
	at                    time.Time
}

func (e *eventsBench) read(a *child) (r reading) {
	if a != nil {
		a.ask(nil, &r.audience)
		r.audienceIn = cpuTimeOf(a.cmd.Process.Pid)
	}
	r.engineCPU = cpuTimeOf(e.engine.cmd.Process.Pid)
	r.engine = e.counts()
	r.at = time.Now()
	return r
}

// span takes the difference before and after run. It waits until there are events in between, and each of the audience
// has got some.
func (e *eventsBench) span(a *child, run func()) span {
	before, after := e.read(a), reading{}
	run()
	e.await("events", func() bool {
		after = e.read(a)
		for i, one := range after.audience.Each {
			if one.Units == before.audience.Each[i].Units {
				return false
			}
		}
		return after.engine.Made > before.engine.Made
	})
	return spanOf(before, after)
}

func spanOf(before, after reading) span {
	seconds := after.at.Sub(before.at).Seconds()
	made := float64(after.engine.Made - before.engine.Made)
	s := span{made: made / seconds, engineTime: float64(after.engineCPU-before.engineCPU) / made}
	units, least := 0.0, -1.0
	for i, one := range after.audience.Each {
		was := before.audience.Each[i]
		s.gaps += one.Gaps - was.Gaps
		n := float64(one.Units - was.Units)
		units += n
		if least < 0 || n < least {
			least = n
		}
	}
	if len(after.audience.Each) == 0 {
		return s
	}
	s.got = least / seconds
	s.audienceTime = float64(after.audienceIn-before.audienceIn) / units
	return s
}

type engineCounts struct{ Made int64 } // events by the source

// engineProcess is an engine with a mount, whose log gets events from a source as well.
type engineProcess struct {
	engine *tiers.Engine
	lines  *publish.Lines
	made   atomic.Int64 // events by the source
}

// playEngine answers the lines of in until it ends.
func playEngine(r role, in io.Reader, out io.Writer) {
	ctx, stop := context.WithCancel(context.Background())
	memory := get(mem.Open(ctx, mem.Options{ID: "bench-events", Dir: r.Path, SizeBytes: r.MemoryBytes}))
	hooks := &fs.Hooks{}
	p := &engineProcess{engine: get(tiers.Open(ctx, state.Options{
		Primary: memory, CapacityBytes: r.MemoryBytes, HeadroomBytes: r.MemoryBytes / 8, LookupLease: -1,
		Alive: hooks.Alive, Invalidate: hooks.Invalidate, Dropped: hooks.Dropped,
	}))}
	defer func() { must(p.engine.Close(context.Background(), false)) }()
	p.lines = publish.NewLines(p.engine.Events())
	defer p.lines.Close()
	server := get(fs.Mount(p.engine, hooks, fs.Options{
		Dir: r.Mount, EntryTimeout: time.Minute, AttrTimeout: time.Minute,
		Status:  func() []byte { return []byte("{}\n") },
		Control: []control.File{{Name: "events", Open: p.follow, Stream: true}},
	}))
	var source sync.WaitGroup
	source.Go(func() { p.source(ctx) }) // ends with ctx
	defer source.Wait()
	defer stop()
	to := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		must(to.Encode(engineCounts{p.made.Load()}))
	}
	must(server.Unmount())
	server.Wait()
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

// source adds events to the log, as evenly as a tick of a millisecond allows, until ctx ends. After a stall it makes up
// for a few milliseconds only: a burst larger than the log would be a gap for every reader.
func (p *engineProcess) source(ctx context.Context) {
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
		owed = min(owed+now.Sub(last).Seconds()*eventsRate, eventsRate*(most*tick).Seconds())
		last = now
		for ; owed >= 1; owed-- {
			n := p.made.Add(1)
			log.Add(event.Event{Time: now, Kind: event.Stored, Tier: "memory", Key: keys[n%int64(len(keys))], Size: eventsBlockSize})
		}
	}
}
