package disk

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/home"
	"github.com/kvfs/kvfs/tiers/disk/port"
)

// syncer makes durable what was written to one device: for all calls of Sync that wait, together,
// and without a call after so many bytes or so much time.
//
// A call of Sync goes through it in three steps, in the order of the calls:
//  1. ask queues it.
//  2. The keeper takes it with take, writes the headers in its list, and returns it with pass. If
//     a header in the kernel was outdated when the call came, take holds the call back: the final
//     header is not yet in the list.
//  3. run syncs, and ends the call.
//
// After end, every call is refused. A sync that fails because of the device is the last: the kernel
// reports lost writes only once, and another sync would succeed without them.
//
// The device reports every file (add, drop), every write (wrote), and changes to the names of files
// (renamed). The lock of the syncer is taken under Tier.mu, never the other way round, and is not
// held during a sync. Only run and flush block. All methods may be called in parallel.
type syncer struct {
	// Constant.
	medium syncMedium
	log    *zap.Logger
	bytes  int64
	every  time.Duration
	down   <-chan struct{} // closed when the device fails
	keeper chan<- struct{} // tells the keeper to call take

	kick, stop, gone chan struct{}
	unsynced         atomic.Int64 // bytes written since the last sync

	mu struct {
		sync.Mutex
		files    map[*syncFile]struct{}
		names    bool                 // files were made or deleted since the directory was synced
		outdated map[*flight]struct{} // flights whose header in the kernel is not the final one
		asked    []*syncRequest
		held     []*syncRequest // for the keeper, once none of heldFor is in outdated
		heldFor  []*flight
		ready    []*syncRequest // for run
		ended    bool
		broken   error // why no sync can be trusted any more
	}
}

// syncMedium is what a syncer needs of its device.
type syncMedium interface {
	// sync makes durable what was written to the files of ops. All ops are of kind Sync. If names
	// is set, it also makes the names in the directory durable.
	sync(ops []directio.Op, names bool) error
	// syncBroken is called after a sync failed with err. There will be no other sync. It must not
	// wait until the calls of Sync end.
	syncBroken(err error)
	// synced is called after each sync that succeeded. It may still make it fail.
	synced() error
}

// syncFile is a slab file as the syncer sees it.
type syncFile struct {
	file  *directio.File // constant after add
	dirty atomic.Bool    // written to since its last sync
	// Guarded by syncer.mu.
	syncs   int  // under way
	dropped bool // the last sync that uses it closes it
}

// newSyncer returns a syncer without files. The caller starts run.
func newSyncer(medium syncMedium, o *Options, log *zap.Logger, down <-chan struct{}, keeper chan<- struct{}) *syncer {
	s := &syncer{
		medium: medium, log: log, bytes: o.SyncBytes, every: o.SyncInterval, down: down, keeper: keeper,
		kick: make(chan struct{}, 1), stop: make(chan struct{}), gone: make(chan struct{}),
	}
	s.mu.files = make(map[*syncFile]struct{})
	s.mu.outdated = make(map[*flight]struct{})
	return s
}

// add adds a file.
func (s *syncer) add(f *syncFile, file *directio.File) {
	f.file = file
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.files[f] = struct{}{}
}

// drop removes a file whose content is not kept. The file is closed once no sync uses it.
func (s *syncer) drop(f *syncFile) {
	s.mu.Lock()
	delete(s.mu.files, f)
	f.dropped = true
	busy := f.syncs > 0
	s.mu.Unlock()
	if !busy {
		_ = f.file.Close()
	}
}

// renamed records that names in the directory have changed.
func (s *syncer) renamed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.names = true
}

// wrote counts bytes that were written to files. The files are already marked dirty. It takes no
// lock.
func (s *syncer) wrote(bytes int64) {
	if s.unsynced.Add(bytes) >= s.bytes {
		kick(s.kick)
	}
}

// headerOutdated records that the header of f in the kernel is not the final one.
func (s *syncer) headerOutdated(f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.outdated[f] = struct{}{}
}

// headerSettled is the inverse of headerOutdated. The final header is in the list of headers to
// write, or there is none.
func (s *syncer) headerSettled(f *flight) {
	s.mu.Lock()
	delete(s.mu.outdated, f)
	s.mu.Unlock()
	kick(s.keeper)
}

