package tiers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

const page = 4096

// shmDir returns a directory on tmpfs that goes with the test.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kvfs.test.")
	if err != nil {
		t.Skipf("no /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// world is an engine on a memory tier of its own, used as the kernel uses it:
// every name is looked up, every answer holds a reference, and an open that is
// answered ErrStale looks again. Threads 10 to 19 are one process, 20 to 29
// another, and so on.
type world struct {
	t     testing.TB
	dir   string
	store *mem.Store
	e     *tiers.Engine
	event uint64 // next to be read
	later bool   // open by OpenHot and OpenLater instead of OpenRead

	users bool // each process has a user, of the same number, and a control group /c/number

	hold bool       // keep the references to directories, as the kernel does
	held []index.ID // those

	reader uint32 // thread by which content reads
}

// by is the caller that a number stands for.
func by(tid uint32) state.Caller {
	return state.Caller{Kernel: tid >> 22, Thread: tid & (1<<22 - 1), Process: tid & (1<<22 - 1) / 10}
}

// open starts an engine on dir. The test ends it with close or crash.
func open(t testing.TB, dir string, o state.Options) *world {
	t.Helper()
	ctx := context.Background()
	store, err := mem.Open(ctx, mem.Options{Dir: dir + "/s", SizeBytes: 64 << 20, NoMount: true})
	if err != nil {
		t.Fatal(err)
	}
	if h, ok := o.Primary.(*hooked); ok {
		h.Primary = store
	} else {
		o.Primary = store
	}
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 16 * page
	}
	if o.HighWatermark == 0 {
		o.HighWatermark, o.LowWatermark = 1, 1
	}
	if o.LookupLease == 0 {
		o.LookupLease = -1
	}
	e, err := tiers.Open(ctx, o)
	if err != nil {
		store.Close(false)
		t.Fatal(err)
	}
	return &world{t: t, dir: dir, store: store, e: e, event: 1, reader: 90}
}

// hooked is a memory tier that calls remove before it removes a file, and create before it
// makes one, to let something else happen at that moment. With free set that is what is free.
type hooked struct {
	driver.Primary
	remove, create func()
	free           func() int64
}

// FreeBytes implements driver.Primary.
func (h *hooked) FreeBytes() (int64, error) {
	if h.free != nil {
		return h.free(), nil
	}
	return h.Primary.FreeBytes()
}

// Create implements driver.Primary.
func (h *hooked) Create() (driver.BlobID, *os.File, error) {
	if fn := h.create; fn != nil {
		h.create = nil
		fn()
	}
	return h.Primary.Create()
}

// Remove implements driver.Primary.
func (h *hooked) Remove(id driver.BlobID) error {
	if fn := h.remove; fn != nil {
		h.remove = nil
		fn()
	}
	return h.Primary.Remove(id)
}

// close ends the engine and fails the test if an account is wrong.
func (w *world) close(keep bool) {
	w.t.Helper()
	w.audit()
	if err := w.e.Close(context.Background(), keep); err != nil {
		w.t.Errorf("Close: %v", err)
	}
}

func (w *world) audit() {
	w.t.Helper()
	if err := w.e.Audit(); err != nil {
		w.t.Errorf("audit:\n%v", err)
	}
}

// blobs counts the files of the memory tier.
func (w *world) blobs() int {
	names, err := filepath.Glob(w.dir + "/s/b/*/*")
	if err != nil {
		w.t.Fatal(err)
	}
	return len(names)
}

// lookup walks a path for thread tid. The caller has one reference to give back.
func (w *world) lookup(tid uint32, name string) (state.Attr, error) { return w.lookupBy(by(tid), name) }

func (w *world) lookupBy(c state.Caller, name string) (state.Attr, error) {
	a := state.Attr{ID: index.Root}
	if name == "" {
		return a, nil
	}
	for _, part := range strings.Split(name, "/") {
		next, err := w.e.Lookup(a.ID, part, c)
		w.forget(a.ID)
		if err != nil {
			return next, err
		}
		a = next
	}
	return a, nil
}

func (w *world) forget(id index.ID) { w.e.Forget(id, 1) }

// letGo gives back the references to directories.
func (w *world) letGo() {
	for _, id := range w.held {
		w.forget(id)
	}
	w.held = nil
}

// parent returns the directory of a path. Directories of this node keep their ids while
// they have names, so the reference is given back at once, unless w.hold is set.
func (w *world) parent(name string) (index.ID, error) {
	dir := path.Dir(name)
	if dir == "." {
		dir = ""
	}
	a, err := w.lookup(1, dir)
	if err == nil && w.hold {
		w.held = append(w.held, a.ID)
	} else if err == nil {
		w.forget(a.ID)
	}
	return a.ID, err
}

func (w *world) mkdir(name string) error { return w.mkdirBy(1, name) }

func (w *world) mkdirBy(tid uint32, name string) error {
	dir, err := w.parent(name)
	if err != nil {
		return err
	}
	a, err := w.e.Mkdir(dir, path.Base(name), 0o755, 0, 0, by(tid).Proc())
	if err == nil {
		w.forget(a.ID)
	}
	return err
}

// file is one open file; it holds a reference to its entry as the kernel does.
type file struct {
	w     *world
	tid   uint32
	id    index.ID
	h     *openfile.Handle // nil if read straight from bytes
	bytes *os.File
}

// create makes a file, as open(2) with O_CREAT where the kernel knows of none.
func (w *world) create(tid uint32, name string, excl, trunc bool) (*file, error) {
	dir, err := w.parent(name)
	if err != nil {
		return nil, err
	}
	o := openfile.CreateOptions{Parent: dir, Name: path.Base(name), Mode: 0o644, UID: 1, GID: 2, By: by(tid), Exclusive: excl, Truncate: trunc}
	if w.users {
		o.UID, o.By.Cgroup = o.By.Process, fmt.Sprint("/c/", o.By.Process)
	}
	a, h, err := w.e.Create(context.Background(), o)
	if err != nil {
		return nil, err
	}
	return &file{w: w, tid: tid, id: a.ID, h: h}, nil
}

// staleTries is how often a name is looked up again. The kernel does it once;
// more would hide a loop.
const staleTries = 20

// openWrite opens an existing file for writing.
func (w *world) openWrite(ctx context.Context, tid uint32, name string, trunc bool) (*file, error) {
	for try := 0; ; try++ {
		a, err := w.lookupBy(by(tid), name)
		if err != nil {
			return nil, err
		}
		caller := by(tid)
		if w.users {
			caller.Cgroup = fmt.Sprint("/c/", caller.Process)
		}
		h, err := w.e.OpenWrite(ctx, a.ID, caller, openfile.WriteOptions{Truncate: trunc})
		if err == nil {
			return &file{w: w, tid: tid, id: a.ID, h: h}, nil
		}
		w.forget(a.ID)
		if !errors.Is(err, state.ErrStale) || try == staleTries {
			return nil, err
		}
	}
}

// openOrCreate is open(2) with O_CREAT|O_TRUNC.
func (w *world) openOrCreate(tid uint32, name string) (*file, error) {
	for try := 0; ; try++ {
		f, err := w.openWrite(context.Background(), tid, name, true)
		if errors.Is(err, block.ErrNotFound) {
			f, err = w.create(tid, name, false, true)
		}
		if !errors.Is(err, state.ErrStale) || try == staleTries {
			return f, err
		}
	}
}

// openRead opens a file for reading.
func (w *world) openRead(tid uint32, name string) (*file, error) {
	for try := 0; ; try++ {
		a, err := w.lookupBy(by(tid), name)
		if err != nil {
			return nil, err
		}
		f, err := w.openReadID(tid, a.ID)
		if err == nil {
			return f, nil
		}
		w.forget(a.ID)
		if !errors.Is(err, state.ErrStale) || try == staleTries {
			return nil, err
		}
	}
}

// openReadID opens what a look-up found; the reference goes over to the file.
func (w *world) openReadID(tid uint32, id index.ID) (*file, error) {
	return w.openReadBy(by(tid), tid, id)
}

func (w *world) openReadBy(by state.Caller, tid uint32, id index.ID) (*file, error) {
	open := w.openWaiting
	if w.later {
		open = w.openLater
	}
	o, err := open(id, by)
	if err != nil {
		return nil, err
	}
	f := &file{w: w, tid: tid, id: id}
	if f.bytes, err = w.e.OpenBlob(o.Blob); err != nil {
		w.e.CloseRead(id)
		return nil, fmt.Errorf("bytes of an open file: %w", err)
	}
	return f, nil
}

func (w *world) openWaiting(id index.ID, by state.Caller) (openfile.Opened, error) {
	return w.e.OpenRead(context.Background(), id, by, false)
}

// openLater opens as a front does that must not wait.
func (w *world) openLater(id index.ID, by state.Caller) (openfile.Opened, error) {
	if o, err := w.e.OpenHot(id, by); !errors.Is(err, state.ErrHollow) {
		return o, err
	}
	return w.openCold(id, by)
}

// openCold opens what was not in memory just now.
func (w *world) openCold(id index.ID, by state.Caller) (o openfile.Opened, err error) {
	done := make(chan struct{})
	w.e.OpenLater(id, by, func(opened openfile.Opened, bytes *os.File, openErr error) {
		defer close(done)
		if o, err = opened, openErr; err != nil || bytes == nil {
			return
		}
		if fi, statErr := bytes.Stat(); statErr != nil || fi.Size() != o.Size {
			w.t.Errorf("the file of an open of %d bytes: %+v, %v", o.Size, fi, statErr)
		}
	})
	<-done
	return o, err
}

// read returns the bytes from the beginning.
func (f *file) read() ([]byte, error) {
	if f.bytes != nil {
		return io.ReadAll(io.NewSectionReader(f.bytes, 0, 1<<40))
	}
	p := make([]byte, f.w.e.Attr(f.id).Size+1)
	n, err := f.h.ReadAt(p, 0)
	return p[:n], err
}

// flush is close(2) of one descriptor, release the end of the last.
func (f *file) flush(c closer) error {
	if f.h == nil {
		return nil
	}
	return f.w.e.Flush(context.Background(), f.h, by(f.tid), c)
}

func (f *file) release() {
	if f.bytes != nil {
		f.bytes.Close()
	}
	if f.h != nil {
		f.w.e.Release(f.h)
	} else {
		f.w.e.CloseRead(f.id)
	}
	f.w.forget(f.id)
}

func (f *file) close() error {
	err := f.flush(closer{})
	f.release()
	return err
}

// put writes a whole file as most engines do: O_CREAT|O_TRUNC, one write, close.
func (w *world) put(tid uint32, name string, data []byte) error {
	f, err := w.openOrCreate(tid, name)
	if err != nil {
		return err
	}
	_, err = f.h.WriteAt(context.Background(), data, 0)
	return errors.Join(err, f.close())
}

// get reads a whole file.
func (w *world) get(tid uint32, name string) ([]byte, error) {
	f, err := w.openRead(tid, name)
	if err != nil {
		return nil, err
	}
	data, err := f.read()
	return data, errors.Join(err, f.close())
}

func (w *world) unlink(tid uint32, name string) error {
	dir, err := w.parent(name)
	if err != nil {
		return err
	}
	return w.e.Unlink(dir, path.Base(name), by(tid))
}

func (w *world) rmdir(name string) error { return w.rmdirBy(1, name) }

func (w *world) rmdirBy(tid uint32, name string) error {
	dir, err := w.parent(name)
	if err != nil {
		return err
	}
	return w.e.Rmdir(context.Background(), dir, path.Base(name), by(tid))
}

// rename holds both names while it runs, as the kernel does.
func (w *world) rename(tid uint32, from, to string, noReplace bool) error {
	fromDir, err := w.parent(from)
	if err != nil {
		return err
	}
	toDir, err := w.parent(to)
	if err != nil {
		return err
	}
	for _, name := range []string{from, to} {
		if a, err := w.lookup(tid, name); err == nil {
			defer w.forget(a.ID)
		}
	}
	return w.e.Rename(context.Background(), openfile.RenameOptions{
		Parent: fromDir, Name: path.Base(from), NewParent: toDir, NewName: path.Base(to), By: by(tid), NoReplace: noReplace,
	})
}

// names lists a directory as thread tid sees it.
func (w *world) names(tid uint32, dir string) ([]string, error) {
	a, err := w.lookup(tid, dir)
	if err != nil {
		return nil, err
	}
	defer w.forget(a.ID)
	var out []string
	var after uint64
	var hint index.ID
	for {
		batch := w.e.ReadDir(a.ID, after, hint, by(tid), nil)
		if len(batch) == 0 {
			return out, nil
		}
		for _, d := range batch {
			out = append(out, d.Name)
			after, hint = d.Cookie, d.ID
		}
	}
}

// removeAll removes what is below dir, pinned or not, as any process sees it.
func removeAll(t testing.TB, w *world, dir string) {
	t.Helper()
	for _, tid := range []uint32{10, 20, 30} {
		names, err := w.names(tid, dir)
		if err != nil {
			t.Fatalf("readdir %q: %v", dir, err)
		}
		for _, n := range names {
			p := strings.TrimPrefix(dir+"/"+n, "/")
			a, err := w.lookup(tid, p)
			if err != nil {
				continue
			}
			w.forget(a.ID)
			if a.Mode&0o170000 != 0o040000 {
				err = w.unlink(tid, p)
			} else if removeAll(t, w, p); tid == 30 {
				err = w.rmdir(p)
			}
			if err != nil {
				t.Errorf("remove %s: %v", p, err)
			}
		}
	}
}

// fill returns n times a letter. n has the suffix p if it counts pages.
func fill(n, letter string) []byte {
	size, pages := strings.CutSuffix(n, "p")
	times, err := strconv.Atoi(size)
	if err != nil {
		panic(err)
	}
	if pages {
		times *= page
	}
	return bytes.Repeat([]byte(letter), times)
}

// closer answers openfile.Closer.
type closer struct{ killed, open bool }

func (c closer) Killed() bool            { return c.killed }
func (c closer) StillOpen(index.ID) bool { return c.open }

// news returns the events since the last call.
func (w *world) news() []string {
	var out []string
	for w.event < w.e.Events().Next() {
		var buf [64]event.Event
		n, missed, err := w.e.Events().Read(context.Background(), w.event, buf[:])
		if err != nil || missed != 0 {
			w.t.Fatalf("events from %d: missed %d, %v", w.event, missed, err)
		}
		for _, ev := range buf[:n] {
			if ev.Kind < event.Changed { // the rest is not what scripts are about
				out = append(out, describe(ev))
			}
		}
		w.event += uint64(n)
	}
	return out
}

// describe prints an event as the scripts expect it.
func describe(ev event.Event) string {
	s := ev.Kind.String() + " " + ev.Key.Path()
	if ev.Kind == event.Renamed {
		s += "<-" + ev.From.Path()
	}
	s += " " + pages(ev.Size)
	if ev.Reason != 0 {
		s += " " + ev.Reason.String()
	}
	return s
}

// pages prints a size, in pages if it is a multiple.
func pages(n int64) string {
	if n%page == 0 && n > 0 {
		return fmt.Sprintf("%dp", n/page)
	}
	return fmt.Sprint(n)
}

// kinds names the errors in scripts.
var kinds = []struct {
	err  error
	name string
}{
	{state.ErrStale, "ErrStale"},
	{block.ErrPoisoned, "ErrPoisoned"},
	{block.ErrNotFound, "ErrNotFound"},
	{block.ErrExist, "ErrExist"},
	{block.ErrNotDir, "ErrNotDir"},
	{block.ErrIsDir, "ErrIsDir"},
	{block.ErrNotEmpty, "ErrNotEmpty"},
	{block.ErrLoop, "ErrLoop"},
	{block.ErrReserved, "ErrReserved"},
	{block.ErrInvalid, "ErrInvalid"},
	{block.ErrNameTooLong, "ErrNameTooLong"},
	{block.ErrNoSpace, "ErrNoSpace"},
	{block.ErrQuota, "ErrQuota"},
	{block.ErrTooLarge, "ErrTooLarge"},
	{block.ErrPinned, "ErrPinned"},
	{block.ErrPending, "ErrPending"},
	{context.Canceled, "Canceled"},
}

func kind(err error) string {
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}
