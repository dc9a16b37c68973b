package memory

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// newMemory returns a Memory of 8 pages, with no tier below it.
func newMemory(t *testing.T, files *tiertest.Files) *Memory {
	t.Helper()
	opts := state.Options{
		Primary: files, CapacityBytes: 8 * page, HeadroomBytes: 8 * page, HighWatermark: 1, LowWatermark: 0.5,
		Groups: map[block.GroupID]state.GroupOptions{"q": {QuotaBytes: 4 * page}},
	}
	if err := opts.Fill(); err != nil {
		t.Fatal(err)
	}
	st := state.New(opts)
	nm := names.New(st)
	mem := New(st, nm)
	nm.Copies, st.Recorder = alone{}, alone{}
	mem.Clean = func(index.ID, *index.Entry, bool) bool { return false }
	if err := mem.OpenRoom(); err != nil {
		t.Fatal(err)
	}
	st.MeterReuse()
	t.Cleanup(func() { files.Close(false) })
	return mem
}

// add makes a block of so many pages in a group, still open for writing.
func add(t *testing.T, mem *Memory, group string, pages int64) index.ID {
	t.Helper()
	dir := mem.Mu.Ix.Walk(group)
	if dir == 0 {
		dir = mem.ApplyLocked(&catalog.CreatedDir{Attrs: catalog.Attrs{Mode: state.ModeDir}, Parent: index.Root, Name: group}).ID
	}
	blob, file, err := mem.Primary.Create()
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	id := mem.ApplyLocked(&catalog.CreatedFile{
		Attrs: catalog.Attrs{Mode: state.ModeRegular, Ctime: mem.Now()}, Parent: dir, Name: fmt.Sprint("b", blob), Blob: uint64(blob),
	}).ID
	w := new(writer)
	mem.AddFileLocked(id, w, &w.Writing)
	mem.ApplyLocked(catalog.Opened{ID: id, N: 1})
	mem.ApplyLocked(catalog.Reserved{ID: id, N: pages * page})
	return id
}

// commit ends the writing of a block.
func commit(mem *Memory, id index.ID) {
	mem.Mu.Lock()
	defer mem.Mu.Unlock()
	mem.ApplyLocked(catalog.Committed{ID: id, Size: mem.Mu.Charge(id, mem.Mu.Ix.At(id)), Mtime: mem.Now(), Seq: mem.NextSeqLocked()})
	mem.DropFileLocked(id)
	mem.ApplyLocked(catalog.Closed{ID: id})
	mem.Mu.Room.Signal()
}

func put(t *testing.T, mem *Memory, pages int64) index.ID {
	id := add(t, mem, "g", pages)
	commit(mem, id)
	return id
}

// TestWait: a writer waits for room until a block may go, a lease ends, WriteTimeout passes, or its caller goes (A17).
func TestWait(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	for _, tc := range []struct {
		name    string
		group   string
		pages   int64
		started bool
		meet    func(mem *Memory, first, second index.ID) // a second later
		want    error
		waited  time.Duration
	}{
		{"a close", "g", 3, false, func(mem *Memory, first, _ index.ID) { commit(mem, first) }, nil, time.Second},
		{"a close of too little", "g", 5, false, func(mem *Memory, first, _ index.ID) { commit(mem, first) }, block.ErrNoSpace, 5 * time.Second},
		{"nothing", "g", 3, false, nil, block.ErrNoSpace, 5 * time.Second},
		{"a cancel", "g", 3, false, func(*Memory, index.ID, index.ID) { cancel() }, context.Canceled, time.Second},
		{"a lease", "g", 3, false, func(mem *Memory, first, _ index.ID) {
			mem.ApplyLocked(catalog.Leased{ID: first, Until: mem.Now() + int64(2*time.Second)})
			commit(mem, first)
		}, nil, 3*time.Second + time.Millisecond},
		{"the headroom", "g", 3, true, nil, nil, 0},
		{"more than the headroom", "g", 5, true, nil, block.ErrNoSpace, 5 * time.Second},
		{"too large", "g", 9, false, nil, block.ErrTooLarge, 0},
		{"a file over the quota", "q", 5, false, nil, block.ErrQuota, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := newMemory(t, new(tiertest.Files))
				first, second := add(t, mem, "g", 4), add(t, mem, "g", 4)
				w := add(t, mem, tc.group, 0)
				ctx := context.Context(t.Context())
				if tc.name == "a cancel" {
					ctx = canceled
				}
				if tc.meet != nil {
					time.AfterFunc(time.Second, func() { tc.meet(mem, first, second) })
				}
				begin := time.Now()
				err := mem.Reserve(ctx, w, tc.pages*page, tc.started)
				if waited := time.Since(begin); !errors.Is(err, tc.want) || waited != tc.waited {
					t.Errorf("%v after %v, want %v after %v", err, waited, tc.want, tc.waited)
				}
				if got := mem.Mu.Charge(w, mem.Mu.Ix.At(w)); (got == tc.pages*page) != (tc.want == nil) {
					t.Errorf("%d bytes are charged", got)
				}
				if c := mem.Mu.Counters; (c.NoSpace > 0) != (tc.want != nil && tc.want != context.Canceled) || (c.FullOfOpen > 0) != (tc.waited > 0) || (c.Overruns > 0) != (tc.name == "the headroom") {
					t.Errorf("counted %+v", c)
				}
			})
		})
	}
}

