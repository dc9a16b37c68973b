package suite

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// jobKind is the direction of a job.
type jobKind uint8

const (
	storeJob jobKind = iota
	loadJob
)

// String returns "store" or "load".
func (k jobKind) String() string { return [...]string{"store", "load"}[k] }

// jobSpec describes a job to submit.
type jobSpec struct {
	op     jobKind
	blocks []payload
	edit   func(tr *driver.Transfer) // changes each Transfer first, to make it wrong; may be nil
	job    func(job *driver.Job)     // changes the Job; may be nil
	then   func()                    // runs inside Done; may be nil
}

// flight is a submitted job, with the data to check it.
type flight struct {
	spec      jobSpec
	id        driver.JobID
	transfers []driver.Transfer // the suite's copy: the tier owns those in the job
	offsets   []int64           // of the files, before the job

	returned chan struct{} // closed when Store or Load has returned
	done     chan struct{} // closed by the first call of Done
	calls    atomic.Int32  // of Done
	within   atomic.Bool   // Done was called before Store or Load returned, and waited for
	outcomes []driver.Outcome
	resultID driver.JobID
	closing  sync.Once
}

// String names the flight in messages.
func (f *flight) String() string {
	return fmt.Sprintf("%v job %d of %d blocks", f.spec.op, f.id, len(f.spec.blocks))
}

// submit hands a job to the tier and returns without waiting for it.
func (h *harness) submit(spec jobSpec) *flight {
	h.t.Helper()
	f := &flight{
		spec:     spec,
		id:       driver.JobID(h.jobs.lastID.Add(1)),
		returned: make(chan struct{}),
		done:     make(chan struct{}),
	}
	for _, p := range spec.blocks {
		tr, offset := h.transfer(spec.op, p)
		if spec.edit != nil {
			spec.edit(&tr)
		}
		f.transfers = append(f.transfers, tr)
		f.offsets = append(f.offsets, offset)
	}
	h.jobs.mu.Lock()
	h.jobs.mu.flights = append(h.jobs.mu.flights, f)
	h.jobs.mu.Unlock()

	job := &driver.Job{
		ID:        f.id,
		Request:   fmt.Sprintf("request-%d", f.id%3),
		Promotion: spec.op == loadJob && f.id%2 == 0,
		Blocks:    slices.Clone(f.transfers),
	}
	if spec.job != nil {
		spec.job(job)
	}
	job.Done = func(res *driver.Result) { h.done(f, job, res) }
	if spec.op == storeJob {
		h.tier.Store(job)
	} else {
		h.tier.Load(job)
	}
	close(f.returned)
	return f
}

// transfer makes the file of one block, and seeks it to an odd offset that the tier must not
// change. A source is longer than the block, and a destination is full of other bytes.
func (h *harness) transfer(op jobKind, p payload) (driver.Transfer, int64) {
	h.t.Helper()
	size := int64(len(p.data))
	content := bytes.Repeat([]byte{0xa5}, len(p.data))
	if op == storeJob {
		content = append(slices.Clone(p.data), "the block ends before this"...)
	}
	file := h.opts.NewFile(h.t)
	if file == nil {
		h.fatalf("no file")
	}
	if _, err := file.WriteAt(content, 0); err != nil {
		h.fatalf("write %d bytes to the block's file: %v", len(content), err)
	}
	offset, err := file.Seek(min(size, 7), io.SeekStart)
	if err != nil {
		h.fatalf("seek: %v", err)
	}
	tr := driver.Transfer{Key: p.key, Size: size, Sum: block.Sum(p.data), File: file}
	if op == storeJob {
		tr.Attrs = p.attrs
		tr.Attrs.Dirs = slices.Clone(p.attrs.Dirs)
	}
	return tr, offset
}

// done is the Done of a job. It first waits until Store or Load has returned, like an engine that
// holds a lock there which Done takes. If a tier calls Done within Store or Load, that call never
// returns.
func (h *harness) done(f *flight, job *driver.Job, res *driver.Result) {
	if !h.await(f.returned) {
		f.within.Store(true)
	}
	if f.calls.Add(1) > 1 {
		return // checkCalls reports it
	}
	f.resultID = res.Job
	f.outcomes = slices.Clone(res.Outcomes)
	for i := range job.Blocks { // owned by the suite again: a tier that still reads it races
		clear(job.Blocks[i].Attrs.Dirs)
		job.Blocks[i] = driver.Transfer{}
	}
	if f.spec.then != nil {
		f.spec.then()
	}
	close(f.done)
}

// settle waits for a job, checks everything that holds for any job, and returns
// its outcomes.
func (h *harness) settle(f *flight) []driver.Outcome {
	h.t.Helper()
	if !h.await(f.done) {
		h.fatalf("%v: no Result within %v", f, h.opts.Timeout)
	}
	if f.within.Load() {
		h.fatalf("%v: Done was called from within Store or Load", f)
	}
	if f.resultID != f.id {
		h.errorf("%v: the Result is for job %d", f, f.resultID)
	}
	if len(f.outcomes) != len(f.spec.blocks) {
		h.fatalf("%v: got %d outcomes, want one a block", f, len(f.outcomes))
	}
	for i := range f.outcomes {
		if got, want := f.outcomes[i].Key, f.transfers[i].Key; got != want {
			h.fatalf("%v: outcome %d is for %.80q, want %.80q", f, i, got.Path(), want.Path())
		}
		h.checkOutcome(f, i)
		h.checkFile(f, i)
	}
	f.release()
	return f.outcomes
}

