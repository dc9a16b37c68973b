package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// takeoverTopics are about the replacement of a running daemon.
func takeoverTopics() []string { return []string{"takeover"} }

// takeoverBlocks returns how many blocks are in memory.
func takeoverBlocks(quick bool) []int {
	if quick {
		return []int{100}
	}
	return []int{1000, 40_000}
}

// measureTakeover measures the longest pause of a client that opens and closes blocks while a new daemon takes a mount
// over.
func (b *bench) measureTakeover(ctx context.Context) error {
	if !b.config.wants(takeoverTopics()...) || !slices.Contains(b.config.targets, kvfsName) || ctx.Err() != nil {
		return nil
	}
	if os.Geteuid() != 0 {
		b.report.skip("takeover", "a takeover needs root")
		return nil
	}
	table := b.report.table("takeover", "Pause of a client while a new daemon takes over",
		"(the longest open and close of a block, 1 thread; blocks of 4 KiB)", "blocks in memory", "s", "min-max")
	for _, count := range takeoverBlocks(b.config.quick) {
		b.say("takeover: %d blocks", count)
		pauses, err := b.takeovers(ctx, count)
		if err != nil {
			return fmt.Errorf("takeover: %d blocks: %w", count, err)
		}
		r := row{Topic: "takeover", Target: kvfsName, Value: median(pauses), Unit: fmt.Sprintf("s of pause with %d blocks", count),
			Samples: pauses}
		b.report.add(r)
		table.add(fmt.Sprint(count), fmt.Sprintf("%.3f", r.Value), spread(pauses))
	}
	return nil
}

// takeovers mounts, stores blocks, and replaces the daemon several times. It returns the pause of each.
func (b *bench) takeovers(ctx context.Context, count int) (pauses []float64, err error) {
	const blockBytes = 4 * kib
	running, err := b.kvfs(fmt.Sprintf("kvfs-takeover-%d", count), 256+count*2*blockBytes/mib)
	if err != nil {
		return nil, err
	}
	if err := b.start(ctx, running); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, running.stop()) }()
	set, err := newBlockSet(&target{name: kvfsName, dir: running.mount}, "g", blockBytes, 0, count)
	if err == nil {
		err = set.fill(ctx, b.pool)
	}
	if err != nil {
		return nil, err
	}
	for range b.config.rounds {
		next := &server{argv: append(slices.Clone(running.argv), "--takeover"), mount: running.mount, verbose: running.verbose, adopts: true}
		if slices.Contains(running.argv, "--takeover") {
			next.argv = slices.Clone(running.argv)
		}
		pause, err := b.takeover(ctx, set, running, next)
		if err != nil {
			return nil, err
		}
		pauses = append(pauses, pause.Seconds())
		running = next
	}
	return pauses, nil
}

// takeover replaces one daemon, which ends, by another one. It returns the pause of a client.
func (b *bench) takeover(ctx context.Context, set *blockSet, old, next *server) (time.Duration, error) {
	type outcome struct {
		longest time.Duration
		err     error
	}
	var stop atomic.Bool
	client := make(chan outcome, 1)
	go func() { // ends with stop, or an error
		var o outcome
		for i := 0; o.err == nil && !stop.Load(); i = (i + 1) % set.count {
			begin := time.Now()
			o.err = set.open(nil, i)
			for errors.Is(o.err, unix.EINTR) || errors.Is(o.err, unix.ESTALE) { // as programs do: see the semantics of a takeover
				o.err = set.open(nil, i)
			}
			o.longest = max(o.longest, time.Since(begin))
		}
		client <- o
	}()
	err := b.start(ctx, next)
	if err == nil {
		<-old.exited
		old.process.Store(nil)
		old.wasReady = false // the mount is the next one's
		err = old.exitErr
	}
	stop.Store(true)
	o := <-client
	return o.longest, errors.Join(err, o.err)
}
