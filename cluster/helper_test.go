package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/sets"
	"github.com/kvfs/kvfs/tiers/block"
)

// patience is how long a test waits for what must happen, and what must not end by its own
// time: the machine may be busy.
const patience = time.Minute

// withPatience returns a context with the deadline that a call needs.
func withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, patience)
}

// dial makes a connection to the control channel of another node.
func (n *Node) dial(name, addr string) (*grpc.ClientConn, error) {
	channel := n.channel()
	return control.Dial(name, addr, &channel)
}

var eventually = harness.Poll

// fakeBlock is one block of a fakeBackend.
type fakeBlock struct {
	info BlockInfo
	file string
}

// fakeBackend holds blocks in files.
type fakeBackend struct {
	t   *testing.T
	dir string

	mu       sync.Mutex
	n        *Node
	blocks   map[string]*fakeBlock
	buried   map[string]uint64
	observed uint64
	lent     int                                                                      // loans that are open
	mangle   func(ref *BlockRef, info *BlockInfo)                                     // makes answers wrong
	store    func(ctx context.Context, from *Peer, offers []BlockInfo) []StoreOutcome // nil: fetches them
	gate     chan struct{}                                                            // not nil: Lend waits until it is closed
	later    bool                                                                     // Lend says so of a claim for a block that is not there
}

// put makes the node hold a block.
func (b *fakeBackend) put(path string, seq uint64, data []byte) BlockInfo {
	b.t.Helper()
	info := BlockInfo{
		Path: path, Seq: seq, Size: int64(len(data)), Sum: block.Sum(data), Mode: 0o100644, UID: 7, GID: 8,
		Mtime: 12345, Expires: 99, Pinned: true, Dirs: []DirInfo{{Mode: 0o40755, UID: 1, GID: 2}},
	}
	name := filepath.Join(b.dir, fmt.Sprintf("%x-%d", location.HashPath(path), seq))
	if err := os.WriteFile(name, data, 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.locked(func() { b.blocks[path] = &fakeBlock{info, name} })
	b.n.Append(record(&info))
	return info
}

func record(i *BlockInfo) feed.Record {
	return feed.Record{
		Op: feed.Hold, Hash: location.HashPath(i.Path), Seq: i.Seq, Size: i.Size,
		Mode: i.Mode, UID: i.UID, GID: i.GID, Memory: true,
	}
}

// drop makes the node hold a block no longer, without a word if quiet.
func (b *fakeBackend) drop(path string, quiet bool) {
	b.locked(func() { delete(b.blocks, path) })
	if !quiet {
		b.n.Append(feed.Record{Op: feed.Release, Hash: location.HashPath(path)})
	}
}

// remove drops a block everywhere.
func (b *fakeBackend) remove(path string, seq uint64) {
	b.locked(func() { delete(b.blocks, path) })
	b.n.Append(
		feed.Record{Op: feed.Bury, Hash: location.HashPath(path), Seq: seq, Path: path, Mode: 0o100000, Time: time.Now().UnixNano()},
		feed.Record{Op: feed.Release, Hash: location.HashPath(path)})
}

func (b *fakeBackend) Snapshot(_ context.Context, fn func(r *feed.Record) error) error {
	b.mu.Lock()
	var list []feed.Record
	for _, f := range b.blocks {
		list = append(list, record(&f.info))
	}
	b.mu.Unlock()
	for i := range list {
		if err := fn(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *fakeBackend) Lend(ctx context.Context, ref *BlockRef) (BlockInfo, rdma.Loan, error) {
	b.mu.Lock()
	gate := b.gate
	b.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return BlockInfo{}, rdma.Loan{}, rdma.ErrBusy
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.blocks[ref.Path]
	if f == nil && ref.Claim && b.later {
		return BlockInfo{}, rdma.Loan{}, rdma.ErrLater
	}
	if f == nil || ref.Seq != 0 && ref.Seq != f.info.Seq {
		return BlockInfo{}, rdma.Loan{}, rdma.ErrGone
	}
	file, err := os.Open(f.file)
	if err != nil {
		return BlockInfo{}, rdma.Loan{}, rdma.ErrGone
	}
	info := f.info
	if b.mangle != nil {
		b.mangle(ref, &info)
	}
	b.lent++
	var once sync.Once
	return info, rdma.Loan{File: file, Size: f.info.Size, Close: func() {
		once.Do(func() {
			file.Close()
			b.locked(func() { b.lent-- })
		})
	}}, nil
}

func (b *fakeBackend) List(_ context.Context, dir, after string, limit int) (names []Name, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for path, f := range b.blocks {
		d, name := filepath.Split(path)
		if strings.TrimSuffix(d, "/") == dir && name > after {
			names = append(names, Name{Name: name, BlockInfo: f.info})
		}
	}
	slices.SortFunc(names, func(x, y Name) int { return strings.Compare(x.Name, y.Name) })
	if len(names) > limit {
		return names[:limit], true, nil
	}
	return names, false, nil
}

func (b *fakeBackend) Stat(paths []string) []*BlockInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*BlockInfo, len(paths))
	for i, p := range paths {
		if f := b.blocks[p]; f != nil {
			info := f.info
			list[i] = &info
		}
	}
	return list
}

func (b *fakeBackend) Store(ctx context.Context, from *Peer, offers []BlockInfo) []StoreOutcome {
	b.mu.Lock()
	store := b.store
	b.mu.Unlock()
	if store != nil {
		return store(ctx, from, offers)
	}
	outcomes := make([]StoreOutcome, len(offers))
	for i := range offers {
		data, info, err := fetchOne(b.t, ctx, from, BlockRef{Path: offers[i].Path, Seq: offers[i].Seq})
		if err != nil {
			outcomes[i] = StoreOutcome{Status: StoreFailed, Err: block.ErrUnavailable}
			continue
		}
		b.put(info.Path, info.Seq, data)
		outcomes[i] = StoreOutcome{Status: StoreDone}
	}
	return outcomes
}

func (b *fakeBackend) Bury(path string, _ bool, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buried[path] = max(b.buried[path], seq)
	if f := b.blocks[path]; f != nil && f.info.Seq < seq {
		delete(b.blocks, path)
	}
}

func (b *fakeBackend) Followed() {}

func (b *fakeBackend) Observe(seq uint64, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.observed = max(b.observed, seq)
}

func (b *fakeBackend) observedSeq() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.observed
}

