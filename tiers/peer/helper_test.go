package peer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
)

// patience is how long tests wait for an expected event.
const patience = time.Minute

// within returns the next element of c, and fails if none comes.
func within[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case x := <-c:
		return x
	case <-timer.C:
		t.Fatalf("%s: nothing within %v", what, patience)
		panic("not reached")
	}
}

// eventually waits until check is true.
var eventually = harness.Poll

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// memFile returns a file in memory with that content.
func memFile(t testing.TB, data []byte) *os.File {
	t.Helper()
	f, err := newMemFile(data)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func newMemFile(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("kvfs-test", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "kvfs-test")
	if _, err := f.WriteAt(data, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func content(f *os.File) []byte {
	fi, err := f.Stat()
	if err != nil {
		return nil
	}
	data := make([]byte, fi.Size())
	_, _ = f.ReadAt(data, 0)
	return data
}

// stubNode is the cluster as one node sees it. The test or the peers put entries into its index.
type stubNode struct {
	mu      sync.Mutex
	view    map[uint64][]holder
	graves  map[uint64]uint64
	watched map[uint64]bool
	members []member
	records []feed.Record
	resyncs int
	lost    *Lost
	backend cluster.Backend

	unknown map[uint64]bool                           // hashes that it does not know
	owned   map[string][]holder                       // what other nodes answer
	asked   []string                                  // about each path, in the order of the questions
	asking  func(ctx context.Context, paths []string) // if not nil: called before the answers
	mute    bool                                      // there are none
	left    bool
	closed  bool
}

func newStubNode() *stubNode {
	return &stubNode{view: map[uint64][]holder{}, graves: map[uint64]uint64{}, watched: map[uint64]bool{}, lost: NewLost()}
}

func (n *stubNode) Start(b cluster.Backend) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.backend = b
	return nil
}

func (n *stubNode) Append(records ...feed.Record) {
	n.mu.Lock()
	n.records = append(n.records, records...)
	var far []*memBackend
	for _, m := range n.members {
		if p, ok := m.(*farPeer); ok && p.memBackend != nil {
			far = append(far, p.memBackend)
		}
	}
	for i := range records {
		if r := &records[i]; r.Op == feed.Bury {
			n.graves[r.Hash] = max(n.graves[r.Hash], r.Seq)
		}
	}
	n.mu.Unlock()
	for i := range records {
		if r := &records[i]; r.Op == feed.Bury {
			for _, b := range far {
				b.Bury(r.Path, r.Mode&modeType == modeDir, r.Seq)
			}
		}
	}
}

func (n *stubNode) Resync() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resyncs++
}

// appended returns the records so far.
func (n *stubNode) appended() []feed.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.records)
}

// put enters an entry of a peer.
func (n *stubNode) put(p member, e location.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removeLocked(p, e.Hash)
	n.view[e.Hash] = append(n.view[e.Hash], holder{p, e})
}

func (n *stubNode) removeLocked(p member, hash uint64) {
	n.view[hash] = slices.DeleteFunc(n.view[hash], func(h holder) bool { return h.peer.Name() == p.Name() })
	if len(n.view[hash]) == 0 {
		delete(n.view, hash)
	}
}

// drop enters that a peer no longer has a path.
func (n *stubNode) drop(p member, path string) {
	hash := location.HashPath(path)
	n.mu.Lock()
	n.removeLocked(p, hash)
	tell := n.watched[hash] && len(n.locateLocked(hash, nil)) == 0
	if tell {
		delete(n.watched, hash)
	}
	n.mu.Unlock()
	if tell {
		n.lost.Tell(hash)
	}
}

func (n *stubNode) locateLocked(hash uint64, buf []holder) []holder {
	var seq uint64
	for _, h := range n.view[hash] {
		seq = max(seq, h.Seq)
	}
	for _, h := range n.view[hash] {
		if h.Seq == seq && h.Seq >= n.graves[hash] {
			buf = append(buf, h)
		}
	}
	return buf
}

