package feed

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
)

// modelNode is a node with fake blocks: it makes, replaces, evicts and removes blocks, and obeys
// the removals of other nodes.
type modelNode struct {
	t     *testing.T
	name  int
	skew  time.Duration // of its clock
	index *location.Index
	slots *slotPool
	paths []string

	mu struct {
		sync.Mutex
		rnd  *rand.Rand
		held map[string]Record
		last uint64 // Seq
		log  *Log
	}
	broken context.CancelFunc // ends the Serves of this incarnation
	ctx    context.Context
	scopes atomic.Pointer[modelScope] // of what it follows
}

// modelScope is what a node follows, until it follows something else.
type modelScope struct {
	parts Parts // nil: everything
	ctx   context.Context
	end   context.CancelFunc
}

// rescope makes the node follow something else: everything, or about half of the paths.
func (n *modelNode) rescope(rnd *rand.Rand, all bool) {
	s := &modelScope{}
	s.ctx, s.end = context.WithCancel(n.t.Context())
	if !all && rnd.IntN(4) > 0 {
		s.parts = NewParts(MaxParts)
		for _, path := range n.paths {
			if rnd.IntN(2) == 0 {
				s.parts.Add(int(location.HashPath(path) >> 48))
			}
		}
	}
	old := n.scopes.Swap(s)
	n.index.Keep(n.wants)
	if old != nil {
		old.end()
	}
}

func (n *modelNode) wants(hash uint64) bool {
	s := n.scopes.Load()
	return s.parts == nil || s.parts.Holds(hash)
}

func newModelNode(t *testing.T, name int, rnd *rand.Rand, paths []string) *modelNode {
	n := &modelNode{t: t, name: name, paths: paths, index: location.New(location.Options{})}
	n.slots = newSlotPool(t, n.index, 64)
	n.skew = time.Duration(rnd.Int64N(int64(2*time.Hour))) - time.Hour
	n.mu.rnd = rand.New(rand.NewPCG(rnd.Uint64(), 0))
	n.mu.held = map[string]Record{}
	n.start(1)
	n.rescope(rnd, true)
	return n
}

// start begins an incarnation.
func (n *modelNode) start(epoch uint64) {
	n.mu.log = NewLog(LogOptions{Epoch: epoch, Records: 24, Interval: 10 * time.Millisecond, BatchBytes: 200})
	n.ctx, n.broken = context.WithCancel(n.t.Context())
}

// incarnation returns the present context and log.
func (n *modelNode) incarnation() (context.Context, *Log) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ctx, n.mu.log
}

// restart loses some blocks and the log, as a crash does.
func (n *modelNode) restart(epoch uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken()
	n.mu.log.Close()
	for _, path := range n.paths {
		if n.mu.rnd.IntN(2) == 0 {
			delete(n.mu.held, path)
		}
	}
	n.start(epoch)
}

// nextSeqLocked returns the version of a new block. n.mu is held.
func (n *modelNode) nextSeqLocked() uint64 {
	n.mu.last = max(n.mu.last+1, uint64(time.Now().Add(n.skew).UnixNano()))
	return n.mu.last
}

func (n *modelNode) observe(seq uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.last = max(n.mu.last, seq)
}

// act makes a random change to one of the paths.
func (n *modelNode) act() {
	n.mu.Lock()
	defer n.mu.Unlock()
	path := n.paths[n.mu.rnd.IntN(len(n.paths))]
	hash := location.HashPath(path)
	switch n.mu.rnd.IntN(8) {
	case 0:
		r := Record{Op: Bury, Hash: hash, Seq: n.nextSeqLocked(), Mode: typeFile, Path: path, Time: time.Now().UnixNano()}
		n.index.Bury(r.Hash, r.Seq, false, path, r.Time)
		n.mu.log.Append(r)
		n.supersedeLocked(&r)
	case 1, 2:
		if _, ok := n.mu.held[path]; ok {
			delete(n.mu.held, path)
			n.mu.log.Append(release(hash))
		}
	default:
		r := Record{Op: Hold, Hash: hash, Seq: n.nextSeqLocked(), Size: int64(n.mu.rnd.IntN(3) * 4096),
			Mode: 0o100644, UID: uint32(n.mu.rnd.IntN(2)), Memory: n.mu.rnd.IntN(2) == 0}
		n.mu.held[path] = r
		n.mu.log.Append(r)
	}
}

