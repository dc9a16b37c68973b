package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/kvfs/kvfs/tests/engines/llama"
	"github.com/kvfs/kvfs/tests/harness/netns"
)

const (
	ttftRounds     = 3
	ttftLimit      = 20 * time.Minute // for one process of the engine, on a busy machine
	ttftStateBytes = 256 * mib        // more than the state of a prompt takes
	ttftComputed   = "computed"
)

// ttftModel returns the model and the length of the prompt. The model has the shape of those with half a billion
// weights, but for its vocabulary.
func ttftModel(quick bool) (m llama.Model, tokens int) {
	if quick {
		return llama.Small(), 400
	}
	return llama.Model{Layers: 24, Width: 1024, Heads: 16, KVHeads: 4, Feed: 4096, Context: 4352}, 4096
}

type ttftSource struct {
	name    string
	at      *target // where the state is read
	loads   uint64  // how many blocks come from below its memory meanwhile
	prepare func()  // before the time counts
}

func stateIn(t *target) string { return filepath.Join(t.dir, "prompt.state") }

// ttft measures the time to the first token of a prompt that llama.cpp computes, and of one whose state it reads.
func (j *job) ttft() {
	model, tokens := ttftModel(j.config.quick)
	j.say("ttft: write a model of %d million random weights", model.Parameters()/1e6)
	engine, err := llama.Open(j.ctx, j.dirIn(j.workDir), model, llama.Options{Threads: runtime.NumCPU(), Warm: true, Timeout: ttftLimit})
	if errors.Is(err, llama.ErrUnavailable) {
		j.skip(err.Error())
	}
	must(err)
	engine = engine.WithPrompt(1, tokens)
	plain := &target{dir: j.dirIn(j.config.shmDir)}
	sources := append([]ttftSource{{ttftComputed, plain, 0, func() {}}, {"a file in tmpfs", plain, 0, func() {}}}, j.ttftMounts(plain)...)
	var saved llama.Continuation
	var sides []side
	for _, s := range sources {
		sides = append(sides, side{s.name, func(int) float64 {
			j.say("ttft: %s", s.name)
			s.prepare()
			before := promotions(s.at)
			pretouch(gib) // for the engine and the mount
			op := "restore"
			if s.name == ttftComputed {
				op = "save"
			}
			got := get(get(engine.Start(j.ctx, op, stateIn(s.at))).Wait())
			if saved.Bytes == 0 {
				saved = got
			}
			if diff := llama.Diff(got, saved); diff != "" {
				must(fmt.Errorf("the engine goes on otherwise: %s", diff))
			}
			if loads := promotions(s.at) - before; loads != s.loads {
				must(fmt.Errorf("%d blocks came from below the memory, want %d", loads, s.loads))
			}
			return got.FirstToken.Seconds()
		}})
	}
	figs := series{}
	for range min(ttftRounds, j.rounds) { // in this order: the first computes what the others read
		for name, seconds := range j.rotate(0, 1, sides) {
			figs[name] = append(figs[name], seconds...)
		}
	}
	table := j.table("Time to first token",
		fmt.Sprintf("(llama.cpp on the CPU of this machine, %d threads; a llama of %d million random weights in f32; a prompt of %d tokens, "+
			"whose state has %d MiB; from the beginning of the computation, or of the load of the state, to the first token; the engine "+
			"has evaluated a token before; the peer is on this machine, over TCP)",
			runtime.NumCPU(), model.Parameters()/1e6, tokens, saved.Bytes/mib),
		"state of the prompt", "s", "min-max", "times as fast")
	for _, s := range sides {
		table.row(s.name, fmt.Sprintf("%.3g", median(figs[s.name])), figs[s.name].spread(), fmt.Sprintf("%.0f", figs.over(ttftComputed, s.name)))
	}
}

// ttftMounts mounts a kvfs with a disk, if there is one, and two that are peers, if there are namespaces.
func (j *job) ttftMounts(plain *target) (sources []ttftSource) {
	store := func(t *target) { // the state that was computed, the first time
		if exists(stateIn(t)) {
			return
		}
		in := get(os.Open(stateIn(plain)))
		defer in.Close()
		out := get(os.Create(stateIn(t) + ".tmp"))
		get(out.ReadFrom(in))
		must(errors.Join(out.Close(), os.Rename(stateIn(t)+".tmp", stateIn(t))))
	}
	if noDisk(j.bench) == "" {
		disk := j.mount(mountOptions{name: "kvfs-ttft", memory: 2 * ttftStateBytes, disk: ttftStateBytes + diskSlack, queue: ttftStateBytes})
		fill := func() {
			base := disk.lower()
			store(disk)
			if base.Blocks == 0 {
				j.drained(disk, base, 1, nil)
			}
			must(get(os.Open(stateIn(disk))).Close()) // it is in memory when open returns
		}
		sources = append(sources, ttftSource{"memory of kvfs", disk, 0, fill}, ttftSource{"SSD of kvfs", disk, 1, func() { j.empty(disk) }})
	}
	if netns.Lacks() == "" {
		c := j.join(peerOptions{nodes: 2, memoryBytes: 2 * ttftStateBytes})
		sources = append(sources, ttftSource{"memory of a peer", c.nodes[1], 1, func() {
			store(c.nodes[0])
			j.await("the state of one node is seen on the other", func() bool { return exists(stateIn(c.nodes[1])) })
			j.empty(c.nodes[1])
		}})
	}
	return sources
}

// promotions returns how many blocks a kvfs has brought into its memory so far.
func promotions(t *target) (n uint64) {
	if t.server != nil {
		for _, tier := range t.status().Secondaries {
			n += tier.Promoted
		}
	}
	return n
}
