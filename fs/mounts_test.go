package fs

import (
	"os"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestHooksBeforeMount shows that the callbacks do nothing before there is a
// mount.
func TestHooksBeforeMount(t *testing.T) {
	var h Hooks
	h.Invalidate(state.Process{}, 1, 2, "x")
	h.Dropped(3)
	if !h.Alive(state.Process{PID: 4}) {
		t.Error("a process is taken for dead though nobody knows")
	}
}

// namesForgotten is a kernel that keeps what it is to forget.
type namesForgotten struct {
	kernel
	names []string
}

func (k *namesForgotten) ForgetName(_ uint64, name string) { k.names = append(k.names, name) }

// TestMountsInvalidate: all mounts but the one whose kernel has asked are told of a name.
func TestMountsInvalidate(t *testing.T) {
	m := &Mounts{}
	var all []*files
	for range 3 {
		s := &files{kernel: &namesForgotten{}, refs: newRefs()}
		must(t, m.number(s))
		m.add(s)
		all = append(all, s)
	}
	m.Invalidate(state.Process{Kernel: all[1].mount, PID: 7}, index.Root, 2, "by one")
	m.Invalidate(state.Process{}, index.Root, 2, "by none")
	for i, want := range [][]string{{"by one", "by none"}, {"by none"}, {"by one", "by none"}} {
		if got := all[i].kernel.(*namesForgotten).names; !slices.Equal(got, want) {
			t.Errorf("mount %d is told %q, want %q", i, got, want)
		}
	}
}

// TestMountsAlive: a process is looked for in the pid name space of its mount; one of a mount that is
// gone is not alive.
func TestMountsAlive(t *testing.T) {
	proc, err := os.Open("/proc")
	must(t, err)
	defer proc.Close()
	empty, err := os.Open(t.TempDir())
	must(t, err)
	defer empty.Close()
	m := &Mounts{}
	var at [3]uint32
	for i, x := range []*device.Session{{Proc: proc}, {}, {Proc: empty}} {
		s := &Server{files: &files{procs: ourProc(), refs: newRefs()}}
		must(t, s.attachProcesses(x))
		defer s.closeProc()
		must(t, m.number(s.files))
		if by := s.files.caller(uint32(os.Getpid())); by.Kernel != s.files.mount || by.Process != uint32(os.Getpid()) != (i == 2) {
			t.Errorf("mount %d: we are %+v", i, by)
		}
		at[i] = s.files.mount
	}
	self := uint32(os.Getpid())
	for _, c := range []struct {
		p    state.Process
		want bool
	}{
		{state.Process{Kernel: at[0], PID: self}, true}, {state.Process{Kernel: at[1], PID: self}, true},
		{state.Process{Kernel: at[2], PID: self}, false}, {state.Process{Kernel: at[2]}, true},
		{state.Process{Kernel: at[0], PID: 1<<32 - 1}, false}, {state.Process{Kernel: 9, PID: self}, false},
		{state.Process{PID: self}, false}, {state.Process{Kernel: maxMounts + 1, PID: self}, false},
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
	all := make([]*files, maxMounts)
	for i := range all {
		all[i] = &files{}
		if err := m.number(all[i]); err != nil || all[i].mount != uint32(i+1) {
			t.Fatalf("mount %d: number %d, %v", i, all[i].mount, err)
		}
	}
	if err := m.number(&files{}); err != ErrTooManyMounts {
		t.Errorf("one more: %v", err)
	}
	m.remove(all[9])
	m.remove(all[4])
	s := &files{}
	if err := m.number(s); err != nil || s.mount != 5 {
		t.Errorf("number %d, %v; want 5", s.mount, err)
	}
	m.remove(s)
	if err := m.number(s); err != nil || s.mount != 10 {
		t.Errorf("number %d, %v; want 10, which was free for longer", s.mount, err)
	}
}
