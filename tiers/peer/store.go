package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/peer/pace"
)

const (
	// maxExtra is how many peers beyond Replicas are asked to take a copy of a block, instead of
	// those that did not.
	maxExtra = 3
	// maxStores is how many stores are under way at a time; a peer handles a few more.
	maxStores = 4
	// minBusy is how long a store rests before it offers again to busy peers, maxBusy after several
	// times.
	minBusy = 50 * time.Millisecond
	maxBusy = time.Second
)

// storeJob is one Store under way. One goroutine runs it.
type storeJob struct {
	t      *Tier
	job    *driver.Job
	res    *driver.Result
	blocks []*copying
}

// copying is one block of a store. It is owned by the goroutine of its job.
type copying struct {
	tr      *driver.Transfer
	out     *driver.Outcome
	path    string
	hash    uint64
	storing *storingBlock // nil: the block has its outcome
	sum     block.Checksum
	need    int         // missing copies
	order   []candidate // peers to ask next
	busy    []candidate // peers to ask again, after the others and a rest

	new, had    int   // peers that took it, that had it before
	superseded  bool  // a peer has a later version
	unavailable bool  // a peer could not be asked
	err         error // why another peer failed
}

// Store implements driver.Tier. The peers that take copies fetch them from this node, so the files
// of the job are read only if the checksum is not known.
func (t *Tier) Store(job *driver.Job) {
	s := &storeJob{t: t, job: job, res: newResult(job), blocks: make([]*copying, len(job.Blocks))}
	for i := range job.Blocks {
		tr := &job.Blocks[i]
		c := &copying{tr: tr, out: &s.res.Outcomes[i], path: tr.Key.Path(), need: t.opts.Replicas}
		c.hash = location.HashPath(c.path)
		s.blocks[i] = c
	}
	// From here on a look-up finds them pending.
	for _, c := range s.blocks {
		c.storing = t.storing.begin(c.path, c.tr.Attrs.Seq)
	}
	if !t.begin(s.run) {
		for _, c := range s.blocks {
			if c.storing != nil {
				t.storing.end(c.path, c.storing)
			}
		}
		t.refuse("store", job)
	}
}

func (s *storeJob) run() {
	t := s.t
	select {
	case t.offers <- struct{}{}:
		s.offerAll()
		<-t.offers
	case <-t.ctx.Done():
		for _, c := range s.blocks {
			s.conclude(c)
		}
	}
	for _, c := range s.blocks {
		if c.storing != nil {
			s.end(c)
		}
	}
	s.job.Done(s.res)
}

// offerAll gives each block its outcome.
func (s *storeJob) offerAll() {
	t := s.t
	ctx, cancel := context.WithTimeout(t.ctx, s.timeLimit(len(s.blocks)))
	defer cancel()
	all, away := t.candidates()
	var open []*copying
	for _, c := range s.blocks {
		switch {
		case c.storing == nil:
			s.skip(c, block.ErrPending)
		case s.prepare(c, all, away):
			open = append(open, c)
		}
	}
	rest := minBusy
	for ctx.Err() == nil {
		if groups := nextRound(open); len(groups) > 0 {
			s.offer(ctx, groups)
			continue
		}
		if !askAgain(open) {
			break
		}
		timer, stop := t.after(busyTimer, rest*3/4+rand.N(rest/2))
		select {
		case <-timer:
		case <-ctx.Done():
		}
		stop()
		rest = min(2*rest, maxBusy)
	}
	for _, c := range open {
		if ctx.Err() != nil && len(c.order)+len(c.busy) > 0 && c.new < c.need {
			c.unavailable = true // no time to ask the others
		}
		s.conclude(c)
	}
}

// timeLimit bounds a store of n blocks. Peers fetch several at a time, each within the time of a
// fetch.
func (s *storeJob) timeLimit(n int) time.Duration {
	return s.t.opts.Timeout * time.Duration(2+n/maxTakes)
}

// prepare checks one block before any peer is asked. False: it has its outcome.
func (s *storeJob) prepare(c *copying, all []candidate, away bool) bool {
	t := s.t
	tr := c.tr
	err := block.CheckPath(c.path)
	if err == nil && (tr.Size < 0 || tr.Size > location.MaxSize || tr.Attrs.Seq == 0) {
		err = block.ErrInvalid
	}
	if err != nil {
		c.out.Err = t.fail("store", tr.Key, err)
		return false
	}
	if t.node.buried(c.hash) > tr.Attrs.Seq {
		s.skip(c, block.ErrNotFound)
		return false
	}
	var buf [8]holder
	held := t.locate(c.path, tr.Attrs.Seq, buf[:0])
	c.had = len(held)
	if c.need -= c.had; c.need > 0 {
		c.order = s.order(c, held, all)
	}
	c.unavailable = away && c.need > 0
	if len(c.order) == 0 { // then the file need not be read
		s.conclude(c)
		return false
	}
	if c.sum, err = t.sumOf(tr); err != nil {
		c.out.Err = t.fail("store", tr.Key, err)
		return false
	}
	return true
}

