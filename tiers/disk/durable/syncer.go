// Package durable makes durable what was written to one device of the SSD tier: when to sync, which
// files, and when a call of Sync may end. It decides; its Medium syncs.
package durable

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/port"
)

// Syncer makes durable what was written to one device: for all calls of Sync that wait, together,
// and without a call after so many bytes or so much time.
//
// A call of Sync goes through it in three steps, in the order of the calls:
//  1. Ask queues it.
//  2. The keeper takes it with Take, writes the headers in its list, and returns it with Pass. If
//     a header in the kernel was outdated when the call came, Take holds the call back: the final
//     header is not yet in the list.
//  3. Run syncs, and ends the call.
//
// After End, every call is refused. A sync that fails because of the device is the last: the kernel
// reports lost writes only once, and another sync would succeed without them.
//
// The device reports every file (Add, Drop), every write (Wrote), and changes to the names of files
// (Renamed). Its lock may be taken under a lock of the caller. It is not held during a sync, or a
// call of Medium or Call. Only Run, Close and Flush block. All methods may be called in parallel.
type Syncer[H comparable] struct {
	// Constant.
	medium Medium
	opts   Options

	kick, stop, gone chan struct{}
	unsynced         atomic.Int64   // bytes written since the last sync
	flushes          sync.WaitGroup // those of Run, which does not wait for them once the device fails

	mu struct {
		sync.Mutex
		files    map[*File]struct{}
		names    bool           // files were made or deleted since the directory was synced
		outdated map[H]struct{} // headers in the kernel that are not the final ones
		asked    []Call
		held     []Call // for the keeper, once none of heldFor is in outdated
		heldFor  []H
		ready    []Call // for run
		ended    bool
		broken   error // why no sync can be trusted any more
	}
}

// Options says when to sync unasked, and which channels join a syncer to its device.
type Options struct {
	Bytes  int64           // written since the last sync
	Every  time.Duration   // after the first write
	Down   <-chan struct{} // closed when the device fails
	Keeper chan<- struct{} // has room for one; tells the keeper to call Take
	Logger *zap.Logger
}

// Call is a call of Sync.
type Call interface {
	// End ends the call, for this device. It is called once.
	End(err error)
}

// Medium is what a syncer needs of its device.
type Medium interface {
	// SyncFiles makes durable what was written to the files of ops. All ops are of kind Sync. If names
	// is set, it also makes the names in the directory durable.
	SyncFiles(ops []directio.Op, names bool) error
	// SyncBroken is called after a sync failed with err. There will be no other sync. It must not
	// wait until the calls of Sync end.
	SyncBroken(err error)
	// Synced is called after each sync that succeeded. It may still make it fail.
	Synced() error
}

// File is a slab file as the syncer sees it. The zero value is for Add.
type File struct {
	file  *directio.File // constant after add
	Dirty atomic.Bool    // written to since its last sync
	// Guarded by syncer.mu.
	syncs   int  // under way
	dropped bool // the last sync that uses it closes it
}

// New returns a syncer without files. The caller starts Run. H names a header: it is only compared.
func New[H comparable](medium Medium, o Options) *Syncer[H] {
	s := &Syncer[H]{
		medium: medium, opts: o,
		kick: make(chan struct{}, 1), stop: make(chan struct{}), gone: make(chan struct{}),
	}
	s.mu.files = make(map[*File]struct{})
	s.mu.outdated = make(map[H]struct{})
	return s
}

// Add adds a file. f must be new.
func (s *Syncer[H]) Add(f *File, file *directio.File) {
	f.file = file
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.files[f] = struct{}{}
}

// Drop removes a file whose content is not kept. The file is closed once no sync uses it.
func (s *Syncer[H]) Drop(f *File) {
	s.mu.Lock()
	delete(s.mu.files, f)
	f.dropped = true
	busy := f.syncs > 0
	s.mu.Unlock()
	if !busy {
		_ = f.file.Close()
	}
}

// Settled reports whether all writes to a file that have ended are durable.
func (s *Syncer[H]) Settled(f *File) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.syncs == 0 && !f.Dirty.Load()
}

// Renamed records that names in the directory have changed.
func (s *Syncer[H]) Renamed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.names = true
}

// Wrote counts bytes that were written to files. The files are already marked dirty. It takes no
// lock.
func (s *Syncer[H]) Wrote(bytes int64) {
	if s.unsynced.Add(bytes) >= s.opts.Bytes {
		kick(s.kick)
	}
}

// HeaderOutdated records that the header h in the kernel is not the final one.
func (s *Syncer[H]) HeaderOutdated(h H) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.outdated[h] = struct{}{}
}

// HeaderSettled is the inverse of HeaderOutdated. The final header is in the list of headers to
// write, or there is none.
func (s *Syncer[H]) HeaderSettled(h H) {
	s.mu.Lock()
	delete(s.mu.outdated, h)
	s.mu.Unlock()
	kick(s.opts.Keeper)
}

// Ask queues a call of Sync behind all changes made so far. It returns false after End.
func (s *Syncer[H]) Ask(r Call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ended {
		return false
	}
	s.mu.asked = append(s.mu.asked, r)
	kick(s.opts.Keeper)
	return true
}

