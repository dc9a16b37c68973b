package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	eventsRate      = 100_000 // a second
	eventsGoal      = 0.95    // of the blocks written without an audience
	eventsAudience  = 3
	eventsWriters   = 2
	eventsBlockSize = 64 * kib

	nobody      = "nobody"
	followers   = "3 followers of .kvfs/events"
	subscribers = "3 subscribers of ZeroMQ"
)

// eventsBench is an engine with a mount in its own process, to which a source adds events.
type eventsBench struct {
	*bench
	engine *target
	set    *blockSet
	writer *pool
	memory string // directory of the memory tier

	perSec  series // blocks written
	made    series // events a second while blocks are written
	got     series // the same, received by each of the audience
	cpu     series // ns of the engine's process for each event, without writes
	readers series // the same of the audience, each
	gaps    map[string]int64
}

// events measures how much followers of the events slow down writers of blocks.
//
// No daemon makes 100,000 events a second from files on a few processors. So the engine and the
// mount run in a child of this program (events_engine.go). There a source adds events to the log,
// at the same rate with and without an audience. The audience is another process
// (events_audience.go).
func (b *bench) events(ctx context.Context) (err error) {
	e := &eventsBench{bench: b, engine: &target{name: kvfsName}, gaps: map[string]int64{},
		perSec: series{}, made: series{}, got: series{}, cpu: series{}, readers: series{}}
	if e.writer, err = newPool(eventsWriters, eventsBlockSize); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.writer.close()) }()
	if err := e.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	if e.set, err = newBlockSet(e.engine, "events", eventsBlockSize, 0, b.config.count(eventsBlockSize)); err != nil {
		return err
	}
	if err := e.set.fill(ctx, e.writer); err != nil {
		return err
	}
	cases := []string{nobody, followers, subscribers}
	// Differences of a few percent need more and longer passes than other topics.
	for round := range 2 * b.config.rounds {
		for i := range cases {
			name := cases[(round+i)%len(cases)]
			if err := e.pass(ctx, name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	e.rows(cases)
	return nil
}

// start starts the engine.
func (e *eventsBench) start(ctx context.Context) error {
	mount, err := e.mountPoint("events")
	if err != nil {
		return err
	}
	e.memory = filepath.Join(e.shmDir, "events")
	argv, err := childArgs(role{Name: engineRole, Mount: mount, Memory: e.memory, Rate: eventsRate,
		MemoryBytes: int64(2*e.config.count(eventsBlockSize)*eventsBlockSize + 256*mib)})
	if err != nil {
		return err
	}
	e.engine.dir = mount
	e.engine.server = &server{argv: argv, mount: mount, verbose: e.config.verbose}
	return e.bench.start(ctx, e.engine.server)
}

// stop stops it. If it was killed, its memory tier is still there.
func (e *eventsBench) stop() error {
	err := e.engine.server.stop()
	if _, statErr := os.Stat(e.memory); statErr == nil {
		detach(e.memory)
		err = errors.Join(err, os.RemoveAll(e.memory))
	}
	return err
}

// pass measures with an audience, or without: first only events, then blocks being written.
func (e *eventsBench) pass(ctx context.Context, name string) (err error) {
	publish := name == subscribers
	control, err := e.ask(ctx, engineQuestion{Publish: &publish})
	if err != nil {
		return err
	}
	a, err := e.gather(ctx, name, control.Endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()

	length := 4 * e.config.passTime
	quiet, err := e.span(ctx, a, func() error { return pause(ctx, length) })
	if err != nil {
		return err
	}
	var written tally
	busy, err := e.span(ctx, a, func() error {
		var err error
		written, err = e.writer.run(ctx, newWork(eventsWriters, e.set.count, e.set.store), length)
		return err
	})
	if err != nil {
		return err
	}
	e.perSec[name] = append(e.perSec[name], written.perSec)
	e.made[name] = append(e.made[name], busy.made)
	e.cpu[name] = append(e.cpu[name], quiet.engineTime)
	if name != nobody {
		e.got[name] = append(e.got[name], busy.got)
		e.readers[name] = append(e.readers[name], quiet.audienceTime)
	}
	e.gaps[name] += busy.gaps + quiet.gaps
	return nil
}

// gather starts the audience and waits until every member gets events.
func (e *eventsBench) gather(ctx context.Context, name, endpoint string) (*audience, error) {
	switch name {
	case followers:
		return startAudience(ctx, role{Name: followRole, Count: eventsAudience, Path: e.engine.dir + "/.kvfs/events"})
	case subscribers:
		return startAudience(ctx, role{Name: subscribeRole, Count: eventsAudience, Path: endpoint})
	}
	return &audience{}, nil
}

// ask asks the engine.
func (e *eventsBench) ask(ctx context.Context, q engineQuestion) (counts engineCounts, err error) {
	request, err := json.Marshal(q)
	if err != nil {
		return counts, err
	}
	talk, err := openDialogue(e.engine, "bench")
	if err != nil {
		return counts, err
	}
	defer func() { err = errors.Join(err, talk.close()) }()
	err = e.writer.once(ctx, newWork(1, 1, func(*client, int) error {
		answer, err := talk.ask(request)
		if err != nil {
			return err
		}
		var refused struct{ Error string }
		if err := errors.Join(json.Unmarshal(answer, &refused), json.Unmarshal(answer, &counts)); err != nil {
			return err
		}
		if refused.Error != "" {
			return errors.New(refused.Error)
		}
		return nil
	}))
	return counts, err
}

// span is the difference over a period of time.
type span struct {
	made         float64 // events a second by the source
	got          float64 // the same, received by the slowest of the audience
	gaps         int64
	engineTime   float64 // ns of processor time for each event
	audienceTime float64 // ns for each event that one member received
}

// reading is the state at one moment.
type reading struct {
	engine   engineCounts
	audience audienceCounts
	engineIn time.Duration // processor time
	at       time.Time
}

func (e *eventsBench) read(ctx context.Context, a *audience) (r reading, err error) {
	if r.audience, err = a.ask(); err != nil {
		return r, err
	}
	if r.engineIn, err = e.engine.server.cpuTime(); err != nil {
		return r, err
	}
	r.engine, err = e.ask(ctx, engineQuestion{})
	r.at = time.Now()
	return r, err
}

// span takes the difference before and after run. It waits until there are events in between, and
// each of the audience has got some.
func (e *eventsBench) span(ctx context.Context, a *audience, run func() error) (span, error) {
	before, err := e.read(ctx, a)
	if err != nil {
		return span{}, err
	}
	if err := run(); err != nil {
		return span{}, err
	}
	for begin := time.Now(); ; {
		after, err := e.read(ctx, a)
		if err != nil {
			return span{}, err
		}
		if after.beyond(before) {
			return spanOf(before, after), nil
		}
		if time.Since(begin) > audienceLimit {
			return span{}, fmt.Errorf("no events for %v: from %+v to %+v", audienceLimit, before, after)
		}
		if err := pause(ctx, pollEvery); err != nil {
			return span{}, err
		}
	}
}

// beyond reports whether events were made since before, and each of the audience got some.
func (r *reading) beyond(before reading) bool {
	for i, one := range r.audience.Each {
		if one.Units == before.audience.Each[i].Units {
			return false
		}
	}
	return r.engine.Made > before.engine.Made
}

func spanOf(before, after reading) span {
	seconds := after.at.Sub(before.at).Seconds()
	made := float64(after.engine.Made - before.engine.Made)
	s := span{made: made / seconds, engineTime: float64(after.engineIn-before.engineIn) / made,
		gaps: after.engine.Dropped - before.engine.Dropped}
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
	// A message of ZeroMQ has several events. The counts are of messages.
	each := 1.0
	if n := after.engine.Messages - before.engine.Messages; n > 0 {
		each = float64(after.engine.Published-before.engine.Published) / float64(n)
	}
	s.got = least * each / seconds
	s.audienceTime = float64(after.audience.CPU-before.audience.CPU) / (units * each)
	return s
}

func (e *eventsBench) rows(cases []string) {
	table := e.report.table("events", fmt.Sprintf("Writing with %d events a second", eventsRate),
		fmt.Sprintf("(%d writers of blocks of %s, write and rename; a source in the process of the engine adds the events in all cases; "+
			"the audience counts; processor time of its processes while nothing is written: of the engine's the difference to nobody)",
			eventsWriters, sizeText(eventsBlockSize)),
		"audience", "blocks/s", "min-max", "to nobody", "goal", "", "events/s", "each got/s", "gaps",
		"engine ns/event", "audience ns/event each")
	for _, name := range cases {
		r := row{Topic: "events", Target: name, BlockBytes: eventsBlockSize, Threads: eventsWriters, Unit: "blocks/s",
			Samples: e.perSec[name], Value: median(e.perSec[name])}
		verdict := []string{"", "", ""}
		if name != nobody {
			verdict = e.versus(&r, e.perSec, nobody, eventsGoal)
		}
		made, got := median(e.made[name]), median(e.got[name])
		enough := made >= 0.98*eventsRate
		if !enough || e.gaps[name] > 0 {
			verdict[2] = "no verdict: too few events, or gaps"
			r.Met = nil
		}
		e.report.add(r)
		cpu := median(e.cpu[name])
		gotText, readersText := "", ""
		if name != nobody {
			cpu = max(cpu-median(e.cpu[nobody]), 0) // below it is noise
			gotText, readersText = fmt.Sprintf("%.0f", got), fmt.Sprintf("%.0f", median(e.readers[name]))
			e.report.add(row{Topic: "events", Target: name, Value: got, Unit: "events/s that each got", Samples: e.got[name]})
			e.report.add(row{Topic: "events", Target: name, Value: median(e.readers[name]), Unit: "ns of each reader's processor time for each event"})
		}
		e.report.add(row{Topic: "events", Target: name, Value: made, Unit: "events/s made", Samples: e.made[name]})
		e.report.add(row{Topic: "events", Target: name, Value: cpu, Unit: "ns of the engine's processor time for each event"})
		e.report.add(row{Topic: "events", Target: name, Value: float64(e.gaps[name]), Unit: "gaps"})
		table.add(name, fmt.Sprintf("%.0f", r.Value), fmt.Sprintf("%.0f-%.0f", slices.Min(r.Samples), slices.Max(r.Samples)),
			verdict[0], verdict[1], verdict[2], fmt.Sprintf("%.0f", made), gotText, fmt.Sprint(e.gaps[name]), fmt.Sprintf("%.0f", cpu), readersText)
	}
}
