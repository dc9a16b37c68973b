package tiers_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestSpace: reservations, eviction order, pins, leases and waiting, on the
// memory tier alone (A17, A22, A27, A31, A37).
func TestSpace(t *testing.T) {
	four := state.Options{CapacityBytes: 4 * page}
	runScripts(t, []script{
		{name: "too large", opts: four, text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			create 10 b g/b
			write b 5p y -> ErrTooLarge
			close b -> ErrPoisoned
			create 10 b g/b
			truncate b 5p -> ErrTooLarge
			allocate b 5p -> ErrTooLarge
			close b -> ok; stored g/b 0
			cat 10 g/a -> x*2p`},
		{name: "too large in pieces", opts: four, text: `
			create 10 b g/b
			write b 3p y
			write b 2p y 3p -> ErrTooLarge
			close b -> ErrPoisoned`},
		{name: "learned size is reserved at create", opts: state.Options{CapacityBytes: 8 * page}, text: `
			put 10 g/a 2p x -> ok; stored g/a 2p
			create 10 b g/b
			stats -> used 4p pinned 2p blocks 1 writing 1
			raw b 2p y
			close b -> ok; stored g/b 2p
			create 10 c g/c
			create 10 d g/d
			create 10 e g/e
			# guesses may take half
			stats -> used 8p pinned 4p blocks 2 writing 3
			write c 1p z
			close c -> ok; stored g/c 1p
			close d -> ok; stored g/d 0
			close e -> ok; stored g/e 0
			stats -> used 5p pinned 0 blocks 5 writing 0`},
		{name: "writes past what was reserved", opts: state.Options{CapacityBytes: 8 * page, HeadroomBytes: 4 * page, Groups: map[block.GroupID]state.GroupOptions{"g": {BlockBytes: page}}}, text: `
			put 10 g/a 6p x -> ok; stored g/a 6p
			create 10 b g/b
			raw b 3p y
			close b -> ok; stored g/b 3p; evicted g/a 6p capacity
			create 10 c g/c
			raw c 9p y
			close c -> ErrNoSpace
			stat 10 g/c -> ErrNotFound
			cat 10 g/b -> y*3p`},
	})
}

// TestOrder: blocks go in the order of the policy that is configured; reading
// and setting the time of last access count as use (A28, A29).
func TestOrder(t *testing.T) {
	// Twice: s3fifo keeps what was used more than once.
	const text = `
		put 10 g/a 1p x -> ok; stored g/a 1p
		put 10 g/b 1p x -> ok; stored g/b 1p
		put 10 g/c 1p x -> ok; stored g/c 1p
		put 10 g/d 1p x -> ok; stored g/d 1p
		cat 20 g/a -> x*1p
		cat 20 g/a -> x*1p
		touch g/b
		touch g/b
		put 10 g/e 1p x -> ok; evicted g/c 1p capacity; stored g/e 1p
		put 10 g/f 1p x -> ok; evicted g/d 1p capacity; stored g/f 1p
	`
	var scripts []script
	for policy, last := range map[string]string{
		"":       "put 10 g/h 2p x -> ok; evicted g/a 1p capacity; evicted g/b 1p capacity; stored g/h 2p",
		"lru":    "put 10 g/h 2p x -> ok; evicted g/a 1p capacity; evicted g/b 1p capacity; stored g/h 2p",
		"arc":    "put 10 g/h 2p x -> ok; evicted g/e 1p capacity; evicted g/f 1p capacity; stored g/h 2p",
		"mq":     "put 10 g/h 2p x -> ok; evicted g/e 1p capacity; evicted g/f 1p capacity; stored g/h 2p",
		"s3fifo": "put 10 g/h 2p x -> ok; evicted g/e 1p capacity; evicted g/f 1p capacity; stored g/h 2p",
	} {
		scripts = append(scripts, script{name: "policy " + policy, opts: state.Options{CapacityBytes: 4 * page, Policy: policy}, text: text + last})
	}
	runScripts(t, scripts)
}

// TestExpiry: a block goes at the end of its time to live, an abandoned temporary
// file after TempExpiry.
func TestExpiry(t *testing.T) {
	runScripts(t, []script{
		{name: "it is gone before its bytes are", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			ttl g/a 500ms
			lookup 20 r g/a -> 1p stable=true
			advance 600ms
			stat 10 g/a -> ErrNotFound
			ls 10 g -> []
			openref 20 f r -> ErrNotFound
			create 10 b g/a excl -> ok; removed g/a 1p expired
			write b 1p y
			close b -> ok; stored g/a 1p
			advance 10s
			cat 20 g/a -> y*1p`},
		{name: "changed", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			ttl g/a 10s
			ttl g/a 20s
			advance 15s
			ttl g/a 0s
			advance 15s
			cat 10 g/a -> x*1p
			pin g/a
			ttl g/a 1s
			advance 2s -> ok; removed g/a 1p expired`},
		{name: "a new version lives as long as the old one would", text: `
			put 10 g/a 1p x -> ok; stored g/a 1p
			ttl g/a 10s
			put 10 g/a 1p y -> ok; removed g/a 1p replaced; stored g/a 1p
			advance 12s -> ok; removed g/a 1p expired
			stats -> used 0 pinned 0 blocks 0 writing 0
			create 10 b g/a excl`},
		{name: "temporary", opts: state.Options{TempExpiry: time.Minute}, text: `
			put 10 g/a.tmp 1p x
			create 10 b g/b.tmp
			write b 1p y
			advance 59s
			stats -> used 2p pinned 2p blocks 2 writing 2
			advance 3s
			stat 10 g/a.tmp -> ErrNotFound
			stats -> used 1p pinned 1p blocks 1 writing 1
			close b
			advance 59s
			rename 10 g/b.tmp g/b -> ok; stored g/b 1p
			advance 10m
			cat 10 g/b -> y*1p`},
		{name: "idle version", text: `
			put 10 g/x.tmp 1p x
			open 20 b g/x.tmp trunc
			write b 1p y
			close b
			advance 10s
			rename 20 g/x.tmp g/b -> ok; stored g/b 1p
			cat 30 g/b -> y*1p`},
	})
}

// TestScanResistance shows that blocks which are used again and again outlast a scan several times as
// large as memory, also if memory turns over faster than blocks rest before they are evicted
// ahead of need: what the watermark pass leaves alone is not used by that.
func TestScanResistance(t *testing.T) {
	for _, policy := range []string{"arc", "s3fifo"} {
		w := open(t, t.TempDir(), state.Options{
			Policy: policy, CapacityBytes: 100 * page, HighWatermark: 0.9, LowWatermark: 0.8, Now: newTestClock().now,
		})
		must(t, w.mkdir("g"))
		const hot, rounds, scanned = 20, 4, 100
		put := func(name string) { must(t, w.put(10, "g/"+name, payload(0, 1, page))) }
		read := func(i int) bool {
			_, err := w.get(10, fmt.Sprintf("g/hot%d", i))
			if err != nil {
				put(fmt.Sprintf("hot%d", i))
			}
			return err == nil
		}
		for i := range 3 * hot {
			read(i % hot)
		}
		hits := 0
		for round := range rounds {
			for i := range scanned {
				put(fmt.Sprintf("scan%d-%d", round, i))
				w.letGo()
				if i%10 == 9 { // the evictor has had its turn
					runtime.Gosched()
				}
			}
			for i := range hot {
				if read(i) {
					hits++
				}
			}
		}
		if hits < hot*rounds*9/10 {
			t.Errorf("%s: %d of %d reads of hot blocks are hits", policy, hits, hot*rounds)
		}
		w.close(false)
	}
}