// Take returns the calls that may go on once the headers in the list are written. The keeper must
// give them to Pass.
func (s *Syncer[H]) Take() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.held) == 0 {
		if len(s.mu.asked) == 0 {
			return nil
		}
		s.mu.held, s.mu.asked = s.mu.asked, nil
		s.mu.heldFor = slices.Collect(maps.Keys(s.mu.outdated))
	}
	for _, h := range s.mu.heldFor {
		if _, ok := s.mu.outdated[h]; ok {
			return nil
		}
	}
	list := s.mu.held
	s.mu.held, s.mu.heldFor = nil, nil
	if len(s.mu.asked) > 0 {
		kick(s.opts.Keeper)
	}
	return list
}

// Pass lets calls go on whose headers are written, or ends them with the error of the headers.
func (s *Syncer[H]) Pass(list []Call, err error) {
	if len(list) == 0 {
		return
	}
	s.mu.Lock()
	if s.mu.ended {
		err = block.ErrUnavailable
	}
	if err == nil {
		s.mu.ready = append(s.mu.ready, list...)
	}
	s.mu.Unlock()
	if err == nil {
		kick(s.kick)
		return
	}
	endAll(list, err)
}

// End ends, with err or success, all calls whose sync has not begun. It refuses later calls.
func (s *Syncer[H]) End(err error) {
	s.mu.Lock()
	list := slices.Concat(s.mu.ready, s.mu.held, s.mu.asked)
	s.mu.ready, s.mu.held, s.mu.heldFor, s.mu.asked = nil, nil, nil, nil
	s.mu.ended = true
	s.mu.Unlock()
	endAll(list, err)
}

func endAll(list []Call, err error) {
	for _, r := range list {
		r.End(err)
	}
}

// Run syncs until Close is called or the device fails.
func (s *Syncer[H]) Run() {
	defer close(s.gone)
	tick := time.NewTicker(s.opts.Every)
	defer tick.Stop()
	for {
		timed := false
		select {
		case <-s.kick:
		case <-tick.C:
			timed = true
		case <-s.stop:
			return
		case <-s.opts.Down:
			return
		}
		s.mu.Lock()
		list := s.mu.ready
		s.mu.ready = nil
		s.mu.Unlock()
		unsynced := s.unsynced.Load()
		if len(list) > 0 || unsynced >= s.opts.Bytes || timed && unsynced > 0 {
			s.flushFor(list)
		}
	}
}

// Close ends Run, and waits for it and for its sync, which uses the files: it blocks until the device answers.
func (s *Syncer[H]) Close() {
	close(s.stop)
	<-s.gone
	s.flushes.Wait()
}

// flushFor syncs and ends the calls in list. If the device fails meanwhile, it does not wait for
// the device.
func (s *Syncer[H]) flushFor(list []Call) {
	result := make(chan error, 1)
	s.flushes.Go(func() { result <- s.Flush() }) // ends when the device answers
	var err error
	select {
	case err = <-result:
	case <-s.opts.Down:
		err = block.ErrUnavailable
	}
	if err != nil {
		s.opts.Logger.Warn("sync failed", zap.Error(err))
	}
	endAll(list, err)
}

// Flush makes all writes and the names of the files durable. It blocks until the device answers, and
// fails with the error of Medium, or with that of an earlier sync that was the last.
func (s *Syncer[H]) Flush() error {
	files, names, err := s.begin()
	if err != nil {
		return err
	}
	ops := make([]directio.Op, len(files))
	for i, f := range files {
		ops[i] = directio.Op{Kind: directio.Sync, File: f.file}
	}
	err = s.medium.SyncFiles(ops, names)
	if port.OfDevice(err) || port.IsFull(err) {
		s.mu.Lock()
		s.mu.broken = err
		s.mu.Unlock()
		s.medium.SyncBroken(err)
	}
	if err == nil {
		err = s.medium.Synced()
	}
	s.finish(files, names, err)
	return err
}

// begin returns what to sync and marks it as clean, or returns why syncs have ended.
func (s *Syncer[H]) begin() (files []*File, names bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.broken != nil {
		return nil, false, s.mu.broken
	}
	s.unsynced.Store(0) // first: a write marks its file before it counts its bytes
	for f := range s.mu.files {
		if f.Dirty.Swap(false) {
			f.syncs++
			files = append(files, f)
		}
	}
	names, s.mu.names = s.mu.names, false
	return files, names, nil
}

// finish ends what begin began. After a failed sync it marks the files as dirty again.
func (s *Syncer[H]) finish(files []*File, names bool, err error) {
	var dropped []*File
	s.mu.Lock()
	for _, f := range files {
		if f.syncs--; f.syncs == 0 && f.dropped {
			dropped = append(dropped, f)
		}
		if err != nil {
			f.Dirty.Store(true)
		}
	}
	s.mu.names = s.mu.names || names && err != nil
	s.mu.Unlock()
	for _, f := range dropped {
		_ = f.file.Close() // its content is not kept
	}
}

// kick wakes a goroutine that waits on c, a channel with room for one.
func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
