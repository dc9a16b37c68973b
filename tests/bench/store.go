package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

const (
	// storeGoal is the share of an embedded mount's speed that hot reads keep through a standalone
	// store.
	storeGoal = 0.95
	// storeFiner is the factor by which there are more, and shorter, passes than in other topics. A
	// few percent show only if the machine treats both mounts equally.
	storeFiner = 6

	embeddedName   = "embedded"
	standaloneName = "standalone-store"
)

// storeTopics are about a standalone store and about kvfs run.
func storeTopics() []string { return []string{"store"} }

// storeBench is an embedded mount and a mount of a standalone store, with the same
// sizes and settings.
type storeBench struct {
	*bench
	pair   *bench // measures only these two targets
	socket string // of the standalone store
	mount  *server
	table  *table
}

// measureStore measures the cost of memory that belongs to another process than the one that made
// the mount, and how long kvfs run takes to start a command.
func (b *bench) measureStore(ctx context.Context) (err error) {
	if !b.config.wants(storeTopics()...) || !slices.Contains(b.config.targets, kvfsName) || ctx.Err() != nil {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: %w", err)
		}
	}()
	config := *b.config
	config.rounds *= storeFiner
	config.passTime /= storeFiner
	s := &storeBench{bench: b, pair: &bench{config: &config}, socket: filepath.Join(b.workDir, "store.sock")}
	if s.pair.pool, err = newPool(1, max(mib, slices.Max(b.config.sizes))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.pair.pool.close()) }()
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.start(ctx); err != nil {
		return err
	}
	s.table = b.report.table("store", "A standalone store beside an embedded mount, and the start of kvfs run",
		fmt.Sprintf("(%d rounds of %v; blocks: 1 thread, GB/s, a ratio; starts: from the start to the end of the command "+
			"and of kvfs run, unmounting included, ms, and the difference)", config.rounds, config.passTime),
		"what", "embedded, or alone", "min-max", "standalone, or kvfs run", "min-max", "ratio, or added", "goal", "")
	for _, size := range b.config.sizes {
		if err := s.size(ctx, size); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return s.starts(ctx)
}

// start starts both mounts. The standalone store is the server of its target: it does the work, and
// each pass waits for it afterwards.
func (s *storeBench) start(ctx context.Context) error {
	embedded, err := s.kvfs("kvfs-embedded", s.config.memoryMiB)
	if err != nil {
		return err
	}
	dir, err := s.mountPoint("kvfs-standalone")
	if err != nil {
		return err
	}
	owner := s.owner()
	s.mount = s.attached(dir)
	s.pair.targets = []*target{
		{name: embeddedName, dir: embedded.mount, server: embedded},
		{name: standaloneName, dir: dir, server: owner},
	}
	for _, server := range []*server{embedded, owner, s.mount} {
		if err := s.bench.start(ctx, server); err != nil {
			return err
		}
	}
	return nil
}

// owner makes the standalone store, as large as the embedded mount.
func (s *storeBench) owner() *server {
	argv := []string{s.kvfsPath, "serve", "--memory-size", fmt.Sprintf("%dMiB", s.config.memoryMiB),
		"--store-socket", s.socket, "--ready-fd", "3"}
	return &server{argv: append(argv, s.config.kvfsArgs...), verbose: s.config.verbose, adopts: true}
}

// attached makes a mount of the standalone store.
func (s *storeBench) attached(dir string) *server {
	argv := append([]string{s.kvfsPath, "mount", "--ready-fd", "3"}, s.standalone()...)
	argv = append(append(argv, s.config.kvfsArgs...), dir)
	return &server{argv: argv, mount: dir, verbose: s.config.verbose}
}

// standalone returns the flags of a mount of the standalone store.
func (s *storeBench) standalone() []string {
	return []string{"--mode", standaloneName, "--store-socket", s.socket}
}

// stop stops what start has started, the mount before its store.
func (s *storeBench) stop() error {
	var errs []error
	if s.mount != nil {
		errs = append(errs, s.mount.stop())
	}
	for _, t := range s.pair.targets {
		errs = append(errs, t.server.stop())
	}
	return errors.Join(errs...)
}

// size measures reads and writes of blocks of a size through both mounts.
func (s *storeBench) size(ctx context.Context, size int) error {
	sets := blockSets{}
	for _, t := range s.pair.targets {
		set, err := newBlockSet(t, fmt.Sprintf("g%d", size), size, 0, s.config.count(size))
		if err != nil {
			return err
		}
		if err := errors.Join(set.fill(ctx, s.pair.pool), t.settle(ctx)); err != nil {
			return err
		}
		sets[t.name] = set
	}
	for _, step := range []struct {
		title string
		goal  float64
		op    func(*blockSet) func(*client, int) error
	}{
		{"hot reads", storeGoal, func(set *blockSet) func(*client, int) error { return set.read }},
		{"writes over existing names", 0, func(set *blockSet) func(*client, int) error { return set.store }},
	} {
		s.say("store: %s, %s", step.title, sizeText(size))
		perSec, err := s.pair.contest(ctx, func(t *target) *work {
			return newWork(1, sets[t.name].count, step.op(sets[t.name]))
		}, nothingToSettle)
		if err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
		s.row(step.title, size, perSec, step.goal)
	}
	for _, set := range sets { // What was written must read back.
		err := s.pair.pool.once(ctx, newWork(1, set.count, set.readVerified))
		if err := errors.Join(err, set.remove()); err != nil {
			return fmt.Errorf("%s: %w", set.dir, err)
		}
	}
	return nil
}

// row reports blocks a second of one size; a goal of 0 is none.
func (s *storeBench) row(title string, size int, perSec series, goal float64) {
	rows := map[string]*row{}
	for name, rates := range perSec {
		r := &row{Topic: "store", Target: name, BlockBytes: size, Threads: 1, Unit: "GB/s, " + title}
		for _, v := range rates {
			r.Samples = append(r.Samples, v*float64(size)/1e9)
		}
		r.Value = median(r.Samples)
		rows[name] = r
	}
	base, r := rows[embeddedName], rows[standaloneName]
	verdict := s.versus(r, perSec, embeddedName, goal)
	s.report.add(*base)
	s.report.add(*r)
	cells := []string{title + ", " + sizeText(size), fmt.Sprintf("%.2f", base.Value), spread(base.Samples),
		fmt.Sprintf("%.2f", r.Value), spread(r.Samples)}
	s.table.add(append(cells, verdict...)...)
}
