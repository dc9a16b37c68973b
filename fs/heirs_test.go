package fs

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/driver"
)

// registrations is a kernel with which backing files can be unregistered.
type registrations struct {
	kernel
	gone []int32
}

func (r *registrations) Unregister(id int32) syscall.Errno {
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
		newBackings(r, c.ours, nil, zap.NewNop()).dropEarlier(t.Context(), c.from)
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
		b := newBackings(r, c.first, nil, zap.NewNop())
		b.left.Store(true)
		for i, id := range append(slices.Clone(c.table), c.gone...) {
			b.mu.table[driver.BlobID(i)] = &backing{id: id}
		}
		for i := range c.gone {
			b.drop(driver.BlobID(len(c.table) + i))
		}
		b.dropAll()
		if b.lowest != c.want || len(r.gone) > 0 {
			t.Errorf("from %d, %d in use, %d given up: %d is the lowest, want %d; unregistered: %d", c.first, c.table, c.gone, b.lowest, c.want, r.gone)
		}
	}
}

// TestBackingsIdle: what no handle uses is not left to the next owner, whose memory it would keep.
func TestBackingsIdle(t *testing.T) {
	r := &registrations{}
	b := newBackings(r, 5, nil, zap.NewNop())
	const idle, used, ended = 11, 12, 13
	for id := int32(idle); id <= ended; id++ {
		b.mu.table[driver.BlobID(id)] = &backing{id: id, refs: 1}
	}
	b.release(idle)
	b.left.Store(true)
	b.dropIdle()
	b.release(ended) // as Detach does in the name of clients
	b.dropAll()
	if b.lowest != used || !slices.Equal(r.gone, []int32{idle}) {
		t.Errorf("%d is the lowest that is left, want %d; unregistered: %d, want %d", b.lowest, used, r.gone, idle)
	}
}

// TestDropLaterCramped: an earlier owner's registrations go long before answerTime if blocks are evicted
// that may be among them, for their memory is wanted.
func TestDropLaterCramped(t *testing.T) {
	old := answerTime
	answerTime = time.Hour
	defer func() { answerTime = old }()
	r := &registrations{}
	b := newBackings(r, 6, nil, zap.NewNop())
	b.drop(1)
	done := make(chan struct{})
	go func() { // ends by itself, or with the test
		b.dropLater(t.Context(), 4)
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
