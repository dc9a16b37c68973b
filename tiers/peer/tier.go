package peer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/peer/pace"
)

// Tier has the blocks of other nodes. Its methods may be called in parallel.
type Tier struct {
	opts Options
	node node
	log  *zap.Logger
	clock

	host   driver.Host // nil, or constant after the first job; see SetHost
	engine engine      // set by start

	hints    *hintTable
	bad      *pace.Shunned // copies whose bytes were wrong
	gone     *pace.Shunned // copies that were absent
	declined *pace.Shunned // peers that take no copies
	storing  storingTable
	loading  loadTable
	watches  watchTable
	older    *older
	room     *pace.Room
	patience rdma.Patience // of fetches; less than a hedge takes to begin
	speed    pace.Speeds
	silent   pace.Silences
	tests    sync.Map // the names of the peers being tested
	segment  *segment
	takes    chan struct{} // capacity: how many offers are taken at a time
	offers   chan struct{} // capacity: how many stores are under way at a time
	loans    loans         // of large blocks, to peers
	claims   claims        // of blocks that other zones have
	zone     atomic.Pointer[zone]
	counters counters
	private  atomic.Bool // a block was withheld for its mode

	ctx    context.Context // ends when jobs must be cut off
	cancel context.CancelFunc
	wg     sync.WaitGroup // publisher, notifier, background
	jobs   sync.WaitGroup // jobs under way

	closeOnce sync.Once
	mu        struct {
		sync.Mutex
		started, closed bool
	}
}

var (
	_ driver.Remote  = (*Tier)(nil)
	_ driver.Hosted  = (*Tier)(nil)
	_ driver.Statser = (*Tier)(nil)
)

// counters are totals since the tier was opened.
type counters struct {
	stored, storedBytes, loaded, loadedBytes atomic.Uint64
	skippedNoSpace                           atomic.Uint64
	requests, fetches, fetchedBytes          atomic.Uint64
	gone, corrupt, timeouts, failures        atomic.Uint64
	hedges, hedgeWins                        atomic.Uint64
	taken, takenBytes, refused               atomic.Uint64
	lent, lentBytes                          atomic.Uint64
	later, rests                             atomic.Uint64
	published, resyncs                       atomic.Uint64
	asked, askedFound                        atomic.Uint64
}

// Open returns a tier over a node that is open and not started. It fails with all errors in the
// options.
func Open(o Options) (*Tier, error) {
	o, err := o.withDefaults()
	if o.Node == nil {
		err = errors.Join(err, fmt.Errorf("node missing: %w", block.ErrInvalid))
	}
	if err != nil {
		return nil, fmt.Errorf("peer tier: %w", err)
	}
	return open(o, realNode{o.Node}, clock{time.Now, after}), nil
}

// open is Open with valid options.
func open(o Options, n node, c clock) *Tier {
	t := &Tier{
		opts: o, node: n, log: o.Logger, clock: c,
		hints: newHintTable(), bad: pace.NewShunned(), gone: pace.NewShunned(), declined: pace.NewShunned(), room: pace.NewRoom(o.MaxInFlightBytes),
		patience: rdma.Patience{Time: 2 * time.Millisecond},
		takes:    make(chan struct{}, maxTakes), offers: make(chan struct{}, maxStores),
	}
	t.older, t.segment = newOlder(t), newSegment(t)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.watches.init()
	o.Lost.tier.Store(t)
	t.wg.Go(t.runNotifier) // ends with t.ctx, which Close ends
	return t
}

// clock is the time.
type clock struct {
	now func() time.Time
	// after returns a channel that gets an element after d, and a function that ends that.
	after func(what timerKind, d time.Duration) (<-chan time.Time, func())
}

// timerKind is the kind of a timer, for tests.
type timerKind uint8

const (
	limitTimer timerKind = iota // a fetch has taken too long
	hedgeTimer                  // it is time to ask a second holder
	roomTimer                   // a fetch has waited too long for room
	busyTimer                   // it is time to offer again to peers that were busy
	restTimer                   // it is time to ask again for a block that holders send to others
	hintTimer                   // it is time to look at watched keys whose loss is delayed
)

func after(_ timerKind, d time.Duration) (<-chan time.Time, func()) {
	timer := time.NewTimer(d)
	return timer.C, func() { timer.Stop() }
}

// Start gives the tier the engine whose blocks it serves to peers, joins the cluster and begins to
// announce. Call it once, after the engine has been opened with the tier.
func (t *Tier) Start(e Engine) error { return t.start(realEngine{e}, e.Events()) }

func (t *Tier) start(e engine, log events) error {
	t.mu.Lock()
	if t.mu.closed || t.mu.started {
		err := block.ErrInvalid
		if t.mu.closed {
			err = block.ErrClosed
		}
		t.mu.Unlock()
		return &block.Error{Op: "start", Tier: t.opts.Name, Err: err}
	}
	t.mu.started = true
	t.engine = e
	from := log.Next() // earlier changes are in every snapshot
	t.wg.Go(func() { t.publish(log, from) })
	t.wg.Go(t.older.run)
	t.mu.Unlock()
	return t.node.Start(&backend{t})
}

// SetHost implements driver.Hosted.
func (t *Tier) SetHost(h driver.Host) { t.host = h }