func (n *stubNode) locate(path string, buf []holder) []holder {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.locateLocked(location.HashPath(path), buf)
}

// hide makes paths unknown to the node; owners then tell of the holders.
func (n *stubNode) hide(path string, holders ...holder) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unknown == nil {
		n.unknown, n.owned = map[uint64]bool{}, map[string][]holder{}
	}
	n.unknown[location.HashPath(path)] = true
	n.owned[path] = holders
}

func (n *stubNode) knows(hash uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.unknown[hash]
}

func (n *stubNode) ask(ctx context.Context, paths []string, answer func(path string, holders []holder)) {
	n.mu.Lock()
	n.asked = append(n.asked, paths...)
	asking := n.asking
	n.mu.Unlock()
	if asking != nil {
		asking(ctx, paths)
	}
	for _, path := range paths {
		n.mu.Lock()
		list, mute := slices.Clone(n.owned[path]), n.mute
		n.mu.Unlock()
		if !mute {
			answer(path, list)
		}
	}
}

// askedFor returns the paths asked about since the last call.
func (n *stubNode) askedFor() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	asked := n.asked
	n.asked = nil
	return asked
}

func (n *stubNode) buried(hash uint64) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.graves[hash]
}

func (n *stubNode) watch(hash uint64) {
	n.mu.Lock()
	held := len(n.locateLocked(hash, nil)) > 0
	if held {
		n.watched[hash] = true
	}
	n.mu.Unlock()
	if !held {
		n.lost.Tell(hash)
	}
}

func (n *stubNode) unwatch(hash uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.watched, hash)
}

func (n *stubNode) indexStats() location.Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := location.Stats{Graves: int64(len(n.graves)), Watched: int64(len(n.watched)), Bytes: 1}
	for _, list := range n.view {
		s.Entries += int64(len(list))
	}
	return s
}

func (n *stubNode) peers() []member {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.members)
}

func (n *stubNode) peerBy(nameOrAddr string) member {
	for _, p := range n.peers() {
		if m := p.Member(); slices.Contains([]string{m.Name, m.GossipAddr, m.ControlAddr, m.BulkAddr}, nameOrAddr) {
			return p
		}
	}
	return nil
}

func (n *stubNode) Members() []cluster.Member {
	list := []cluster.Member{{Name: "self", State: "alive", Self: true, GossipAddr: "127.0.0.1:1000"}}
	for _, p := range n.peers() {
		list = append(list, p.Member())
	}
	return list
}

func (n *stubNode) Leave(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.left = true
	return nil
}

func (n *stubNode) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	return nil
}

// farPeer is a peer with a memBackend. A test may script its actions instead.
type farPeer struct {
	*memBackend
	info     cluster.Member
	features meta.Feature
	unusable atomic.Bool
	near     lender // of the node that asks it to take copies

	fetch func(ctx context.Context, blocks []*cluster.Fetch)
	store func(ctx context.Context, blocks []cluster.BlockInfo) []cluster.StoreOutcome
	list  func(ctx context.Context, dir string, fn func(cluster.Name) bool) error
	test  func(ctx context.Context)

	fetchCalls, storeCalls atomic.Int64
}

const allFeatures = meta.FeatureGet | meta.FeatureStore | meta.FeatureBury | meta.FeatureList

// addPeer adds a peer that announces its blocks at once.
func (n *stubNode) addPeer(name string) *farPeer {
	p := &farPeer{memBackend: newMemBackend(), features: allFeatures}
	p.info = cluster.Member{
		Name: name, State: "alive", TotalBytes: 1 << 30, FreeBytes: 1 << 30, Breaker: "closed",
		GossipAddr: name + ".test:7946", ControlAddr: name + ".test:7947", BulkAddr: name + ".test:7948",
	}
	p.announce = func(records ...feed.Record) {
		for i := range records {
			if r := &records[i]; r.Op == feed.Hold {
				n.put(p, location.Entry{Hash: r.Hash, Seq: r.Seq, Size: r.Size, Mode: r.Mode, UID: r.UID, GID: r.GID, Memory: r.Memory})
			} else {
				n.drop(p, r.Path)
			}
		}
	}
	n.mu.Lock()
	n.members = append(n.members, p)
	n.mu.Unlock()
	return p
}

