package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	embeddedName   = "embedded"
	standaloneName = "standalone-store"
)

// store measures the cost of memory that belongs to another process than the one that made the mount.
func (j *job) store() {
	// A few percent show only if the machine treats both mounts equally: more and shorter passes than in other topics.
	const finer = 6
	j.rounds, j.passTime = j.rounds*finer, j.passTime/finer
	embedded := j.mount(mountOptions{name: "kvfs-embedded", memory: j.config.memoryMiB * mib})
	embedded.name = embeddedName
	socket, mount := filepath.Join(j.workDir, "store.sock"), j.mountPoint("kvfs-standalone")
	attach := []string{"--mode", standaloneName, "--store-socket", socket}
	// The standalone store is the server of its target: it does the work, and each pass waits for it afterwards.
	standalone := j.serve(&server{adopts: true, argv: []string{j.kvfsPath, "serve", "--memory-size", fmt.Sprintf("%dMiB", j.config.memoryMiB),
		"--store-socket", socket, "--ready-fd", "3"}})
	j.serve(&server{mount: mount, argv: append(append([]string{j.kvfsPath, "mount", "--ready-fd", "3"}, attach...), mount)})
	standalone.name, standalone.dir = standaloneName, mount
	j.targets = []*target{embedded, standalone}
	table := j.table("A standalone store beside an embedded mount", fmt.Sprintf("(%d rounds of %v; 1 thread)", j.rounds, j.passTime),
		"what", "embedded GB/s", "min-max", "standalone GB/s", "min-max", "to embedded", "goal")
	for _, size := range j.config.sizes {
		j.say("store: %s", sizeText(size))
		sets := j.blockSets(size, j.config.count(size))
		for _, step := range []struct {
			title string
			goal  float64
			op    blockOp
		}{{"hot reads", 0.95, (*blockSet).read}, {"writes over existing names", 0, (*blockSet).store}} {
			figs, _ := j.contest(1, sets, step.op)
			gb := float64(size) / 1e9
			one, other, ratio := figs[embeddedName].times(gb), figs[standaloneName].times(gb), figs.over(standaloneName, embeddedName)
			table.row(step.title+", "+sizeText(size), one, one.spread(), other, other.spread(), ratio, j.atLeast(step.goal, ratio))
		}
		for _, set := range sets { // what was written must read back
			j.once(1, set.count, set.readVerified)
			set.remove()
		}
	}
}

// takeover measures the longest pause of a client that opens and closes blocks while a new daemon takes a mount over.
func (j *job) takeover() {
	const blockBytes = 4 * kib
	counts := []int{1000, 40_000}
	if j.config.quick {
		counts = []int{100}
	}
	table := j.table("Pause of a client while a new daemon takes over", "(the longest open and close of a block, 1 thread; blocks of 4 KiB)",
		"blocks in memory", "s", "min-max")
	for _, count := range counts {
		j.say("takeover: %d blocks", count)
		j.scope(func(j *job) {
			t := &target{name: kvfsName, server: j.kvfs("kvfs-takeover", 256+count*2*blockBytes/mib)}
			t.dir = t.server.mount
			must(start(j.ctx, t.server))
			j.later(func() { must(t.server.stop()) })
			set := newBlockSet(t, "g", blockBytes, 0, count)
			j.fill(set)
			next := append(slices.Clone(t.server.argv), "--takeover")
			var pauses samples
			for range j.rounds {
				pauses = append(pauses, j.replace(t, set, &server{argv: next, mount: t.dir, adopts: true}))
			}
			table.row(count, fmt.Sprintf("%.3f", median(pauses)), pauses.spread())
		})
	}
}

// replace lets a new daemon take the mount of a target, and returns the pause of a client in seconds.
func (j *job) replace(t *target, set *blockSet, next *server) float64 {
	var stop atomic.Bool
	longest, ended := time.Duration(0), make(chan error, 1)
	go func() { // ends with stop, or an error
		var err error
		for i := 0; err == nil && !stop.Load(); i = (i + 1) % set.count {
			begin := time.Now()
			err = try(func() { set.openClose(nil, i) })
			for errors.Is(err, unix.EINTR) || errors.Is(err, unix.ESTALE) { // as programs do: see the semantics of a takeover
				err = try(func() { set.openClose(nil, i) })
			}
			longest = max(longest, time.Since(begin))
		}
		ended <- err
	}()
	err := start(j.ctx, next)
	if err == nil {
		old := t.server
		<-old.exited
		old.process.Store(nil)
		old.wasReady = false // the mount is the next one's
		err, t.server = old.exitErr, next
	}
	stop.Store(true)
	must(errors.Join(err, <-ended))
	return longest.Seconds()
}