// bury takes a grave of another node.
func (n *modelNode) bury(r *Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.supersedeLocked(r)
}

func (n *modelNode) supersedeLocked(grave *Record) {
	if r, ok := n.mu.held[grave.Path]; ok && r.Seq < grave.Seq {
		delete(n.mu.held, grave.Path)
		n.mu.log.Append(release(r.Hash))
	}
}

// snapshot reports each path either as it was at its begin or as it is at its turn.
func (n *modelNode) snapshot(_ context.Context, fn func(*Record) error) error {
	var list []Record
	n.index.Graves(0, func(g location.Grave) bool {
		list = append(list, Record{Op: Bury, Hash: g.Hash, Seq: g.Seq, Mode: typeFile, Path: g.Path, Time: g.At})
		return true
	})
	n.mu.Lock()
	for _, path := range n.paths {
		if r, ok := n.mu.held[path]; ok {
			list = append(list, r)
		}
	}
	n.mu.rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	fresh := n.mu.rnd.IntN(2) == 0
	n.mu.Unlock()
	for i := range list {
		r := &list[i]
		if fresh && r.Op == Hold {
			at := slices.IndexFunc(n.paths, func(path string) bool { return location.HashPath(path) == r.Hash })
			n.mu.Lock()
			now, ok := n.mu.held[n.paths[at]]
			n.mu.Unlock()
			if !ok {
				continue
			}
			r = &now
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}

// modelLink makes a node follow another one, over pipes that break.
type modelLink struct {
	*Follower
	to, from *modelNode
	rnd      *rand.Rand
	quiet    *atomic.Bool // no more breaks
	begin    int          // 0: at the position, 1 and 2: by digests, 3: with a snapshot
	fell     atomic.Bool  // behind the log
	broken   uint64       // snapshots of parts
	scope    *modelScope  // all of it was known after a call
}

// run follows until ctx ends.
func (k *modelLink) run(ctx context.Context) {
	for ctx.Err() == nil {
		k.connect(ctx)
		if k.rnd.IntN(20) == 0 && !k.quiet.Load() {
			k.Drop()
		}
		if k.rnd.IntN(10) == 0 {
			k.SetLive(false)
		}
		pause(ctx, time.Duration(k.rnd.IntN(20))*time.Millisecond)
		k.SetLive(true)
	}
}

// pause waits in the time of the bubble.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// connect follows over one pipe until it breaks. The batches in the pipe are then lost.
func (k *modelLink) connect(parent context.Context) {
	serving, log := k.from.incarnation()
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	stop := context.AfterFunc(serving, cancel)
	defer stop()
	scope := k.to.scopes.Load()
	stopScope := context.AfterFunc(scope.ctx, cancel)
	defer stopScope()
	pipe := make(chan *Batch, k.rnd.IntN(3))
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	compares := k.rnd.IntN(5) > 0
	if k.scope != scope {
		compares, k.begin = true, max(k.begin, 1)
	}
	position, parts, err := k.Position(), Parts(nil), error(nil)
	if compares {
		if position, parts, err = k.beginning(ctx, log, scope); err != nil {
			return
		}
	}
	begun := k.Stats().Batches
	wait.Go(func() { // ends when connect does
		send := func(b *Batch) error {
			select {
			case pipe <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !compares {
			_ = log.Serve(ctx, position, k.from.snapshot, send)
		} else if err := log.ServeParts(ctx, position, parts, scope.parts, k.from.snapshot, send); errors.Is(err, ErrGap) {
			k.fell.Store(true)
			cancel()
		}
	})
	defer func() {
		wait.Wait()
		if k.asked != nil && k.asked.begun {
			k.broken++
		}
		if !k.fell.Swap(false) {
			k.begin = 0
		} else if k.Stats().Batches > begun {
			k.begin = 1
		} else {
			k.begin = (k.begin + 1) % 4
		}
	}()
	defer cancel()
	slow := k.rnd.IntN(60) + 1
	for left := k.rnd.IntN(40); left > 0 || k.quiet.Load(); left-- {
		if !k.quiet.Load() {
			pause(ctx, time.Duration(k.rnd.IntN(slow))*time.Millisecond)
		}
		select {
		case b := <-pipe:
			if err := k.Apply(k.spoil(b)); err != nil {
				if k.quiet.Load() || !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrOutOfStep) {
					k.to.t.Errorf("node %d of %d: %v", k.to.name, k.from.name, err)
				}
				return
			}
			if b.End {
				k.scope = scope
			}
		case <-ctx.Done():
			return
		}
	}
}

// beginning returns what to ask the log for: as the cluster does, and sometimes digests are compared
// without need.
func (k *modelLink) beginning(ctx context.Context, log *Log, scope *modelScope) (Position, Parts, error) {
	own := k.Digests()
	switch {
	case own == nil || k.begin == 3:
		return Position{}, nil, nil
	case k.begin == 0 && (k.rnd.IntN(4) > 0 || k.quiet.Load()):
		return k.Position(), nil, nil
	}
	at, sums, err := log.Digests(ctx, k.from.snapshot)
	if err != nil {
		return Position{}, nil, err
	}
	shards, bytes, err := sums.Within(scope.parts).Compare(len(own), own.Shards())
	if err != nil {
		k.to.t.Errorf("node %d of %d: %v", k.to.name, k.from.name, err)
		return Position{}, nil, err
	}
	if k.rnd.IntN(20) == 0 && !k.quiet.Load() {
		bytes = append(bytes, 0)
	}
	parts, err := k.Compare(own, &Difference{at, shards, bytes})
	switch {
	case err != nil && k.quiet.Load():
		k.to.t.Errorf("node %d of %d: %v", k.to.name, k.from.name, err)
	case err == nil && parts == nil:
		k.scope = scope
	}
	k.from.index.Graves(0, func(g location.Grave) bool { // the exchange of graves
		k.to.observe(g.Seq)
		if k.to.index.Bury(g.Hash, g.Seq, g.Dir, g.Path, g.At) {
			k.to.bury(&Record{Path: g.Path, Seq: g.Seq})
		}
		return true
	})
	return at, parts, err
}

// spoil sometimes damages a batch in a way that is always detected, except for the records before
// the damage.
func (k *modelLink) spoil(b *Batch) *Batch {
	if k.quiet.Load() || k.rnd.IntN(40) > 0 {
		return b
	}
	bad := *b
	switch k.rnd.IntN(5) {
	case 4:
		bad.Partial = true
	case 0:
		bad.Count++
	case 1:
		bad.Records = append(slices.Clone(b.Records), 0xff)
	case 2:
		bad.Position.Next += 1000
		bad.End = false
	case 3:
		bad.Position.Epoch += 1000
		bad.Begin = false
	}
	return &bad
}

// TestModel runs nodes that follow each other over pipes that break anywhere. Their rings are so
// small that they overtake subscribers. The nodes make, evict and remove blocks, and restart. Once
// quiet, each node must know what each other holds, and all graves, and digests must say so.
func TestModel(t *testing.T) { modelRuns(t, 4) }

func TestModelLong(t *testing.T) { modelRuns(t, 12) }

func modelRuns(t *testing.T, runs int) {
	var total modelTotals
	for range runs {
		seed := uint64(time.Now().UnixNano())
		if !t.Run("", func(t *testing.T) {
			t.Logf("seed %d", seed)
			synctest.Test(t, func(t *testing.T) { runModel(t, seed, &total) })
		}) {
			return
		}
	}
	t.Logf("%+v", total)
	if total.overtaken == 0 || total.resumes == 0 || total.brokenSnapshots == 0 || total.graves == 0 || total.refused == 0 ||
		total.partial == 0 || total.brokenPartial == 0 && runs > 4 {
		t.Errorf("something never happened: %+v", total)
	}
}

// modelTotals counts what happened in all runs.
type modelTotals struct {
	overtaken, resumes, snapshots, brokenSnapshots, graves, refused uint64
	compared, partial, brokenPartial                                uint64
}

func runModel(t *testing.T, seed uint64, total *modelTotals) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var paths []string
	for i := range 40 {
		paths = append(paths, "g/"+string(rune('A'+i)))
	}
	var nodes []*modelNode
	for i := range 3 {
		nodes = append(nodes, newModelNode(t, i, rnd, paths))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var quiet atomic.Bool
	var links []*modelLink
	var wait sync.WaitGroup
	for _, to := range nodes {
		for _, from := range nodes {
			if to == from {
				continue
			}
			k := &modelLink{to: to, from: from, rnd: rand.New(rand.NewPCG(rnd.Uint64(), 0)), quiet: &quiet}
			k.Follower = NewFollower(to.index, to.slots, to.bury, to.observe)
			k.Scope(to.wants)
			links = append(links, k)
			wait.Go(func() { k.run(ctx) }) // ends with ctx
		}
	}
	var logs []*Log
	for step := range 3000 {
		nodes[rnd.IntN(len(nodes))].act()
		if rnd.IntN(4) > 0 {
			pause(ctx, time.Duration(rnd.IntN(4))*time.Millisecond)
		}
		if rnd.IntN(300) == 0 {
			n := nodes[rnd.IntN(len(nodes))]
			_, log := n.incarnation()
			logs = append(logs, log)
			n.restart(uint64(step + 2))
		}
		if rnd.IntN(150) == 0 {
			nodes[0].rescope(rnd, false)
		}
	}
	synctest.Wait()
	quiet.Store(true)
	pause(ctx, time.Minute)
	synctest.Wait()
	checkModel(t, nodes, links)
	for _, k := range links {
		k.begin = 1
		_, log := k.from.incarnation()
		if _, parts, err := k.beginning(ctx, log, k.to.scopes.Load()); err != nil || parts != nil {
			t.Errorf("node %d of %d: digests find %x, error %v", k.to.name, k.from.name, parts, err)
		}
	}
	for _, n := range nodes {
		_, log := n.incarnation()
		logs = append(logs, log)
	}
	cancel()
	wait.Wait()
	for _, k := range links {
		s := k.Stats()
		total.brokenSnapshots += s.Begun - s.Snapshots - s.Partial
		total.compared += s.Compared
		total.partial += s.Partial
		total.brokenPartial += k.broken
		total.graves += s.Buried
		total.refused += s.Refused
		k.Drop()
	}
	for _, l := range logs {
		s := l.Stats()
		total.overtaken += s.Overtaken
		total.resumes += s.Resumes
		total.snapshots += s.Snapshots
	}
	for _, n := range nodes {
		if c := n.slots.taken(); c != 0 || n.index.Stats().Entries != 0 {
			t.Errorf("node %d: %d slots, %d entries after all was dropped", n.name, c, n.index.Stats().Entries)
		}
	}
}

// checkModel requires that each node knows what each other holds, and all graves.
func checkModel(t *testing.T, nodes []*modelNode, links []*modelLink) {
	for _, k := range links {
		slots := k.Slots()
		if len(slots) != 1 {
			t.Fatalf("node %d of %d: slots %d", k.to.name, k.from.name, slots)
		}
		held := maps.Clone(k.from.mu.held)
		maps.DeleteFunc(held, func(path string, _ Record) bool { return !k.to.wants(location.HashPath(path)) })
		if n := k.to.index.Count(slots[0]); n != int64(len(held)) {
			t.Errorf("node %d of %d: %d entries, %d are held", k.to.name, k.from.name, n, len(held))
		}
		for _, o := range links {
			if o.to == k.to && o != k {
				o.SetLive(false)
			}
		}
		for _, path := range k.from.paths {
			hash := location.HashPath(path)
			want, ok := held[path]
			got := k.to.index.Lookup(hash, nil)
			if ok != (len(got) == 1) || len(got) > 1 {
				t.Errorf("node %d of %d: %s: %d holders, held: %v", k.to.name, k.from.name, path, len(got), ok)
				continue
			}
			if ok && got[0].Entry != (location.Entry{Hash: hash, Seq: want.Seq, Size: want.Size, Mode: want.Mode, UID: want.UID, GID: want.GID, Memory: want.Memory}) {
				t.Errorf("node %d of %d: %s: %+v, want %+v", k.to.name, k.from.name, path, got[0], want)
			}
			if a, b := k.to.index.Buried(hash), k.from.index.Buried(hash); a != b {
				t.Errorf("nodes %d and %d: %s: graves %d and %d", k.to.name, k.from.name, path, a, b)
			}
		}
		for _, o := range links {
			o.SetLive(true)
		}
	}
}