// remove takes a peer out of the cluster.
func (n *stubNode) remove(p *farPeer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members = slices.DeleteFunc(n.members, func(m member) bool { return m == member(p) })
}

func (p *farPeer) Name() string            { return p.info.Name }
func (p *farPeer) Member() cluster.Member  { return p.info }
func (p *farPeer) Can(f meta.Feature) bool { return p.features&f == f }
func (p *farPeer) Usable() bool            { return !p.unusable.Load() }
func (p *farPeer) Callable() bool          { return !p.unusable.Load() }

func (p *farPeer) Fetch(ctx context.Context, blocks []*cluster.Fetch) {
	p.fetchCalls.Add(1)
	switch {
	case p.unusable.Load():
		for _, b := range blocks {
			b.Done(nil, rdma.ErrUnavailable)
		}
	case p.fetch != nil:
		p.fetch(ctx, blocks)
	default:
		for _, b := range blocks {
			serve(ctx, p.memBackend, b)
		}
	}
}

// lender is what a fetch needs of a backend.
type lender interface {
	Lend(ctx context.Context, ref *cluster.BlockRef) (cluster.BlockInfo, rdma.Loan, error)
}

// serve does a fetch from a backend.
func serve(ctx context.Context, from lender, b *cluster.Fetch) {
	info, loan, err := from.Lend(ctx, &b.BlockRef)
	if err != nil {
		b.Done(nil, err)
		return
	}
	defer loan.Close()
	give(b, &info, content(loan.File)[:loan.Size])
}

// give answers a fetch with bytes.
func give(b *cluster.Fetch, info *cluster.BlockInfo, data []byte) {
	dst, err := b.Dest(info)
	if err == nil {
		_, err = dst.File.WriteAt(data, dst.Off)
		dst.Hash.Write(data)
	}
	b.Done(info, err)
}

func (p *farPeer) Test(ctx context.Context) {
	if p.test != nil {
		p.test(ctx)
	}
}

func (p *farPeer) Store(ctx context.Context, offers []cluster.BlockInfo) []cluster.StoreOutcome {
	p.storeCalls.Add(1)
	if p.store != nil {
		return p.store(ctx, offers)
	}
	out := make([]cluster.StoreOutcome, len(offers))
	for i := range offers {
		out[i] = p.take(ctx, &offers[i], p.near)
	}
	return out
}

func (p *farPeer) List(ctx context.Context, dir string, fn func(cluster.Name) bool) error {
	if p.list != nil {
		return p.list(ctx, dir, fn)
	}
	for _, name := range p.listed(dir) {
		if !fn(name) {
			break
		}
	}
	return nil
}

// memBackend is the far side: blocks in memory.
type memBackend struct {
	announce func(records ...feed.Record)
	refuse   error // of offers
	mu       sync.Mutex
	blocks   map[string]*memBlock
	graves   map[string]uint64
}

type memBlock struct {
	cluster.BlockInfo
	data []byte
}

func newMemBackend() *memBackend {
	return &memBackend{announce: func(...feed.Record) {}, blocks: map[string]*memBlock{}, graves: map[string]uint64{}}
}

// add adds a block and announces it.
func (b *memBackend) add(info cluster.BlockInfo, data []byte) {
	info.Size, info.Sum, info.Mode = int64(len(data)), block.Sum(data), modeRegular|info.Mode&0o7777
	b.mu.Lock()
	b.blocks[info.Path] = &memBlock{info, data}
	b.mu.Unlock()
	b.announce(hold(&info))
}

func hold(info *cluster.BlockInfo) feed.Record {
	return feed.Record{Op: feed.Hold, Hash: location.HashPath(info.Path), Seq: info.Seq, Size: info.Size, Mode: info.Mode,
		UID: info.UID, GID: info.GID, Memory: true}
}

