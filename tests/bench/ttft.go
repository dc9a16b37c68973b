package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvfs/kvfs/tests/engines/llama"
	"github.com/kvfs/kvfs/tests/harness/netns"
)

const (
	ttftRounds     = 3
	ttftLimit      = 20 * time.Minute // for one process of the engine, on a busy machine
	ttftStateBytes = 256 * mib        // more than the state of a prompt takes
	ttftState      = "prompt.state"
)

// Where the state of the prompt comes from.
const (
	ttftComputed = "computed"
	ttftShm      = "a file in tmpfs"
	ttftMemory   = "memory of kvfs"
	ttftDisk     = "SSD of kvfs"
	ttftPeer     = "memory of a peer"
)

// ttftTopics are about an engine.
func ttftTopics() []string { return []string{"ttft"} }

// ttftModel returns the model and the length of the prompt. The model has the shape of those with half a billion
// weights, but for its vocabulary.
func ttftModel(quick bool) (m llama.Model, tokens int) {
	if quick {
		return llama.Small(), 400
	}
	return llama.Model{Layers: 24, Width: 1024, Heads: 16, KVHeads: 4, Feed: 4096, Context: 4352}, 4096
}

// ttftBench is an engine, and mounts with the state of its prompt.
type ttftBench struct {
	*bench
	engine *llama.Engine
	disk   *tierMount // nil: there is no disk
	peers  *peers     // nil: there are no namespaces
	saved  llama.Continuation
}

// measureTTFT measures the time to the first token of a prompt that is computed, and of one whose state is read.
func (b *bench) measureTTFT(ctx context.Context) (err error) {
	if !b.config.wants(ttftTopics()...) || !slices.Contains(b.config.targets, kvfsName) || ctx.Err() != nil {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("ttft: %w", err)
		}
	}()
	model, tokens := ttftModel(b.config.quick)
	b.say("ttft: write a model of %d million random weights", model.Parameters()/1e6)
	engine, err := llama.Open(ctx, b.workDir, model, llama.Options{Threads: runtime.NumCPU(), Warm: true, Timeout: ttftLimit})
	if errors.Is(err, llama.ErrUnavailable) {
		b.report.skip("ttft", err.Error())
		return nil
	} else if err != nil {
		return err
	}
	t := &ttftBench{bench: b, engine: engine.WithPrompt(1, tokens)}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.start(ctx); err != nil {
		return err
	}
	seconds := series{}
	for range min(ttftRounds, b.config.rounds) {
		if err := t.round(ctx, seconds); err != nil {
			return err
		}
	}
	t.rows(seconds, model, tokens)
	return nil
}

// start mounts a kvfs with a disk, and two that are peers.
func (t *ttftBench) start(ctx context.Context) (err error) {
	if kind := fsType(t.config.diskDir); !strings.HasPrefix(kind, "tmpfs") {
		d := &diskBench{bench: t.bench}
		if d.kvfsDir, err = os.MkdirTemp(t.config.diskDir, "kvfs-bench-ttft-"); err != nil {
			return err
		}
		if t.disk, err = d.mount(ctx, "kvfs-ttft", 2*ttftStateBytes, ttftStateBytes+diskSlack, ttftStateBytes); err != nil {
			return errors.Join(err, os.RemoveAll(d.kvfsDir))
		}
	}
	if why := netns.Lacks(); why == "" {
		p := &peerBench{bench: t.bench}
		t.peers, err = p.join(ctx, peerOptions{nodes: 2, memoryBytes: 2 * ttftStateBytes})
	}
	return err
}

// close stops what start has started.
func (t *ttftBench) close() error {
	var errs []error
	if t.disk != nil {
		errs = append(errs, t.disk.close(), os.RemoveAll(filepath.Dir(t.disk.diskDir)))
	}
	if t.peers != nil {
		errs = append(errs, t.peers.close())
	}
	return errors.Join(errs...)
}

// ttftSource is one origin of the state.
type ttftSource struct {
	name, op string
	at       *target                     // where the state is read
	loads    uint64                      // how many blocks come from below its memory meanwhile
	prepare  func(context.Context) error // before the time counts; may be nil
}

func (t *ttftBench) sources() []ttftSource {
	plain := &target{name: shmName, dir: t.shmDir}
	sources := []ttftSource{{ttftComputed, "save", plain, 0, nil}, {ttftShm, "restore", plain, 0, nil}}
	if t.disk != nil {
		sources = append(sources,
			ttftSource{ttftMemory, "restore", &t.disk.target, 0, t.fill},
			ttftSource{ttftDisk, "restore", &t.disk.target, 1, func(ctx context.Context) error { return t.disk.empty(ctx) }})
	}
	if t.peers != nil {
		sources = append(sources, ttftSource{ttftPeer, "restore", t.peers.nodes[1], 1, t.lend})
	}
	return sources
}

