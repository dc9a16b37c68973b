package peer

import (
	"context"
	"errors"
	"hash"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/peer/pace"
)

const (
	// maxHolders is how many holders of a block are tried at most.
	maxHolders = 8
	// maxFetch is how many blocks are fetched in one request.
	maxFetch = 256
)

// Results for one block at one holder, besides rdma's errors.
var (
	errOtherVersion = errors.New("the holder has another version")
	errBadBytes     = errors.New("the bytes disagree with their checksum")
	errNoChecksum   = errors.New("the holder sent no checksum")
)

// piece is one block of a load. It is owned by one goroutine at a time.
type piece struct {
	tr      *driver.Transfer
	out     *driver.Outcome
	path    string
	pending bool          // it was being stored here when the load began
	holders []holder      // not tried yet, best first; during an attempt the first is being tried
	left    time.Duration // that the block may still wait
	queued  time.Duration // that it has waited for room
	rest    time.Duration // the last one of comeBack
	asked   bool          // other nodes were asked about it
	tried   []member      // that did not give it

	asks    bool // the first of holders is its keeper in this zone, which may not have it
	claimed bool // this node is the one of its zone that fetches it

	later       bool // a holder told it to come back
	corrupt     bool // a holder sent bad bytes
	unavailable bool // a holder could not be asked, or did not answer
}

// KeepsUser implements driver.UserKeeper.
func (t *Tier) KeepsUser() {}

// Load implements driver.Tier.
func (t *Tier) Load(job *driver.Job) {
	switch {
	case !job.Spare && t.begin(func() { t.runLoad(job) }):
	case job.Spare && t.enter():
		defer t.jobs.Done()
		t.runLoad(job)
	default:
		t.refuse("load", job)
	}
}

func (t *Tier) runLoad(job *driver.Job) {
	res := newResult(job)
	pieces := make([]*piece, 0, len(job.Blocks))
	for i := range job.Blocks {
		tr := &job.Blocks[i]
		p := &piece{tr: tr, out: &res.Outcomes[i], path: tr.Key.Path(), left: t.opts.Timeout}
		if tr.Size < 0 {
			p.out.Err = t.fail("load", tr.Key, block.ErrInvalid)
			continue
		}
		p.pending = t.storing.has(p.path) // before it is located: see Lookup
		p.holders = t.locate(p.path, tr.Attrs.Seq, nil)
		p.holders = p.holders[:min(len(p.holders), maxHolders)]
		t.viaKeeper(p)
		pieces = append(pieces, p)
	}
	t.loading.add(pieces, 1)
	t.fetchAll(t.ctx, pieces)
	t.loading.add(pieces, -1)
	job.Done(res)
}

// fetchAll gets the pieces from their holders: those with the same first holder in one request, and
// the ones that it did not give from the next holders. It returns when each piece has its outcome.
func (t *Tier) fetchAll(ctx context.Context, pieces []*piece) {
	groups, resting, unknown := t.grouped(ctx, pieces)
	works := make([]func() []*piece, 0, len(groups)+2) // each returns the pieces that are still without their outcome
	for _, group := range groups {
		works = append(works, func() []*piece { return t.fetchGroup(ctx, group) })
	}
	if len(resting) > 0 {
		works = append(works, func() []*piece { return t.comeBack(ctx, resting) })
	}
	if len(unknown) > 0 {
		works = append(works, func() []*piece { return t.askAbout(ctx, unknown) })
	}
	var wg sync.WaitGroup
	for i, work := range works {
		if i == len(works)-1 {
			t.fetchAll(ctx, work())
			break
		}
		wg.Go(func() { t.fetchAll(ctx, work()) }) // the function waits for it below
	}
	wg.Wait()
}

// grouped returns the pieces by their first holders, in requests, those that are to rest, and those about which other
// nodes are to be asked. It gives up the others.
func (t *Tier) grouped(ctx context.Context, pieces []*piece) (groups [][]*piece, resting, unknown []*piece) {
	type request struct {
		peer string
		asks bool // its answers are short: they do not wait behind blocks
	}
	groupOf := make(map[request]int) // index in groups
	for _, p := range pieces {
		p.unavailable = p.unavailable || p.left <= 0
		switch {
		case p.left <= 0 || ctx.Err() != nil:
			t.giveUp(ctx, p)
			continue
		case len(p.holders) > 0:
		case p.later:
			resting = append(resting, p)
			continue
		case t.mayAsk(p):
			unknown = append(unknown, p)
			continue
		default:
			t.giveUp(ctx, p)
			continue
		}
		r := request{p.holders[0].peer.Name(), p.asks}
		at, ok := groupOf[r]
		if !ok || len(groups[at]) == maxFetch {
			at = len(groups)
			groupOf[r] = at
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], p)
	}
	return groups, resting, unknown
}

// giveUp settles a piece that no holder gave.
func (t *Tier) giveUp(ctx context.Context, p *piece) {
	key := p.tr.Key
	switch {
	case ctx.Err() != nil:
		p.out.Err = t.fail("load", key, block.ErrClosed)
	case p.unavailable:
		p.out.Err = t.fail("load", key, block.ErrUnavailable)
	case p.corrupt:
		p.out.Err = t.fail("load", key, block.ErrCorrupt)
		t.lost(key, block.ErrCorrupt)
	case p.pending:
		p.out.Err = t.fail("load", key, block.ErrPending)
	default:
		p.out.Status = driver.Absent
	}
}