// corrupt flips a bit of a block.
func (b *memBackend) corrupt(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.blocks[path]; k != nil {
		k.data = bytes.Clone(k.data)
		k.data[len(k.data)/2] ^= 4
	}
}

func (b *memBackend) Lend(ctx context.Context, ref *cluster.BlockRef) (cluster.BlockInfo, rdma.Loan, error) {
	b.mu.Lock()
	k := b.blocks[ref.Path]
	b.mu.Unlock()
	if k == nil || ref.Seq != 0 && k.Seq != ref.Seq {
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrGone
	}
	f, err := newMemFile(k.data)
	if err != nil {
		return cluster.BlockInfo{}, rdma.Loan{}, rdma.ErrBusy
	}
	return k.BlockInfo, rdma.Loan{File: f, Size: k.Size, Close: func() { f.Close() }}, nil
}

// listed returns the blocks in a directory.
func (b *memBackend) listed(dir string) (names []cluster.Name) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for path, k := range b.blocks {
		if i := strings.LastIndexByte(path, '/'); path[:max(i, 0)] == dir {
			names = append(names, cluster.Name{Name: path[i+1:], BlockInfo: k.BlockInfo})
		}
	}
	return names
}

// stat returns what b says of a block, nil if it has none.
func (b *memBackend) stat(path string) *cluster.BlockInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.blocks[path]; k != nil {
		info := k.BlockInfo
		return &info
	}
	return nil
}

// take takes a copy of an offered block from the node that offers it.
func (b *memBackend) take(ctx context.Context, offer *cluster.BlockInfo, from lender) cluster.StoreOutcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.blocks[offer.Path]
	switch {
	case b.refuse != nil:
		return cluster.StoreOutcome{Status: cluster.StoreRefused, Err: b.refuse}
	case b.graves[offer.Path] > offer.Seq, k != nil && k.Seq > offer.Seq:
		return cluster.StoreOutcome{Status: cluster.StoreRefused, Err: block.ErrExist}
	case k != nil && k.Seq == offer.Seq:
		return cluster.StoreOutcome{Status: cluster.StoreHad}
	}
	info, loan, err := from.Lend(ctx, &cluster.BlockRef{Path: offer.Path, Seq: offer.Seq})
	switch {
	case errors.Is(err, rdma.ErrGone):
		return cluster.StoreOutcome{Err: block.ErrNotFound}
	case err != nil:
		return cluster.StoreOutcome{Err: block.ErrUnavailable}
	}
	defer loan.Close()
	data := content(loan.File)[:loan.Size]
	if info.Sum != offer.Sum || info.Size != offer.Size {
		return cluster.StoreOutcome{Err: block.ErrNotFound}
	}
	if block.Sum(data) != offer.Sum {
		return cluster.StoreOutcome{Err: block.ErrCorrupt}
	}
	b.blocks[offer.Path] = &memBlock{*offer, data}
	b.announce(hold(offer))
	return cluster.StoreOutcome{Status: cluster.StoreDone}
}

func (b *memBackend) Bury(path string, dir bool, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.graves[path] = max(b.graves[path], seq)
	if k := b.blocks[path]; k != nil && k.Seq < seq {
		delete(b.blocks, path)
		b.announce(feed.Record{Op: feed.Release, Hash: location.HashPath(path), Path: path})
	}
}

// stubEngine is an engine of blocks in memory. Take gets them through a tier.
type stubEngine struct {
	tier     *Tier
	lendErr  error
	mu       sync.Mutex
	blocks   map[string]*stubBlock
	observed uint64
	took     []tiers.Holding
	takeErr  error
	asked    map[string]int // Holding, by path
}

type stubBlock struct {
	tiers.Holding
	data []byte
}

func newStubEngine() *stubEngine {
	return &stubEngine{blocks: map[string]*stubBlock{}, asked: map[string]int{}}
}