// round measures each source once. In the first round it gives the state to the mounts.
func (t *ttftBench) round(ctx context.Context, seconds series) error {
	for _, source := range t.sources() {
		t.say("ttft: %s", source.name)
		got, err := t.measureSource(ctx, source)
		if err != nil {
			return fmt.Errorf("%s: %w", source.name, err)
		}
		seconds[source.name] = append(seconds[source.name], got.Seconds())
	}
	return nil
}

// measureSource returns the time to the first token. It fails if the engine does not go on as after the computation, or
// if the state was elsewhere.
func (t *ttftBench) measureSource(ctx context.Context, source ttftSource) (time.Duration, error) {
	if source.prepare != nil {
		if err := source.prepare(ctx); err != nil {
			return 0, err
		}
	}
	before, err := promotions(source.at)
	if err != nil {
		return 0, err
	}
	if err := pretouch(1 << 30); err != nil { // for the engine and the mount
		return 0, err
	}
	p, err := t.engine.Start(ctx, source.op, stateIn(source.at))
	if err != nil {
		return 0, err
	}
	got, err := p.Wait()
	if err != nil {
		return 0, err
	}
	after, err := promotions(source.at)
	if err != nil {
		return 0, err
	}
	if t.saved.Bytes == 0 {
		t.saved = got
	}
	if diff := llama.Diff(got, t.saved); diff != "" {
		return 0, fmt.Errorf("the engine goes on otherwise: %s", diff)
	}
	if loads := after - before; loads != source.loads {
		return 0, fmt.Errorf("%d blocks came from below the memory, want %d", loads, source.loads)
	}
	return got.FirstToken, nil
}

func stateIn(t *target) string { return filepath.Join(t.dir, ttftState) }

// promotions returns how many blocks a kvfs has brought into its memory so far.
func promotions(t *target) (n uint64, err error) {
	if t.name != kvfsName {
		return 0, nil
	}
	s, err := readStatus(t)
	if err != nil {
		return 0, err
	}
	for _, tier := range s.Secondaries {
		n += tier.Promoted
	}
	return n, nil
}

// fill brings the state into the memory and, the first time, to the disk.
func (t *ttftBench) fill(ctx context.Context) error {
	base, err := t.disk.tier()
	if err != nil {
		return err
	}
	if base.Blocks == 0 {
		if err := t.copyState(&t.disk.target); err != nil {
			return err
		}
		return t.disk.drained(ctx, base, 1, nil)
	}
	state, err := os.Open(stateIn(&t.disk.target)) // it is in memory when open returns
	if err == nil {
		err = state.Close()
	}
	return err
}

// lend gives the state to the first peer, and takes it from the memory of the second one.
func (t *ttftBench) lend(ctx context.Context) error {
	if _, err := os.Stat(stateIn(t.peers.nodes[0])); errors.Is(err, os.ErrNotExist) {
		if err := t.copyState(t.peers.nodes[0]); err != nil {
			return err
		}
	}
	err := t.peers.await(ctx, "the state of one node is seen on the other", func() (bool, error) {
		_, err := os.Stat(stateIn(t.peers.nodes[1]))
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return t.peers.drop(ctx, t.peers.nodes[1])
}

// copyState writes the state that was computed to a mount.
func (t *ttftBench) copyState(mount *target) error {
	to := stateIn(mount)
	in, err := os.Open(filepath.Join(t.shmDir, ttftState))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to + ".tmp")
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(out.Close(), os.Rename(to+".tmp", to))
}

// rows reports the seconds to the first token.
func (t *ttftBench) rows(seconds series, model llama.Model, tokens int) {
	table := t.report.table("ttft", "Time to first token",
		fmt.Sprintf("(llama.cpp on the CPU of this machine, %d threads; a llama of %d million random weights in f32; a prompt of %d tokens, "+
			"whose state has %d MiB; from the beginning of the computation, or of the load of the state, to the first token; the engine "+
			"has evaluated a token before; the peer is on this machine, over TCP)",
			runtime.NumCPU(), model.Parameters()/1e6, tokens, t.saved.Bytes/mib),
		"state of the prompt", "s", "min-max", "times as fast")
	computed := median(seconds[ttftComputed])
	for _, name := range []string{ttftComputed, ttftShm, ttftMemory, ttftDisk, ttftPeer} {
		samples := seconds[name]
		if len(samples) == 0 {
			table.add(name, "not measured", "", "")
			continue
		}
		r := row{Topic: "ttft", Target: name, BlockBytes: int(t.saved.Bytes), Value: median(samples), Unit: "s to the first token",
			Samples: samples}
		r.RatioTo = map[string]float64{ttftComputed: computed / r.Value}
		t.report.add(r)
		table.add(name, fmt.Sprintf("%.3g", r.Value), spread(samples), fmt.Sprintf("%.0f", computed/r.Value))
	}
}
