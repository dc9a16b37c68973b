package fs

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
	"go.uber.org/zap"
)

// FuzzKept: what was kept of an earlier owner is read as it was written, and nonsense is an
// error.
func FuzzKept(f *testing.F) {
	x := Session{}
	if os.Geteuid() == 0 {
		x = helloOf(f)
	}
	f.Add(x.Init)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := decodeKept(b)
		if err != nil {
			return
		}
		if got := k.encode(); !slices.Equal(got, b) {
			t.Errorf("%d bytes became %d", len(b), len(got))
		}
		k.flags()
	})
}

// helloOf returns a session after its first request.
func helloOf(t testing.TB) Session {
	x := openSession(t)
	s := newServer(nil, Options{})
	d, err := sessionDevice(s, x, s.mountOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer d.closeFiles()
	k, err := hello(d.poll, d.size, d.ps)
	if err != nil {
		t.Fatal(err)
	}
	k.firstBacking = 7
	x.Init = k.encode()
	if again, err := decodeKept(x.Init); err != nil || again.settings().MaxWrite != defaultMaxWrite || again.firstBacking != 7 {
		t.Errorf("kept %+v, %v", again, err)
	}
	return *x
}

// registrations is a channel on which backing files can be unregistered.
type registrations struct {
	channel
	gone []int32
}

func (r *registrations) unregister(id int32) syscall.Errno {
	r.gone = append(r.gone, id)
	return syscall.ENOENT
}

// TestDropBackings shows which registrations of an earlier owner are dropped: all from its first to
// before ours, also where the kernel's numbers began anew in between.
func TestDropBackings(t *testing.T) {
	const last = 1<<31 - 1
	for _, c := range []struct {
		from, ours int32
		want       []int32
	}{
		{1, 1, nil},
		{3, 6, []int32{3, 4, 5}},
		{last - 2, 3, []int32{last - 2, last - 1, 1, 2}},
	} {
		r := &registrations{}
		s := &Server{channel: r, ctx: t.Context(), log: zap.NewNop(), shared: shared{firstBacking: c.ours}}
		s.dropBackings(c.from)
		if !slices.Equal(r.gone, c.want) {
			t.Errorf("from %d to %d: %d, want %d", c.from, c.ours, r.gone, c.want)
		}
	}
}

// TestBackingsLeft shows which registrations an owner leaves to the next: those in use and those that
// were given up since it lets go, counted from its first, also where the kernel's numbers began anew.
func TestBackingsLeft(t *testing.T) {
	const last = 1<<31 - 1
	for _, c := range []struct {
		first       int32
		table, gone []int32
		want        int32
	}{
		{5, nil, nil, 5},
		{5, []int32{9, 8, 20}, nil, 8},
		{5, []int32{9, 8}, []int32{7}, 7},
		{last - 9, []int32{3, last - 1, 1}, nil, last - 1},
		{last - 9, []int32{3, 2}, []int32{4}, 2},
	} {
		r := &registrations{}
		b := newBackings(r, nil, zap.NewNop())
		b.left.Store(true)
		for i, id := range append(slices.Clone(c.table), c.gone...) {
			b.mu.table[tiers.BlobID(i)] = &backing{id: id}
		}
		for i := range c.gone {
			b.drop(tiers.BlobID(len(c.table) + i))
		}
		if got := b.dropAll(c.first); got != c.want || len(r.gone) > 0 {
			t.Errorf("from %d, %d in use, %d given up: %d is the lowest, want %d; unregistered: %d", c.first, c.table, c.gone, got, c.want, r.gone)
		}
	}
}

// TestBackingsIdle: what no handle uses is not left to the next owner, whose memory it would keep.
func TestBackingsIdle(t *testing.T) {
	r := &registrations{}
	b := newBackings(r, nil, zap.NewNop())
	const idle, used, ended = 11, 12, 13
	for id := int32(idle); id <= ended; id++ {
		b.mu.table[tiers.BlobID(id)] = &backing{id: id, refs: 1}
	}
	b.release(idle)
	b.left.Store(true)
	b.dropIdle()
	b.release(ended) // as Detach does in the name of clients
	if got := b.dropAll(5); got != used || !slices.Equal(r.gone, []int32{idle}) {
		t.Errorf("%d is the lowest that is left, want %d; unregistered: %d, want %d", got, used, r.gone, idle)
	}
}

// TestDropLaterCramped: an earlier owner's registrations go long before answerTime if blocks are evicted
// that may be among them, for their memory is wanted.
func TestDropLaterCramped(t *testing.T) {
	old := answerTime
	answerTime = time.Hour
	defer func() { answerTime = old }()
	r := &registrations{}
	s := &Server{channel: r, ctx: t.Context(), log: zap.NewNop(), shared: shared{firstBacking: 6}}
	s.backings = newBackings(r, nil, zap.NewNop())
	s.backings.drop(1)
	done := make(chan struct{})
	go func() { // ends by itself, or with the test
		s.dropLater(4)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was dropped")
	}
	if want := []int32{4, 5}; !slices.Equal(r.gone, want) {
		t.Errorf("unregistered: %d, want %d", r.gone, want)
	}
}

// TestNodeNumbers shows which numbers the kernel knows nodes by, and which come back.
func TestNodeNumbers(t *testing.T) {
	embedded, first, last := &Server{}, &Server{shared: shared{epoch: 1 << epochShift}}, &Server{shared: shared{epoch: maxEpoch << epochShift}}
	for _, id := range []uint64{1, 2, 1<<32 - 1, controlDir, controlBase + 5} {
		if got := embedded.node(id); got != id {
			t.Errorf("%d is %d on a mount of our own", id, got)
		}
		for _, s := range []*Server{first, last} {
			n := s.node(id)
			if n >= farBase {
				t.Errorf("%d: not to be told from a listed name", n)
			}
			back := n
			if !s.ours(&back) || back != id {
				t.Errorf("%d came back as %d", id, back)
			}
			if other := n; id != 1 && (first.ours(&other) && last.ours(&other)) {
				t.Errorf("%d is of two epochs", n)
			}
		}
	}
}

// TestMountsAlive: a process is looked for in the pid name space of its mount; one of a mount that is
// gone is not alive.
func TestMountsAlive(t *testing.T) {
	proc, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	empty, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	m := &Mounts{}
	var at [3]uint32
	for i, x := range []*Session{{Proc: proc}, {}, {Proc: empty}} {
		s := &Server{procs: ourProc(), shared: shared{refs: newRefs()}}
		if err := s.attachProcesses(x); err != nil {
			t.Fatal(err)
		}
		defer s.closeProc()
		if err := m.number(s); err != nil {
			t.Fatal(err)
		}
		if by := s.caller(uint32(os.Getpid())); by.Kernel != s.mount || by.Process != uint32(os.Getpid()) != (i == 2) {
			t.Errorf("mount %d: we are %+v", i, by)
		}
		at[i] = s.mount
	}
	self := uint32(os.Getpid())
	for _, c := range []struct {
		p    tiers.Process
		want bool
	}{
		{tiers.Process{Kernel: at[0], PID: self}, true}, {tiers.Process{Kernel: at[1], PID: self}, true},
		{tiers.Process{Kernel: at[2], PID: self}, false}, {tiers.Process{Kernel: at[2]}, true},
		{tiers.Process{Kernel: at[0], PID: 1<<32 - 1}, false}, {tiers.Process{Kernel: 9, PID: self}, false},
		{tiers.Process{PID: self}, false}, {tiers.Process{Kernel: maxMounts + 1, PID: self}, false},
	} {
		if got := m.Alive(c.p); got != c.want {
			t.Errorf("%+v: %v, want %v", c.p, got, c.want)
		}
	}
}

// TestMountNumbers: there is a number for each of 1,023 mounts, and one that is free again is given
// out last.
func TestMountNumbers(t *testing.T) {
	m := &Mounts{}
	all := make([]*Server, maxMounts)
	for i := range all {
		all[i] = &Server{}
		if err := m.number(all[i]); err != nil || all[i].mount != uint32(i+1) {
			t.Fatalf("mount %d: number %d, %v", i, all[i].mount, err)
		}
	}
	if err := m.number(&Server{}); err != ErrTooManyMounts {
		t.Errorf("one more: %v", err)
	}
	m.remove(all[9])
	m.remove(all[4])
	s := &Server{}
	if err := m.number(s); err != nil || s.mount != 5 {
		t.Errorf("number %d, %v; want 5", s.mount, err)
	}
	m.remove(s)
	if err := m.number(s); err != nil || s.mount != 10 {
		t.Errorf("number %d, %v; want 10, which was free for longer", s.mount, err)
	}
}

// TestRefs shows that no more is given back than there was.
func TestRefs(t *testing.T) {
	r := newRefs()
	const id = index.ID(5)
	r.looked(id)
	r.looked(id)
	r.opened(id, 9)
	if got := r.forgot(id, 1); got != 1 || !r.knows(id) {
		t.Errorf("1 of 2: %d", got)
	}
	if got := r.forgot(id, 3); got != 1 || r.knows(id) {
		t.Errorf("3 of 1: %d", got)
	}
	if r.closed(id, 8) || !r.closed(id, 9) || r.closed(id, 9) {
		t.Error("a handle is closed as often as it was opened")
	}
	r.looked(id)
	r.opened(id, 9)
	r.opened(id, 9)
	names, reads := r.takeAll()
	if fmt.Sprint(names, reads) != "map[5:1] map[{5 9}:2]" {
		t.Errorf("left over: %v %v", names, reads)
	}
	if r.knows(id) || !r.knows(index.Root) {
		t.Error("after all was taken")
	}
}