// TestFileSystem: blocks go when the file system behind memory has less room than the accounts say.
func TestFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := new(tiertest.Files)
		mem := newMemory(t, files)
		empty, first, second := put(t, mem, 0), put(t, mem, 3), put(t, mem, 3)
		gone := func(step string, want ...bool) {
			t.Helper()
			for i, id := range []index.ID{empty, first, second} {
				if got := !mem.Mu.Ix.Valid(id); got != want[i] {
					t.Errorf("%s: block %d is gone: %v", step, i, got)
				}
			}
		}
		files.Free.Store(2 * page) // of which an eighth of the headroom stays free
		if free, err := mem.Gauge(page, false); err != nil || free != 2*page || mem.Mu.Room.Limit() != 7*page {
			t.Errorf("Gauge: %d, %v; limit %d", free, err, mem.Mu.Room.Limit())
		}
		gone("room for a page", false, false, false)
		mem.ApplyLocked(catalog.Leased{ID: first, Until: mem.Now() + int64(time.Hour)})
		files.Free.Store(page)
		mem.Gauge(page, false)
		gone("room for no page: the least recently used that has no lease", true, false, true)
		mem.Gauge(8*page, false)
		gone("nothing helps for a while", true, false, true)
		mem.Gauge(page, true)
		gone("by force", true, true, true)

		files.Free.Store(0)
		empty, first, second = put(t, mem, 0), put(t, mem, 3), put(t, mem, 3)
		mem.Relieve(false)
		gone("a file less", true, false, false)
		if mem.Mu.Counters.FileSystemFull != 1 {
			t.Errorf("file system full: %d", mem.Mu.Counters.FileSystemFull)
		}
		tries, full := 0, fmt.Errorf("create: %w", block.ErrNoSpace)
		err := mem.AtOnce(func() error { tries++; return full })
		if gone("AtOnce", true, true, false); !errors.Is(err, full) || tries != 2 {
			t.Errorf("AtOnce: %v after %d tries", err, tries)
		}
		begin := time.Now()
		err = mem.WithRoom(t.Context(), nil, func() error { tries++; return full })
		if waited := time.Since(begin); !errors.Is(err, full) || waited != 5*time.Second || tries < 20 {
			t.Errorf("WithRoom: %v after %v and %d tries", err, waited, tries)
		}
		gone("WithRoom", true, true, true)
		tries = 0
		err = mem.WithRoom(t.Context(), nil, func() error {
			if tries++; tries < 3 {
				return full
			}
			return nil
		})
		if err != nil || tries != 3 {
			t.Errorf("WithRoom: %v after %d tries", err, tries)
		}
	})
}

