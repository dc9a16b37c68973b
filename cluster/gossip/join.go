package gossip

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// firstRejoin is the time to the second round; it doubles up to Options.Rejoin.
	firstRejoin = 100 * time.Millisecond

	// maxSeeds and maxRetries bound the addresses tried in a round: one that answers tells all
	// others. Later rounds try more, at random.
	maxSeeds   = 16
	maxRetries = 8

	// joinWorkers is how many addresses are tried at a time. An address that does not answer
	// takes memberlist's TCP timeout, 10 s in a LAN.
	joinWorkers = 8

	// A contest: other nodes know this node's name with another address, mostly its own former
	// one. This node then announces itself to contestPeers of them every contestEvery. They
	// accept it when they have found the former node dead. It does so for contestLife, then
	// once in each round, until it has not met the other node for contestLife.
	contestPeers = 2
	contestEvery = time.Second
	contestLife  = 2 * time.Minute
	// After contestGrace the other node is not a former run of this node: that would have been
	// found dead by then. The log is told every blameEvery.
	contestGrace = 30 * time.Second
	blameEvery   = 10 * time.Minute

	// youngPeers is how many members a node exchanges all news with in each of its early
	// rounds, while the pause is at least youngFrom and still below Options.Rejoin. Memberlist
	// repeats news by the number of nodes that it knows. So some news is lost when many nodes
	// start together. Without this it would come only with the next full exchange: after 30 s
	// (lan), of 100 nodes after 90 s (measured: 119 s).
	youngPeers = 1
	youngFrom  = time.Second

	// warnEvery is the time between two warnings about one seed.
	warnEvery = time.Minute
)

// seed is one entry of Options.Join.
type seed struct {
	text string
	host string
	port uint16
}

// parseSeeds returns the valid seeds, and an error for each invalid one.
func parseSeeds(join []string) ([]seed, []error) {
	var seeds []seed
	var errs []error
	for _, s := range join {
		host, port, err := splitAddr(s, defaultPort)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("gossip: join: %w", err))
		case host == "":
			errs = append(errs, fmt.Errorf("gossip: join: address %q: no host", s))
		case port == 0:
			errs = append(errs, fmt.Errorf("gossip: join: address %q: port 0", s))
		default:
			seeds = append(seeds, seed{s, host, port})
		}
	}
	return seeds, errs
}

// joiner brings this node and others together, at first and after partitions. After a long
// partition memberlist forgets the other side and never contacts it again. So the joiner keeps
// trying seeds that are not members, and lost members.
type joiner struct {
	g     *Gossip
	seeds []seed

	// of the goroutine of run
	warned  map[string]time.Time // time of the last warning, by seed
	contest time.Time            // begin of the contest for the name; zero: none
	young   bool                 // this is one of the first rounds
}

func newJoiner(g *Gossip, seeds []seed) *joiner {
	return &joiner{g: g, seeds: seeds, warned: map[string]time.Time{}}
}

// run joins until ctx ends.
func (j *joiner) run(ctx context.Context) {
	delay := min(firstRejoin, j.g.rejoin)
	for {
		j.young = delay >= youngFrom && delay < j.g.rejoin
		j.round(ctx)
		pause := delay
		if j.contesting() && time.Since(j.contest) < contestLife {
			pause = min(delay, contestEvery)
		}
		// Jitter keeps nodes that started together from staying in step.
		wait := time.NewTimer(pause - pause/10 + rand.N(pause/5+1))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return
		}
		delay = min(2*delay, j.g.rejoin)
	}
}

// contesting reports whether other nodes have, or lately had, this node's name at another
// address. Nodes that suspect the other one do not report it any more, but do not accept this
// one yet either.
func (j *joiner) contesting() bool {
	if !j.g.members.contestedFor(contestLife) {
		j.contest = time.Time{}
		return false
	}
	if j.contest.IsZero() {
		j.contest = time.Now()
	}
	return true
}

// target is an address to try. Its text is empty if it comes from no seed.
type target struct {
	addr netip.AddrPort
	seed string
}

// round tries all due addresses once and waits for the results.
func (j *joiner) round(ctx context.Context) {
	targets, in := j.targets(ctx)
	errs := make([]error, len(targets))
	work := make(chan int)
	var wg sync.WaitGroup
	// These end with the round. Memberlist bounds each join by its TCP timeout, and the end of
	// the transport ends it at once.
	for range min(joinWorkers, len(targets)) {
		wg.Go(func() {
			for i := range work {
				_, errs[i] = j.g.list.Join([]string{targets[i].addr.String()})
			}
		})
	}
	for i := range targets {
		if ctx.Err() != nil {
			errs[i] = ctx.Err()
			continue
		}
		work <- i
	}
	close(work)
	wg.Wait()
	if ctx.Err() == nil {
		j.report(targets, errs, in)
	}
}