// sumOf returns the checksum of a block. If it is not known, the engine computes it as for a loan and keeps it, so
// that the peers that fetch the block find it. It fails with ErrInvalid if the file is too short.
func (t *Tier) sumOf(tr *driver.Transfer) (block.Checksum, error) {
	fi, err := tr.File.Stat()
	if err != nil {
		return block.Checksum{}, fmt.Errorf("%w: %w", block.ErrUnavailable, err)
	}
	short := fmt.Errorf("file of %d bytes for a block of %d: %w", fi.Size(), tr.Size, block.ErrInvalid)
	if fi.Size() < tr.Size {
		return block.Checksum{}, short
	}
	if tr.Sum.Valid {
		return tr.Sum, nil
	}
	if !tr.Volatile { // else another reading may have another checksum
		if l, err := t.engine.lend(t.ctx, tr.Key.Path(), tr.Attrs.Seq); err == nil {
			l.close()
			return l.Sum, nil
		}
	}
	sum := block.NewChecksum()
	n, err := io.Copy(sum, io.NewSectionReader(tr.File, 0, tr.Size))
	switch {
	case err != nil:
		return block.Checksum{}, fmt.Errorf("%w: %w", block.ErrUnavailable, err)
	case n < tr.Size:
		return block.Checksum{}, short
	}
	return block.Checksum{Sum: sum.Sum64(), Valid: true}, nil
}

// order returns the peers to ask to take a block, best first.
func (s *storeJob) order(c *copying, held []holder, all []candidate) []candidate {
	t := s.t
	now := t.now()
	can := slices.DeleteFunc(slices.Clone(all), func(k candidate) bool {
		name := k.peer.Name()
		return slices.ContainsFunc(held, func(h holder) bool { return h.peer.Name() == name }) ||
			t.bad.Has(pace.Copy{Hash: c.hash, Seq: c.tr.Attrs.Seq, Peer: name}, now)
	})
	ranked := rank(c.hash, can)
	return ranked[:min(len(ranked), c.need+maxExtra)]
}

// nextRound chooses for each block as many peers as it lacks copies, and returns the
// blocks by peer.
func nextRound(open []*copying) map[member][]*copying {
	groups := make(map[member][]*copying)
	for _, c := range open {
		n := min(c.need-c.new, len(c.order))
		if n <= 0 || c.superseded {
			continue
		}
		for _, k := range c.order[:n] {
			groups[k.peer] = append(groups[k.peer], c)
		}
		c.order = c.order[n:]
	}
	return groups
}

// askAgain puts busy peers in line again, for blocks that still lack copies. False: there are none.
func askAgain(open []*copying) (some bool) {
	for _, c := range open {
		if c.new < c.need && !c.superseded && len(c.busy) > 0 {
			c.order, c.busy, some = c.busy, nil, true
		}
	}
	return some
}

// offer asks each peer, all at once, to take its blocks, and records their answers.
func (s *storeJob) offer(ctx context.Context, groups map[member][]*copying) {
	type answer struct {
		peer member
		list []*copying
		out  []cluster.StoreOutcome
	}
	answers := make(chan answer, len(groups))
	var wg sync.WaitGroup
	for p, list := range groups {
		offers := make([]cluster.BlockInfo, len(list))
		for i, c := range list {
			offers[i] = infoOf(c)
		}
		wg.Go(func() { answers <- answer{p, list, p.Store(ctx, offers)} }) // the function waits for it below
	}
	wg.Wait()
	close(answers)
	for a := range answers {
		for i, c := range a.list {
			o := cluster.StoreOutcome{Err: block.ErrUnavailable}
			if i < len(a.out) {
				o = a.out[i]
			}
			s.noteAnswer(c, a.peer, o)
		}
	}
}