// ask queues a call of Sync behind all changes made so far. It returns false after end.
func (s *syncer) ask(r *syncRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ended {
		return false
	}
	s.mu.asked = append(s.mu.asked, r)
	kick(s.keeper)
	return true
}

// take returns the calls that may go on once the headers in the list are written. The keeper must
// pass them to pass.
func (s *syncer) take() []*syncRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.held) == 0 {
		if len(s.mu.asked) == 0 {
			return nil
		}
		s.mu.held, s.mu.asked = s.mu.asked, nil
		s.mu.heldFor = slices.Collect(maps.Keys(s.mu.outdated))
	}
	for _, f := range s.mu.heldFor {
		if _, ok := s.mu.outdated[f]; ok {
			return nil
		}
	}
	list := s.mu.held
	s.mu.held, s.mu.heldFor = nil, nil
	if len(s.mu.asked) > 0 {
		kick(s.keeper)
	}
	return list
}

// pass lets calls go on whose headers are written, or ends them with the error of the headers.
func (s *syncer) pass(list []*syncRequest, err error) {
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

// end ends, with err or success, all calls whose sync has not begun. It refuses later calls.
func (s *syncer) end(err error) {
	s.mu.Lock()
	list := slices.Concat(s.mu.ready, s.mu.held, s.mu.asked)
	s.mu.ready, s.mu.held, s.mu.heldFor, s.mu.asked = nil, nil, nil, nil
	s.mu.ended = true
	s.mu.Unlock()
	endAll(list, err)
}

func endAll(list []*syncRequest, err error) {
	for _, r := range list {
		r.end(err)
	}
}

// run syncs until close is called or the device fails.
func (s *syncer) run() {
	defer close(s.gone)
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		timed := false
		select {
		case <-s.kick:
		case <-tick.C:
			timed = true
		case <-s.stop:
			return
		case <-s.down:
			return
		}
		s.mu.Lock()
		list := s.mu.ready
		s.mu.ready = nil
		s.mu.Unlock()
		unsynced := s.unsynced.Load()
		if len(list) > 0 || unsynced >= s.bytes || timed && unsynced > 0 {
			s.flushFor(list)
		}
	}
}

// close ends run and waits for it.
func (s *syncer) close() {
	close(s.stop)
	<-s.gone
}

// flushFor syncs and ends the calls in list. If the device fails meanwhile, it does not wait for
// the device.
func (s *syncer) flushFor(list []*syncRequest) {
	result := make(chan error, 1)
	go func() { result <- s.flush() }() // ends when the device answers
	var err error
	select {
	case err = <-result:
	case <-s.down:
		err = block.ErrUnavailable
	}
	if err != nil {
		s.log.Warn("sync failed", zap.Error(err))
	}
	endAll(list, err)
}

// flush makes all writes and the names of the files durable.
func (s *syncer) flush() error {
	files, names, err := s.begin()
	if err != nil {
		return err
	}
	ops := make([]directio.Op, len(files))
	for i, f := range files {
		ops[i] = directio.Op{Kind: directio.Sync, File: f.file}
	}
	err = s.medium.sync(ops, names)
	if port.OfDevice(err) || port.IsFull(err) || errors.Is(err, home.ErrDeleted) {
		s.mu.Lock()
		s.mu.broken = err
		s.mu.Unlock()
		s.medium.syncBroken(err)
	}
	if err == nil {
		err = s.medium.synced()
	}
	s.finish(files, names, err)
	return err
}

// begin returns what to sync and marks it as clean, or returns why syncs have ended.
func (s *syncer) begin() (files []*syncFile, names bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.broken != nil {
		return nil, false, s.mu.broken
	}
	s.unsynced.Store(0) // first: a write marks its file before it counts its bytes
	for f := range s.mu.files {
		if f.dirty.Swap(false) {
			f.syncs++
			files = append(files, f)
		}
	}
	names, s.mu.names = s.mu.names, false
	return files, names, nil
}

// finish ends what begin began. After a failed sync it marks the files as dirty again.
func (s *syncer) finish(files []*syncFile, names bool, err error) {
	var dropped []*syncFile
	s.mu.Lock()
	for _, f := range files {
		if f.syncs--; f.syncs == 0 && f.dropped {
			dropped = append(dropped, f)
		}
		if err != nil {
			f.dirty.Store(true)
		}
	}
	s.mu.names = s.mu.names || names && err != nil
	s.mu.Unlock()
	for _, f := range dropped {
		_ = f.file.Close() // its content is not kept
	}
}