func (b *fakeBackend) buriedSeq(path string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buried[path]
}

func (b *fakeBackend) loans() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lent
}

var errChecksum = errors.New("checksum differs")

// fetchOne fetches a block and verifies it.
func fetchOne(t testing.TB, ctx context.Context, p *Peer, ref BlockRef) (data []byte, info BlockInfo, err error) {
	t.Helper()
	file, ferr := os.CreateTemp(t.TempDir(), "")
	if ferr != nil {
		t.Fatal(ferr)
	}
	defer file.Close()
	var sum hash.Hash64
	calls := 0
	p.Fetch(ctx, []*Fetch{{
		BlockRef: ref,
		Dest: func(*BlockInfo) (rdma.Dest, error) {
			sum = block.NewChecksum()
			return rdma.Dest{File: file, Hash: sum}, nil
		},
		Done: func(i *BlockInfo, e error) {
			calls++
			if err = e; e == nil {
				info = *i
			}
		},
	}})
	if calls != 1 {
		t.Fatalf("Done called %d times", calls)
	}
	if err != nil {
		return nil, info, err
	}
	data, ferr = os.ReadFile(file.Name())
	if ferr != nil {
		t.Fatal(ferr)
	}
	if block.Sum(data) != info.Sum || sum.Sum64() != info.Sum.Sum {
		return nil, info, errChecksum
	}
	return data, info, nil
}

// testNode is a node on loopback with a fake backend.
type testNode struct {
	*Node
	*fakeBackend
	logs *observer.ObservedLogs
	o    Options
}

// quick is a tuning for tests.
func quick() tuning {
	return tuning{
		retryMin: 5 * time.Millisecond, retryMax: 50 * time.Millisecond,
		breakerMin: 20 * time.Millisecond, breakerMax: 100 * time.Millisecond,
		exchange: 20 * time.Millisecond, capacity: 5 * time.Millisecond,
		stall: patience, // for those tests in which nothing is to stall
	}
}

