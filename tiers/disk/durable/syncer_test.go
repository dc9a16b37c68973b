package durable

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
)

// fakeMedium is a Medium that notes what it is asked to sync.
type fakeMedium struct {
	files  []*directio.File
	names  bool
	err    error
	during func() // called in sync
	broken int
}

func (m *fakeMedium) SyncFiles(ops []directio.Op, names bool) error {
	m.files, m.names = nil, names
	for i := range ops {
		m.files = append(m.files, ops[i].File)
	}
	if m.during != nil {
		m.during()
	}
	return m.err
}

func (m *fakeMedium) SyncBroken(error) { m.broken++ }
func (m *fakeMedium) Synced() error    { return nil }

func newTestSyncer(m *fakeMedium) (s *Syncer[int], keeper chan struct{}) {
	keeper = make(chan struct{}, 1)
	return New[int](m, Options{100, time.Hour, make(chan struct{}), keeper, zap.NewNop()}), keeper
}

// fakeCall notes with which error it ends.
type fakeCall struct{ ends *[]error }

func (c *fakeCall) End(err error) { *c.ends = append(*c.ends, err) }

// addFile adds a new file to a syncer.
func addFile(t *testing.T, s *Syncer[int]) *File {
	t.Helper()
	file, err := directio.OpenFile(filepath.Join(t.TempDir(), "f"), syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	f := &File{}
	s.Add(f, file)
	return f
}

// closed reports whether the syncer has closed a file.
func closed(f *File) bool {
	_, err := f.file.OS().Stat()
	return errors.Is(err, fs.ErrClosed)
}

// TestSyncerFlush shows that a sync is of what was written since the last one, that one which
// failed is repeated, and that none follows one which failed because of the device.
func TestSyncerFlush(t *testing.T) {
	m := &fakeMedium{}
	s, _ := newTestSyncer(m)
	a, b := addFile(t, s), addFile(t, s)
	flush := func(wantErr error, names bool, want ...*File) {
		t.Helper()
		if err := s.Flush(); !errors.Is(err, wantErr) {
			t.Errorf("got %v, want %v", err, wantErr)
		}
		ok := len(m.files) == len(want) && m.names == names
		for _, f := range want {
			ok = ok && slices.Contains(m.files, f.file)
		}
		if !ok {
			t.Errorf("%d files, names %v; want %d, %v", len(m.files), m.names, len(want), names)
		}
	}
	flush(nil, false)
	a.Dirty.Store(true)
	s.Wrote(50)
	s.Renamed()
	m.err = syscall.ENOMEM // not the device's fault
	flush(m.err, true, a)
	b.Dirty.Store(true)
	s.Wrote(50)
	m.err = nil
	flush(nil, true, a, b)
	if len(s.kick) > 0 {
		t.Error("syncs unasked after 50 bytes since the last sync, of 100")
	}
	a.Dirty.Store(true)
	m.during = func() { b.Dirty.Store(true); s.Wrote(100) } // by then it is late for this sync
	flush(nil, false, a)
	m.during = nil
	if len(s.kick) == 0 {
		t.Error("no sync unasked after 100 bytes")
	}
	m.err = syscall.EIO
	flush(m.err, false, b)
	m.err, m.files = nil, nil
	flush(syscall.EIO, false)
	if m.broken != 1 {
		t.Errorf("told %d times that it was the last, want once", m.broken)
	}
}

// TestSyncerClose shows that Close waits for a sync whose device failed meanwhile: it uses the files.
func TestSyncerClose(t *testing.T) {
	down, begun, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
	m := &fakeMedium{during: func() { close(begun); <-end }}
	s := New[int](m, Options{100, time.Hour, down, make(chan struct{}, 1), zap.NewNop()})
	addFile(t, s).Dirty.Store(true)
	s.Wrote(100)
	go s.Run()
	<-begun
	close(down)
	<-s.gone
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	select {
	case <-closed:
		t.Error("Close returned during the sync")
	case <-time.After(100 * time.Millisecond): // in which it would have returned
	}
	close(end)
	<-closed
}

// TestSyncerDrop shows that a file which is dropped is closed, but not during a sync of it.
func TestSyncerDrop(t *testing.T) {
	m := &fakeMedium{}
	s, _ := newTestSyncer(m)
	a, b := addFile(t, s), addFile(t, s)
	a.Dirty.Store(true)
	m.during = func() {
		s.Drop(a)
		s.Drop(b)
		if closed(a) || !closed(b) {
			t.Errorf("during the sync of a: closed: a %v, b %v", closed(a), closed(b))
		}
	}
	if err := s.Flush(); err != nil || !closed(a) {
		t.Errorf("after the sync of a: %v, closed: %v", err, closed(a))
	}
}

// TestSyncerCalls shows that a call of Sync waits for the headers that were outdated before it
// and for no other, goes on in its turn, and is ended once if the device fails.
func TestSyncerCalls(t *testing.T) {
	s, keeper := newTestSyncer(&fakeMedium{})
	var ends []error
	call := func() *fakeCall { return &fakeCall{&ends} }
	before, after := 1, 2
	first, second, third := call(), call(), call()
	s.HeaderOutdated(before)
	if !s.Ask(first) || len(s.Take()) != 0 {
		t.Fatal("went on before the header that was outdated")
	}
	s.HeaderOutdated(after)
	s.Ask(second)
	<-keeper
	s.HeaderSettled(before)
	<-keeper
	if list := s.Take(); !slices.Equal(list, []Call{first}) {
		t.Fatalf("%d calls go on, want the first", len(list))
	}
	<-keeper // for the second
	if len(s.Take()) != 0 {
		t.Fatal("the second went on before the header that was outdated when it came")
	}
	s.Pass([]Call{first}, nil)
	if len(s.kick) == 0 || len(ends) > 0 {
		t.Fatalf("%d calls ended, want none but a sync", len(ends))
	}
	s.End(block.ErrUnavailable)
	if len(ends) != 2 || !errors.Is(ends[0], block.ErrUnavailable) || !errors.Is(ends[1], block.ErrUnavailable) {
		t.Errorf("ended with %v, want twice %v", ends, block.ErrUnavailable)
	}
	if s.Pass([]Call{third}, nil); s.Ask(call()) || len(ends) != 3 {
		t.Errorf("a call after the end: %d ended", len(ends))
	}
}