// lost reports a loss to the Host, if there is one.
func (t *Tier) lost(key block.Key, err error) {
	if t.host != nil {
		t.host.Lost(key, err)
	}
}

// fail wraps a kind of error.
func (t *Tier) fail(op string, key block.Key, err error) error {
	return &block.Error{Op: op, Tier: t.opts.Name, Key: key, Err: err}
}

func (t *Tier) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.closed
}

// Lookup implements driver.Tier: it answers from the location index and the hints, and asks no other node.
func (t *Tier) Lookup(ctx context.Context, keys []block.Key, out []driver.Presence) error {
	clear(out)
	if len(keys) != len(out) {
		return t.fail("lookup", block.Key{}, block.ErrInvalid)
	}
	if t.isClosed() {
		return t.fail("lookup", block.Key{}, block.ErrClosed)
	}
	var buf [8]holder
	for i, key := range keys {
		path := key.Path()
		pending := t.storing.has(path) // first: when a store ends there is a hint
		if len(t.locate(path, 0, buf[:0])) > 0 {
			out[i] = driver.Hit
		} else if pending {
			out[i] = driver.Pending
		}
	}
	return nil
}

// Touch implements driver.Tier. It does nothing: peers track the use of their blocks themselves.
func (t *Tier) Touch([]block.Key) {}

// Remove implements driver.Tier: it makes all versions of the blocks that this node knows void, on all nodes.
func (t *Tier) Remove(keys []block.Key) int {
	if t.isClosed() {
		return 0
	}
	found := 0
	var buf [8]holder
	for _, key := range keys {
		path := key.Path()
		seq := t.storing.latest(path) // first: when a store ends there is a hint
		holders := t.locate(path, 0, buf[:0])
		if len(holders) > 0 {
			found++
			seq = max(seq, holders[0].Seq)
		}
		if seq > 0 {
			t.Bury([]driver.Grave{{Path: path, Seq: max(seq, seq+1)}}) // the last number has none above it
		}
	}
	return found
}

// Bury implements driver.Remote.
func (t *Tier) Bury(graves []driver.Grave) {
	if len(graves) == 0 || t.isClosed() {
		return
	}
	records := make([]feed.Record, len(graves))
	for i, g := range graves {
		records[i] = feed.Record{
			Op: feed.Bury, Hash: location.HashPath(g.Path), Seq: g.Seq, Path: g.Path, Mode: modeRegular, Time: t.now().UnixNano(),
		}
		if g.Dir {
			records[i].Mode = modeDir
		}
	}
	t.node.Append(records...)
	for _, g := range graves {
		t.superseded(g.Path, g.Seq)
	}
}

// superseded applies a grave to the state of this tier.
func (t *Tier) superseded(path string, seq uint64) {
	t.storing.bury(path, seq)
	t.hints.bury(path, seq, t.now())
}

// The type bits of st_mode.
const (
	modeType    = 0o170000
	modeDir     = 0o040000
	modeRegular = 0o100000
)

// begin runs a job on its own goroutine. False: the tier is closed.
func (t *Tier) begin(run func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return false
	}
	t.jobs.Go(func() { // Close waits for it; t.ctx cuts it off
		deepen()
		run()
	})
	return true
}

// enter is begin for a job that its caller runs; t.jobs.Done follows.
func (t *Tier) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.closed {
		t.jobs.Add(1)
	}
	return !t.mu.closed
}

// deepen grows the stack of a new goroutine at once to what a fetch needs. Else it grows in steps, and each moves all that is on it.
//
//go:noinline
func deepen() {
	var room [12 << 10]byte
	runtime.KeepAlive(&room)
}

// background runs a function that Close cuts off and waits for. False: the tier is closed.
func (t *Tier) background(run func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.mu.closed {
		t.wg.Go(run)
	}
	return !t.mu.closed
}

// refuse completes a job that came after Close.
func (t *Tier) refuse(op string, job *driver.Job) {
	res := newResult(job)
	for i := range res.Outcomes {
		res.Outcomes[i].Err = t.fail(op, res.Outcomes[i].Key, block.ErrClosed)
	}
	go job.Done(res) // ends with Done: it may not be called from within Store and Load
}

// newResult returns a result of blocks that have failed so far.
func newResult(job *driver.Job) *driver.Result {
	res := &driver.Result{Job: job.ID, Outcomes: make([]driver.Outcome, len(job.Blocks))}
	for i := range job.Blocks {
		res.Outcomes[i].Key = job.Blocks[i].Key
	}
	return res
}

// Close implements driver.Tier, and leaves the cluster. It serves peers until the jobs are done,
// because they may be taking copies.
func (t *Tier) Close(ctx context.Context) error {
	var err error
	t.closeOnce.Do(func() { err = t.close(ctx) })
	return err
}

func (t *Tier) close(ctx context.Context) error {
	t.mu.Lock()
	t.mu.closed = true
	started := t.mu.started
	t.mu.Unlock()
	stop := context.AfterFunc(ctx, t.cancel)
	t.jobs.Wait()
	stop()
	t.cancel()
	t.wg.Wait()
	if started {
		t.leave(ctx)
	}
	return t.node.Close()
}

// leave tells the cluster that this node leaves. If that fails, the other nodes detect it by
// themselves.
func (t *Tier) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	if err := t.node.Leave(ctx); err != nil {
		t.log.Warn("cannot tell the cluster that this node leaves", zap.Error(err))
	}
}