// TestEvictor: above the high watermark blocks go in the background, down to the low one, but for those used a moment
// ago; and beyond the capacity those, too.
func TestEvictor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemory(t, new(tiertest.Files))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); mem.RunEvictor(ctx) }()
		used := func(step string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := mem.Mu.Room.Used(); got != want*page {
				t.Errorf("%s: %d pages are used, want %d", step, got/page, want)
			}
		}
		for range 7 {
			put(t, mem, 1)
		}
		mem.WakeEvictor()
		used("all are young", 7)
		time.Sleep(2 * time.Second) // reason: of the clock of the bubble, which nobody waits for
		put(t, mem, 3)
		mem.WakeEvictor()
		used("beyond the capacity", 4)
		time.Sleep(2 * time.Second) // reason: of the clock of the bubble, which nobody waits for
		w := add(t, mem, "g", 0)
		if !mem.TryReserve(w, 4*page) {
			t.Error("no room")
		}
		used("up to the watermark", 8)
		if !mem.TryReserve(w, page) {
			t.Error("no room")
		}
		used("inline", 8)
		cancel()
		<-done
	})
}

// TestGroups: a file moves to a group that has room for it, and the lists tell what groups have.
func TestGroups(t *testing.T) {
	mem := newMemory(t, new(tiertest.Files))
	big, small := put(t, mem, 3), put(t, mem, 1)
	q := add(t, mem, "q", 2)
	var g state.Gone
	to := mem.Mu.Ix.At(q).Group()
	move := func(id, over index.ID) error { return mem.MoveGroupLocked(id, mem.Mu.Ix.At(id), to, over, &g) }
	if err := move(big, 0); !errors.Is(err, block.ErrQuota) {
		t.Errorf("a move to a group without room: %v", err)
	}
	if err := move(big, q); err != nil {
		t.Errorf("a move over a file of the group: %v", err)
	}
	if err := move(small, 0); err != nil || mem.Mu.Ix.Valid(big) {
		t.Errorf("a move to a full group: %v; its block is still there: %v", err, mem.Mu.Ix.Valid(big))
	}
	var got []string
	for _, s := range mem.Accounts().Groups() {
		got = append(got, fmt.Sprint(s.Name, s.QuotaBytes/page, s.UsedBytes/page, s.BlockBytes/page, s.Stored))
	}
	if want := []string{"q4 3 0 0", "g0 0 3 2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("groups %q, want %q", got, want)
	}
	tier := &state.Secondary{Bit: 1, Opts: state.SecondaryOptions{Name: "disk"}}
	mem.Tiers = []*state.Secondary{tier}
	mem.ApplyLocked(catalog.Copied{ID: small, Bit: 1})
	if got, want := mem.Accounts().Shares(), (map[block.GroupID]map[string]Share{"q": {"disk": {1, page}}}); !reflect.DeepEqual(got, want) {
		t.Errorf("shares %v, want %v", got, want)
	}
	for _, bad := range []Quota{
		{Kind: "house", Name: "q"}, {Kind: QuotaGroup, Name: "a/b", Bytes: 1}, {Kind: QuotaGroup, Name: "g", Bytes: 9 * page},
		{Kind: QuotaUser, Name: "root", Bytes: 1}, {Kind: QuotaCgroup, Name: "a", Bytes: 1}, {Kind: QuotaCgroup, Name: "/a/", Bytes: 1},
		{Kind: QuotaUser, Name: "1", Bytes: -1}, {Kind: QuotaUser, Name: "1"}, {Kind: QuotaGroup, Name: "x"}, {Kind: QuotaGroup, Name: "q", Pinned: true},
	} {
		if err := mem.Accounts().SetQuota(t.Context(), bad); !errors.Is(err, block.ErrInvalid) {
			t.Errorf("quota %+v: %v", bad, err)
		}
	}
	for i := range 65 {
		err := mem.Accounts().SetQuota(t.Context(), Quota{Kind: QuotaGroup, Name: fmt.Sprint("n", i), Bytes: page, Pinned: i%2 == 0})
		if want := i < 64; (err == nil) != want {
			t.Errorf("quota %d of a group: %v", i+1, err)
		}
	}
}
