package device

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ask has a client that is alone send the requests of a window. It returns whether the leader followed it for most of them.
func (f *follower) ask(apart, near time.Duration) bool {
	followed := 0
	for range window {
		gap := apart
		if f.near {
			gap = near
			followed++
		}
		f.came(1, f.since.Add(gap))
	}
	return followed > window/2
}

// TestFollower shows that the leader follows a client where that is faster, hardly ever where it is not, and changes
// over when the other way becomes the faster.
func TestFollower(t *testing.T) {
	f := &follower{since: time.Now()}
	const cheap, dear, near = 10 * time.Microsecond, 100 * time.Microsecond, 20 * time.Microsecond
	for _, of := range []struct {
		phase string
		apart time.Duration
		near  bool // is faster
	}{{"cheap", cheap, false}, {"dear", dear, true}, {"cheap again", cheap, false}, {"dear again", dear, true}} {
		const windows = 4000
		for range 2 * maxWait {
			f.ask(of.apart, near)
		}
		followed := 0
		for range windows {
			if f.ask(of.apart, near) {
				followed++
			}
		}
		if wrong := map[bool]int{true: windows - followed, false: followed}[of.near]; wrong == 0 || wrong > 2*windows/maxWait {
			t.Errorf("%s: %d of %d windows in the slower way, want %d or so", of.phase, wrong, windows, windows/maxWait)
		}
	}
}

// TestFollowerAlone shows that the leader follows nobody while several clients send requests.
func TestFollowerAlone(t *testing.T) {
	f := &follower{near: true, since: time.Now()}
	for i := range uint32(10 * window) {
		if f.came(i%2, f.since.Add(time.Microsecond)); f.isAlone() {
			t.Fatal("two clients: one is alone")
		}
	}
	for range aloneAfter {
		if f.came(7, f.since); f.alone < aloneAfter && f.isAlone() {
			t.Fatalf("alone after %d requests", f.alone)
		}
	}
	if f.came(7, f.since); !f.isAlone() {
		t.Error("one client is not alone")
	}
}

// TestFollow shows that a thread that follows a client runs on the client's processor alone, and afterwards where it could before.
func TestFollow(t *testing.T) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(proc)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	affinity := func() (set unix.CPUSet) {
		must(t, unix.SchedGetaffinity(0, &set))
		return set
	}
	home := affinity()
	var client int
	for client = 0; !home.IsSet(client); client++ {
	}
	ids := make(chan int)
	done := make(chan struct{})
	defer close(done)
	go func() { // the client
		runtime.LockOSThread() // never unlocked, as above
		stay(client)
		name := []byte("a) S 1 (b\x00")
		if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
			t.Error(err)
		}
		ids <- unix.Gettid()
		<-done
	}()
	id := uint32(<-ids)
	w := &worker{d: &loop{proc: proc}}
	w.d.follower.near = true
	for range window - 1 {
		w.came = time.Now()
		w.follow(id)
	}
	if now := affinity(); now.Count() != 1 || !now.IsSet(client) || w.home == nil {
		t.Errorf("runs on %v, want processor %d alone", now, client)
	}
	w.follow(id + 1)
	if now := affinity(); now != home || w.home != nil {
		t.Errorf("runs on %v after another client came, want %v", now, home)
	}
}

// TestSpinner shows that the time spent spinning depends on what the client was answered last.
func TestSpinner(t *testing.T) {
	var s spinner
	for range 100 {
		s.last = OpLookup
		s.took(3 * time.Microsecond)
		s.last = OpOpen
		s.took(100 * time.Microsecond)
	}
	if d := s.budget(maxSpin); d != 0 {
		t.Errorf("after OPEN: %v, want not at all: the client comes later than that", d)
	}
	if d := s.budget(maxSpinLone); d != maxSpinLone {
		t.Errorf("after OPEN of a client that is alone: %v, want %v", d, maxSpinLone)
	}
	if s.last = OpLookup; s.budget(maxSpin) > 12*time.Microsecond {
		t.Errorf("after LOOKUP: %v, want a little more than 3 µs", s.budget(maxSpin))
	}
}