// checkOutcome checks that the fields of outcome i fit its status.
func (h *harness) checkOutcome(f *flight, i int) {
	h.t.Helper()
	o, tr := f.outcomes[i], f.transfers[i]
	allowed := []driver.Status{driver.Failed, driver.Stored, driver.Skipped}
	if f.spec.op == loadJob {
		allowed = []driver.Status{driver.Failed, driver.Loaded, driver.Absent}
	}
	if !slices.Contains(allowed, o.Status) {
		h.fatalf("%v: outcome %d: got status %d, want one of %v", f, i, o.Status, allowed)
	}
	switch {
	case o.Status == driver.Failed:
		h.checkKind(fmt.Sprintf("%v: outcome %d", f, i), o.Err, errorKinds)
	case o.Status == driver.Skipped && o.Err != nil:
		h.checkKind(fmt.Sprintf("%v: skipped outcome %d", f, i), o.Err, skipKinds)
	case o.Err != nil:
		h.errorf("%v: outcome %d is %v with error %v", f, i, o.Status, o.Err)
	}
	var wantBytes int64
	if o.Status == driver.Stored || o.Status == driver.Loaded {
		wantBytes = tr.Size
	}
	if o.Bytes != wantBytes {
		h.errorf("%v: outcome %d is %v with %d bytes, want %d", f, i, o.Status, o.Bytes, wantBytes)
	}
	want := block.Sum(f.spec.blocks[i].data)
	if o.Status == driver.Stored && tr.Sum.Valid {
		want = tr.Sum // a tier may trust the engine's checksum until the Load
	}
	if (o.Status == driver.Loaded || o.Status == driver.Stored) && o.Sum != want {
		h.errorf("%v: outcome %d is %v with checksum %v, want %v", f, i, o.Status, o.Sum, want)
	}
}

// skipKinds are the allowed reasons for skipping a block that the tier does not hold.
var skipKinds = []error{block.ErrNoSpace, block.ErrBudget, block.ErrPending, block.ErrNotFound}

// errorKinds are the allowed kinds of failure.
var errorKinds = []error{
	block.ErrNotFound, block.ErrPending, block.ErrCorrupt, block.ErrNoSpace, block.ErrQuota,
	block.ErrTooLarge, block.ErrPinned, block.ErrUnavailable, block.ErrInvalid,
	block.ErrNameTooLong, block.ErrReadOnly, block.ErrClosed,
}

// checkKind checks that err is a *block.Error of one of the kinds.
func (h *harness) checkKind(what string, err error, kinds []error) {
	h.t.Helper()
	known := slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
	if _, ok := errors.AsType[*block.Error](err); !ok || !known {
		h.errorf("%s: error %v (%T): want a *block.Error of a known kind", what, err, err)
	}
}

// checkFile checks the file of block i: it is open, its offset is unchanged, and it has the content
// of the block.
func (h *harness) checkFile(f *flight, i int) {
	h.t.Helper()
	file, want := f.transfers[i].File, f.spec.blocks[i].data
	offset, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		h.fatalf("%v: file %d after Done: %v: only the engine closes it", f, i, err)
	}
	if offset != f.offsets[i] {
		h.errorf("%v: file %d: the offset moved from %d to %d: want positional I/O",
			f, i, f.offsets[i], offset)
	}
	switch {
	case f.spec.op == loadJob && f.outcomes[i].Status != driver.Loaded:
		return // undefined
	case f.spec.op == storeJob && f.spec.edit != nil, f.transfers[i].Size != int64(len(want)):
		return // the case made it wrong, and checks it itself
	}
	got, err := contentOf(file)
	if err != nil {
		h.fatalf("%v: file %d: %v", f, i, err)
	}
	if f.spec.op == storeJob {
		got = got[:min(len(got), len(want))]
	}
	if !bytes.Equal(got, want) {
		h.errorf("%v: wrong bytes in file %d, %.80q: %s",
			f, i, f.transfers[i].Key.Path(), firstDifference(got, want))
	}
}

// release overwrites and closes the files, so that a tier that kept one beyond Done meets other
// bytes or an error.
func (f *flight) release() {
	f.closing.Do(func() {
		for i := range f.transfers {
			spoil(f.transfers[i].File, f.transfers[i].Size)
		}
	})
}

// spoil overwrites the first size bytes of a file and closes it. A broken tier may have closed the
// file already; that was reported before.
func spoil(file *os.File, size int64) {
	_, _ = file.WriteAt(bytes.Repeat([]byte{0x5a}, int(max(size, 0))), 0)
	_ = file.Close()
}