// report logs the results of the seeds. A seed is fine if any of its addresses is a member.
// Lost members are not logged: their loss was.
func (j *joiner) report(targets []target, errs []error, in map[string]bool) {
	for i, t := range targets {
		if errs[i] == nil {
			in[t.seed] = true
		}
	}
	if len(in) > 0 {
		j.g.joined.Store(true)
	}
	for seed := range in {
		if _, was := j.warned[seed]; was {
			delete(j.warned, seed)
			j.g.log.Info("joined", zap.String("seed", seed))
		}
	}
	for i, t := range targets {
		if t.seed != "" && !in[t.seed] {
			j.warn(t.seed, plain(errs[i]))
		}
	}
}

// warn warns of a seed, at most once a minute.
func (j *joiner) warn(seed string, err error) {
	if last, was := j.warned[seed]; was && time.Since(last) < warnEvery {
		return
	}
	j.warned[seed] = time.Now()
	j.g.log.Warn("cannot join now: trying again", zap.String("seed", seed), zap.Error(err))
}

// targets returns the addresses to try in this round. It also returns the seeds with an
// address that is a member or this node.
func (j *joiner) targets(ctx context.Context) ([]target, map[string]bool) {
	skip := map[netip.AddrPort]bool{j.g.addr: true, j.g.local: true}
	for _, n := range j.g.members.nodes() {
		if a, err := netip.ParseAddrPort(n.Addr); err == nil {
			skip[a] = true
		}
	}
	j.skipOwn(skip)
	in := map[string]bool{}
	tried := map[netip.AddrPort]bool{}
	var targets []target
	for _, t := range j.resolve(ctx) {
		switch {
		case skip[t.addr]:
			in[t.seed] = true
		case !tried[t.addr]:
			tried[t.addr] = true
			targets = append(targets, t)
		}
	}
	if len(targets) > maxSeeds {
		rand.Shuffle(len(targets), func(a, b int) { targets[a], targets[b] = targets[b], targets[a] })
		targets = targets[:maxSeeds]
	}
	for _, a := range j.g.members.someLost(maxRetries) {
		if !skip[a] && !tried[a] {
			targets = append(targets, target{addr: a})
		}
	}
	return append(targets, j.peers()...), in
}

// peers returns random members with which to exchange all news.
func (j *joiner) peers() []target {
	n := 0
	switch {
	case j.contesting():
		n = contestPeers
	case j.young:
		n = youngPeers
	}
	if n == 0 {
		return nil
	}
	live := j.g.members.nodes()
	rand.Shuffle(len(live), func(a, b int) { live[a], live[b] = live[b], live[a] })
	var targets []target
	for _, m := range live[:min(n, len(live))] {
		if a, err := netip.ParseAddrPort(m.Addr); err == nil {
			targets = append(targets, target{addr: a})
		}
	}
	return targets
}

// skipOwn adds all addresses of this machine if this node listens on all of them.
func (j *joiner) skipOwn(skip map[netip.AddrPort]bool) {
	if !j.g.local.Addr().IsUnspecified() {
		return
	}
	own, err := j.g.deps.interfaces()
	if err != nil {
		return // joining itself does no harm
	}
	for _, i := range own {
		skip[netip.AddrPortFrom(i.addr, j.g.local.Port())] = true
	}
}

// resolve looks up all seeds in parallel, anew each time.
func (j *joiner) resolve(ctx context.Context) []target {
	found := make([][]netip.Addr, len(j.seeds))
	errs := make([]error, len(j.seeds))
	slots := make(chan struct{}, joinWorkers)
	var wg sync.WaitGroup
	for i, s := range j.seeds {
		slots <- struct{}{}
		// Ends with the look-up, which is bounded by lookupLimit.
		wg.Go(func() {
			found[i], errs[i] = j.g.deps.lookup.resolve(ctx, s.host)
			<-slots
		})
	}
	wg.Wait()
	var targets []target
	for i, s := range j.seeds {
		if errs[i] != nil && !errors.Is(errs[i], context.Canceled) {
			j.warn(s.text, errs[i])
		}
		for _, a := range found[i] {
			if usable(a) == nil {
				targets = append(targets, target{netip.AddrPortFrom(a, s.port), s.text})
			}
		}
	}
	return slices.Clip(targets)
}

// plain returns the first of memberlist's list of errors. The list would print as several
// lines.
func plain(err error) error {
	if one := errors.Unwrap(err); one != nil {
		return one
	}
	return err
}