func (e *stubEngine) put(h tiers.Holding, data []byte) {
	if h.Mode == 0 {
		h.Mode = modeRegular | 0o644
	}
	h.Size, h.Memory = int64(len(data)), true
	if h.Mode&modeType != modeDir {
		h.Sum = block.Sum(data)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.blocks[h.Path] = &stubBlock{h, data}
}

func (e *stubEngine) remove(path string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.blocks, path)
}

func (e *stubEngine) Holding(path string) (tiers.Holding, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[path]++
	if b := e.blocks[path]; b != nil {
		return b.Holding, true
	}
	return tiers.Holding{}, false
}

func (e *stubEngine) Holdings(ctx context.Context, fn func(h *tiers.Holding) error) error {
	for _, h := range e.sorted("", "") {
		if err := fn(&h); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// sorted returns the holdings below a prefix and after a path.
func (e *stubEngine) sorted(prefix, after string) []tiers.Holding {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []tiers.Holding
	for path, b := range e.blocks {
		if strings.HasPrefix(path, prefix) && path > after {
			list = append(list, b.Holding)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Path < list[j].Path })
	return list
}

func (e *stubEngine) HoldingsIn(dir, after string, limit int) (list []tiers.Holding, more bool) {
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	for _, h := range e.sorted(prefix, prefix+after) {
		if strings.Contains(h.Path[len(prefix):], "/") {
			continue
		}
		if len(list) == limit {
			return list, true
		}
		list = append(list, h)
	}
	return list, false
}

func (e *stubEngine) lend(ctx context.Context, path string, seq uint64) (loan, error) {
	e.mu.Lock()
	b, err := e.blocks[path], e.lendErr
	e.mu.Unlock()
	if err != nil {
		return loan{}, err
	}
	if b == nil || seq != 0 && b.Seq != seq {
		return loan{}, &block.Error{Op: "lend", Err: block.ErrNotFound}
	}
	f, err := newMemFile(b.data)
	if err != nil {
		return loan{}, err
	}
	return loan{b.Holding, f, func() { f.Close() }}, nil
}

func (e *stubEngine) Take(ctx context.Context, h *tiers.Holding) error {
	e.mu.Lock()
	e.took = append(e.took, *h)
	b, err := e.blocks[h.Path], e.takeErr
	e.mu.Unlock()
	switch {
	case err != nil:
		return err
	case b != nil && b.Seq >= h.Seq:
		return &block.Error{Op: "take", Err: block.ErrExist}
	}
	f, err := newMemFile(nil)
	if err != nil {
		return err
	}
	defer f.Close()
	key, err := block.ParseKey(h.Path)
	if err != nil {
		return err
	}
	done := make(chan driver.Outcome, 1)
	e.tier.Load(&driver.Job{
		Blocks: []driver.Transfer{{Key: key, Size: h.Size, Sum: h.Sum, Attrs: driver.Attrs{Seq: h.Seq}, File: f}},
		Done:   func(r *driver.Result) { done <- r.Outcomes[0] },
	})
	o := <-done
	if o.Status != driver.Loaded {
		return &block.Error{Op: "take", Err: errors.Join(block.ErrNotFound, o.Err)}
	}
	e.put(*h, content(f))
	return nil
}

func (e *stubEngine) Supersede(path string, dir bool, seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.blocks[path]; b != nil && b.Seq < seq {
		delete(e.blocks, path)
	}
}

func (e *stubEngine) Observe(seq uint64, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observed = max(e.observed, seq)
}

// stubEvents is an event log that a test writes.
type stubEvents struct {
	mu   sync.Mutex
	list []event.Event
	from uint64 // number of the first in list
	read uint64 // the highest number requested
	news chan struct{}
}

func newStubEvents() *stubEvents { return &stubEvents{from: 1, news: make(chan struct{})} }

func (l *stubEvents) add(list ...event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, list...)
	close(l.news)
	l.news = make(chan struct{})
}

// lose makes a gap of n events, and adds one after it.
func (l *stubEvents) lose(n uint64, ev event.Event) {
	l.mu.Lock()
	l.from += uint64(len(l.list)) + n
	l.list = nil
	l.mu.Unlock()
	l.add(ev)
}

func (l *stubEvents) Next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.from + uint64(len(l.list))
}