// ownHost is a loopback address that is as good as surely this process's alone: a port that a
// test closes and opens again must not be another program's in between.
var ownHost = func() string {
	octet := func() int { return 1 + rand.IntN(254) }
	return fmt.Sprintf("127.%d.%d.%d", octet(), octet(), octet())
}()

// start opens and starts a node that joins others. change may alter its options.
func start(t *testing.T, name string, change func(o *Options), join ...*testNode) *testNode {
	t.Helper()
	tn := prepare(t, name, change, join...)
	must(t, tn.Start(tn.fakeBackend))
	return tn
}

// prepare opens a node.
func prepare(t *testing.T, name string, change func(o *Options), join ...*testNode) *testNode {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	o := Options{
		Gossip:  gossip.Options{Name: name, Bind: ownHost + ":0", Profile: "wan", Rejoin: 50 * time.Millisecond},
		Version: "v1-" + name, Zone: "z1", Logger: zap.New(core), tuning: quick(), CallTimeout: patience,
		Capacity: func() (int64, int64) { return 1000, 500 },
	}
	for _, j := range join {
		o.Gossip.Join = append(o.Gossip.Join, j.gossip.Self().Addr)
	}
	if change != nil {
		change(&o)
	}
	var sourced interface{ SetSource(rdma.Source) }
	if o.Transport == nil {
		tr, err := tcp.Open(tcp.Options{Bind: "127.0.0.1:0", StallTimeout: patience})
		must(t, err)
		o.Transport = tr
	}
	switch tr := o.Transport.(type) {
	case interface{ SetSource(rdma.Source) }:
		sourced = tr
	case noGetter:
		sourced, _ = tr.Transport.(interface{ SetSource(rdma.Source) })
	}
	n, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(errors.Join(err, o.Transport.Close()))
	}
	t.Cleanup(func() { n.Close() })
	if sourced != nil {
		sourced.SetSource(n)
	}
	b := &fakeBackend{t: t, dir: t.TempDir(), n: n, blocks: map[string]*fakeBlock{}, buried: map[string]uint64{}}
	return &testNode{Node: n, fakeBackend: b, logs: logs, o: o}
}

// noGetter hides that a transport knows names.
type noGetter struct{ rdma.Transport }

func (t noGetter) Caps() rdma.Caps {
	c := t.Transport.Caps()
	c.Get = false
	return c
}

func (t noGetter) Connect(addr string) (rdma.Peer, error) {
	p, err := t.Transport.Connect(addr)
	return onlyPeer{p}, err
}

type onlyPeer struct{ rdma.Peer }

// cluster starts nodes that all know each other.
func cluster(t *testing.T, names ...string) []*testNode {
	t.Helper()
	var nodes []*testNode
	for _, name := range names {
		nodes = append(nodes, start(t, name, nil, nodes[:min(len(nodes), 1)]...))
	}
	together(t, nodes...)
	return nodes
}

// together waits until the nodes follow each other.
func together(t *testing.T, nodes ...*testNode) {
	t.Helper()
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				eventually(t, a.o.Gossip.Name+" follows "+b.o.Gossip.Name, func() bool {
					m, ok := a.member(b.o.Gossip.Name)
					return ok && m.State == stateAlive && m.Feed == feedFollowing && m.Snapshots > 0
				})
			}
		}
	}
}

func (tn *testNode) member(name string) (Member, bool) {
	for _, m := range tn.Members() {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
}

// located waits until a node finds a path at as many others.
func (tn *testNode) located(t *testing.T, path string, holders int) []Location {
	t.Helper()
	var list []Location
	eventually(t, fmt.Sprintf("%s finds %s at %d", tn.o.Gossip.Name, path, holders), func() bool {
		list = tn.Locate(path, nil)
		return len(list) == holders
	})
	return list
}

// pattern returns n bytes that depend on seed.
func pattern(seed, n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%08d", seed)), n/8+1)[:n]
}

func TestMain(m *testing.M) {
	sets.Select()
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
