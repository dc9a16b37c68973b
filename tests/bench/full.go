package main

import (
	"fmt"
	"slices"
	"time"
)

// ring is a target of the topic full: each pass stores blocks of new names.
type ring struct {
	*blockSet
	at    *target
	where string
	keeps int             // how many blocks a store leaves there before it removes the oldest; 0: it removes none
	room  bool            // what a pass has stored is removed after it
	next  int             // the first name that is still new
	times []time.Duration // of each store
}

// full measures stores of new names into a memory that is full, as that of a cache always is: each store evicts.
func (j *job) full() {
	memory := j.config.memoryMiB * mib / 3
	mount := func(name string, memory, disk int) *target {
		return j.mount(mountOptions{name: name, memory: memory, disk: disk, queue: memory})
	}
	huge, disk := j.hugeTmpfs(), 4*memory+diskSlack
	room, roomDisk := mount("kvfs-room", 3*memory, 0), mount("kvfs-room-disk", 3*memory, disk)
	full, fullDisk := mount("kvfs-full", memory, 0), mount("kvfs-full-disk", memory, disk)
	table := j.table("Writes of new names into a full memory",
		fmt.Sprintf("(open a temporary file, one write, close, rename; %s of memory; all of it was used before; room: what a "+
			"pass has stored is removed after it; full: each store evicts; in the tmpfs the oldest file is removed for each new "+
			"one; the SSD has all blocks when a pass begins)", sizeText(memory)),
		"block", "threads", "memory", "GB/s", "min-max", "p50 us", "p99 us", "to huge tmpfs", "to room", "goal",
		"p99 to room", "goal")
	for _, size := range j.config.sizes {
		j.say("full %s", sizeText(size))
		each, blocks := j.config.count(size), memory/size
		var rings []*ring
		for _, r := range []*ring{
			{at: huge, where: "huge tmpfs", keeps: blocks},
			{at: room, where: "room", room: true}, {at: full, where: "full"},
			{at: roomDisk, where: "room, SSD below", room: true}, {at: fullDisk, where: "full, SSD below"},
		} {
			r.blockSet = newBlockSet(r.at, fmt.Sprintf("full%d", size), size, 0, 2*blocks+(1+j.rounds)*len(j.config.threads)*each)
			r.times = make([]time.Duration, r.count)
			j.storeNew(r, 1, 2*blocks)
			rings = append(rings, r)
		}
		for _, threads := range j.config.threads {
			j.fullRows(table, rings, threads, each)
		}
		for _, r := range rings {
			last := min(each, blocks/2)
			j.once(1, last, func(c *client, i int) {
				if !r.room {
					r.readVerified(c, r.next-last+i)
				}
			})
			r.remove()
		}
	}
}

// storeNew stores blocks of new names, and returns GB/s.
func (j *job) storeNew(r *ring, threads, blocks int) float64 {
	order := make([]int, blocks)
	for n := range order {
		order[n] = r.next + n
	}
	r.next += blocks
	if r.room {
		pretouch(blocks * r.size * 5 / 4)
	}
	took := j.inOrder(threads, order, func(c *client, i int) {
		begin := time.Now()
		if oldest := i - r.keeps; r.keeps > 0 && oldest >= 0 {
			c.unlink(r.final.at(oldest))
		}
		r.store(c, i)
		r.times[i] = time.Since(begin)
	})
	j.settle(r.at)
	if r.at.tier != "" {
		j.drained(r.at, r.at.lower(), 0, nil)
	}
	if r.room {
		r.clearSome(order[0], blocks)
		j.settle(r.at)
	}
	return gbs(blocks*r.size, took)
}

func (j *job) fullRows(table *table, rings []*ring, threads, each int) {
	var sides []side
	begin := rings[0].next + each // after the warm-up
	for _, r := range rings {
		sides = append(sides, side{r.where, func(int) float64 { return j.storeNew(r, threads, each) }})
	}
	figs, p99s := j.rotate(1, j.rounds, sides), map[string]float64{}
	for i, r := range rings {
		one := tailsOf(slices.Clone(r.times[begin:r.next]))
		p99s[r.where] = one.p99
		cells := []any{sizeText(r.size), threads, r.where, figs[r.where], figs[r.where].spread(),
			microsText(one.p50), microsText(one.p99), figs.over(r.where, rings[0].where), "", "", "", ""}
		if i > 0 && !r.room {
			with := rings[i-1].where
			speed, p99 := figs.over(r.where, with), one.p99/p99s[with]
			copy(cells[8:], []any{speed, j.atLeast(0.9, speed), fmt.Sprintf("%.1f", p99), j.atMostText(2, p99, "%g")})
		}
		table.row(cells...)
	}
}