// infoOf is a block as it is offered.
func infoOf(c *copying) cluster.BlockInfo {
	a := &c.tr.Attrs
	info := cluster.BlockInfo{
		Path: c.path, Seq: a.Seq, Size: c.tr.Size, Sum: c.sum, Mode: modeRegular | a.Mode&0o7777,
		UID: a.UID, GID: a.GID, Mtime: a.Mtime, Expires: a.Expires, Pinned: a.Pinned, User: a.User,
	}
	for _, d := range a.Dirs {
		info.Dirs = append(info.Dirs, cluster.DirInfo(d))
	}
	return info
}

// noteAnswer records a peer's answer to an offer.
func (s *storeJob) noteAnswer(c *copying, p member, o cluster.StoreOutcome) {
	t := s.t
	switch {
	case o.Status == cluster.StoreDone, o.Status == cluster.StoreHad:
		if o.Status == cluster.StoreDone {
			c.new++
		} else {
			c.had++
			c.need--
		}
		t.hintStored(c, p)
	case errors.Is(o.Err, block.ErrExist):
		c.superseded = true
	case errors.Is(o.Err, block.ErrReadOnly):
		t.declined.Add(pace.Copy{Peer: p.Name()}, t.now().Add(declinedTime))
	case errors.Is(o.Err, rdma.ErrBusy):
		c.busy = append(c.busy, candidate{peer: p}) // too many others wait for it
	case o.Status == cluster.StoreRefused:
		// It has no room.
	case o.Err == nil, errors.Is(o.Err, block.ErrUnavailable), errors.Is(o.Err, context.DeadlineExceeded), errors.Is(o.Err, context.Canceled):
		c.unavailable = true
		t.counters.failures.Add(1)
	default:
		c.err = o.Err
		t.counters.failures.Add(1)
	}
}

// hintStored makes a peer a holder until the index tells so.
func (t *Tier) hintStored(c *copying, p member) {
	now, a := t.now(), &c.tr.Attrs
	t.gone.Drop(pace.Copy{Hash: c.hash, Seq: a.Seq, Peer: p.Name()})
	t.hints.add(c.path, hint{kind: copied, until: now.Add(hintTime), holder: holder{p, location.Entry{
		Hash: c.hash, Seq: a.Seq, Size: c.tr.Size, Mode: modeRegular | a.Mode&0o7777, UID: a.UID, GID: a.GID, Memory: true,
	}}}, now)
}

// conclude gives a block that was offered its outcome.
func (s *storeJob) conclude(c *copying) {
	t := s.t
	key := c.tr.Key
	switch {
	case c.new > 0:
		c.out.Status, c.out.Bytes, c.out.Sum = driver.Stored, c.tr.Size, c.sum
	case c.had > 0:
		c.out.Status = driver.Skipped
	case t.ctx.Err() != nil:
		c.out.Err = t.fail("store", key, block.ErrClosed)
	case c.superseded, errors.Is(c.err, block.ErrNotFound):
		s.skip(c, block.ErrNotFound)
	case c.unavailable:
		c.out.Err = t.fail("store", key, block.ErrUnavailable)
	case c.err != nil:
		c.out.Err = t.fail("store", key, kindOf(c.err))
	default: // no peer to take it, or none that would
		s.skip(c, block.ErrNoSpace)
	}
}

// end ends the pending state of a block.
func (s *storeJob) end(c *copying) {
	t := s.t
	if t.storing.end(c.path, c.storing) {
		t.hints.bury(c.path, c.tr.Attrs.Seq+1, t.now())
		*c.out = driver.Outcome{Key: c.tr.Key}
		s.skip(c, block.ErrNotFound)
	}
	switch {
	case c.out.Status == driver.Stored:
		t.counters.stored.Add(1)
		t.counters.storedBytes.Add(uint64(c.out.Bytes))
	case c.out.Status == driver.Skipped && errors.Is(c.out.Err, block.ErrNoSpace):
		t.counters.skippedNoSpace.Add(1)
	}
}

func (s *storeJob) skip(c *copying, why error) {
	c.out.Status, c.out.Err = driver.Skipped, s.t.fail("store", c.tr.Key, why)
}

// kinds are the errors that a peer may answer with.
var kinds = []error{
	block.ErrNotFound, block.ErrPending, block.ErrCorrupt, block.ErrNoSpace, block.ErrQuota, block.ErrBudget,
	block.ErrTooLarge, block.ErrPinned, block.ErrUnavailable, block.ErrInvalid, block.ErrNameTooLong,
	block.ErrReserved, block.ErrReadOnly, block.ErrClosed, block.ErrExist, block.ErrNotDir, block.ErrIsDir,
}

// kindOf returns the kind of an error; an error without one counts as ErrUnavailable.
func kindOf(err error) error {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return block.ErrUnavailable
}