// reached reports whether all events have been read and handled.
func (l *stubEvents) reached() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read == l.from+uint64(len(l.list))
}

func (l *stubEvents) Read(ctx context.Context, seq uint64, buf []event.Event) (int, uint64, error) {
	for {
		l.mu.Lock()
		l.read = max(l.read, seq)
		var missed uint64
		at := seq
		if at < l.from {
			missed, at = l.from-seq, l.from
		}
		n := 0
		if i := at - l.from; i < uint64(len(l.list)) {
			n = copy(buf, l.list[i:])
		}
		news := l.news
		l.mu.Unlock()
		if n > 0 {
			return n, missed, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

// timers is a clock whose timers run out on command of the test.
type timers struct {
	moved atomic.Int64 // nanoseconds since the clock was made

	mu   sync.Mutex
	set  map[timerKind][]chan time.Time
	long map[timerKind][]time.Duration // all that were ever set
	news chan struct{}
}

func newTimers() *timers {
	return &timers{set: map[timerKind][]chan time.Time{}, long: map[timerKind][]time.Duration{}, news: make(chan struct{})}
}

func (c *timers) clock() clock {
	at := time.Now()
	return clock{func() time.Time { return at.Add(time.Duration(c.moved.Load())) }, c.after}
}

func (c *timers) after(what timerKind, d time.Duration) (<-chan time.Time, func()) {
	timer := make(chan time.Time, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set[what] = append(c.set[what], timer)
	c.long[what] = append(c.long[what], d)
	close(c.news)
	c.news = make(chan struct{})
	return timer, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.set[what] = slices.DeleteFunc(c.set[what], func(k chan time.Time) bool { return k == timer })
	}
}

// fire waits until a timer of that kind is set, and makes it run out.
func (c *timers) fire(t testing.TB, what timerKind) {
	t.Helper()
	for {
		c.mu.Lock()
		news := c.news
		c.mu.Unlock()
		if c.tryFire(what) {
			return
		}
		within(t, "timer", news)
	}
}

// tryFire makes a timer of that kind run out, if one is set.
func (c *timers) tryFire(what timerKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.set[what]
	if len(list) == 0 {
		return false
	}
	list[0] <- time.Now()
	c.set[what] = list[1:]
	return true
}

// testOptions are options of a tier over a stub. A busy machine does not use up its timeout.
func testOptions(n *stubNode) Options {
	o, err := Options{Lost: n.lost, Replicas: 1, Accept: true, Timeout: patience}.withDefaults()
	if err != nil {
		panic(err)
	}
	return o
}

// openStub opens a tier over a stub.
func openStub(t testing.TB, n *stubNode, o Options, c clock) *Tier {
	t.Helper()
	tier := open(o, n, c)
	tier.segment.lookup = func(context.Context, string) ([]string, error) { return nil, errors.New("no network") }
	t.Cleanup(func() { _ = tier.Close(context.Background()) })
	return tier
}

var realClock = clock{time.Now, after}

// stillClock has real timers and a time that stands still: nothing lapses on a slow machine.
func stillClock() clock {
	at := time.Now()
	return clock{func() time.Time { return at }, after}
}

// testHost records the calls of the tier.
type testHost struct{ lost chan block.Key }

func (h *testHost) MayEvict(block.Key) bool       { return true }
func (h *testHost) Lost(key block.Key, err error) { h.lost <- key }
func (h *testHost) wantLost(t testing.TB, path string) {
	t.Helper()
	if key := within(t, "Lost", h.lost); key != keyOf(path) {
		t.Errorf("lost %v, want %s", key, path)
	}
}

func keyOf(path string) block.Key { k, _ := block.ParseKey(path); return k }
func entryOf(path string, seq uint64) location.Entry {
	return location.Entry{Hash: location.HashPath(path), Seq: seq, Mode: modeRegular}
}