// settle records that the file of a piece holds the block.
func (t *Tier) settle(p *piece, f *fetched) {
	if err := trim(p.tr.File, p.tr.Size); err != nil {
		p.out.Err = t.fail("load", p.tr.Key, errors.Join(block.ErrUnavailable, err))
		return
	}
	p.out.Status, p.out.Bytes, p.out.Sum, p.out.Attrs = driver.Loaded, p.tr.Size, f.info.Sum, attrsOf(&f.info)
	t.counters.loaded.Add(1)
	t.counters.loadedBytes.Add(uint64(p.tr.Size))
}

// trim cuts off bytes beyond size.
func trim(file *os.File, size int64) error {
	fi, err := file.Stat()
	if err != nil || fi.Size() <= size {
		return err
	}
	return file.Truncate(size)
}

// attrsOf is a holder's description of a block.
func attrsOf(info *cluster.BlockInfo) *driver.Attrs {
	a := &driver.Attrs{
		Seq: info.Seq, Mode: info.Mode & 0o7777, UID: info.UID, GID: info.GID,
		Mtime: info.Mtime, Expires: info.Expires, Pinned: info.Pinned, User: info.User,
	}
	for _, d := range info.Dirs {
		a.Dirs = append(a.Dirs, driver.DirAttrs(d))
	}
	return a
}

// fetched is the result of one holder for one piece.
type fetched struct {
	at   int // of the piece in its group
	info cluster.BlockInfo
	err  error // nil: all bytes are there and correct
}

// newFetch returns the fetch of a piece into a file. The fetch sends its result to done, and does
// not block if done has room. progress, if not nil, grows with the bytes that come.
func (t *Tier) newFetch(p *piece, at int, file *os.File, progress *atomic.Int64, done chan<- fetched) *cluster.Fetch {
	if progress == nil {
		progress = new(atomic.Int64)
	}
	var sum hash.Hash64
	tr := p.tr
	return &cluster.Fetch{
		BlockRef: cluster.BlockRef{Path: p.path, Seq: tr.Attrs.Seq, Patient: t.mayComeBack(p), Claim: p.asks}, Size: tr.Size,
		Dest: func(info *cluster.BlockInfo) (rdma.Dest, error) {
			progress.Add(1)
			switch {
			case !info.Sum.Valid:
				return rdma.Dest{}, errNoChecksum
			case info.Size != tr.Size, info.Mode&modeType == modeDir,
				tr.Attrs.Seq != 0 && info.Seq != tr.Attrs.Seq,
				tr.Sum.Valid && info.Sum != tr.Sum:
				return rdma.Dest{}, errOtherVersion
			}
			sum = countedHash{block.NewChecksum(), progress}
			return rdma.Dest{File: file, Hash: sum}, nil
		},
		Done: func(info *cluster.BlockInfo, err error) {
			f := fetched{at: at, err: err}
			switch {
			case err != nil:
			case info == nil || sum == nil:
				f.err = rdma.ErrProtocol
			case sum.Sum64() != info.Sum.Sum:
				f.err = errBadBytes
			default:
				f.info = *info
				f.info.Dirs = slices.Clone(info.Dirs)
			}
			done <- f
		},
	}
}

// countedHash is a checksum that counts the bytes that came.
type countedHash struct {
	hash.Hash64
	progress *atomic.Int64
}

// Write implements hash.Hash.
func (h countedHash) Write(b []byte) (int, error) {
	h.progress.Add(int64(len(b)))
	return h.Hash64.Write(b)
}

// failed records why a holder did not give a piece, and removes the holder from the list.
func (t *Tier) failed(p *piece, h holder, err error, cut cutReason) {
	p.holders = slices.DeleteFunc(p.holders, func(k holder) bool { return k.peer.Name() == h.peer.Name() })
	c, asked := &t.counters, p.asks
	p.asks = false
	if !asked && !errors.Is(err, rdma.ErrLater) {
		p.tried = append(p.tried, h.peer)
	}
	switch {
	case errors.Is(err, errOtherVersion):
		t.hints.endAnswer(p.path, h.peer.Name(), h.Seq, t.now()) // it has become wrong, or the load is
	case errors.Is(err, rdma.ErrLater):
		p.later = true
		if t.near(h.peer) { // this zone has the block, or is about to
			p.holders = slices.DeleteFunc(p.holders, func(k holder) bool { return !t.near(k.peer) })
		}
	case asked && errors.Is(err, rdma.ErrGone):
		p.claimed = true
	case errors.Is(err, rdma.ErrGone):
		c.gone.Add(1)
		t.hints.drop(p.path, h.peer.Name(), h.Seq, t.now())
		t.gone.Add(pace.Copy{Hash: location.HashPath(p.path), Seq: h.Seq, Peer: h.peer.Name()}, t.now().Add(goneTime))
	case errors.Is(err, errBadBytes):
		p.corrupt = true
		c.corrupt.Add(1)
		t.bad.Add(pace.Copy{Hash: location.HashPath(p.path), Seq: h.Seq, Peer: h.peer.Name()}, t.now().Add(badTime))
		t.log.Warn("peer sent bytes that disagree with their checksum",
			peerField(h.peer), pathField(p.path))
	case cut == cutTimeout:
		p.unavailable = p.unavailable || !asked
		c.timeouts.Add(1)
	default:
		p.unavailable = p.unavailable || !asked
		c.failures.Add(1)
	}
}
