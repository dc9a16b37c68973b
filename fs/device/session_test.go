package device

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
)

// openSession mounts in this process. It skips the test where that is not possible.
func openSession(t testing.TB) *Session {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mount(2) needs root")
	}
	x, err := OpenSession(MountOptions{Dir: t.TempDir()})
	if err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(x.Unmount(), x.Close()); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return x
}

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
	o := Options{Logger: zap.NewNop()}
	d, err := sessionLoop(x, nothing{fuse.NewDefaultRawFileSystem()}, o.protocol(false), o.Logger)
	must(t, err)
	defer d.closeFiles()
	k, err := hello(d.poll, d.size, d.ps)
	must(t, err)
	if kept := cap(k.request) + cap(k.reply); kept > 4<<10 {
		t.Errorf("%d bytes are kept of INIT and its answer", kept)
	}
	k.firstBacking = 7
	x.Init = k.encode()
	if again, err := decodeKept(x.Init); err != nil || again.settings().MaxWrite != defaultMaxWrite || again.firstBacking != 7 {
		t.Errorf("kept %+v, %v", again, err)
	}
	return *x
}

// TestNodeNumbers shows which numbers the kernel knows nodes by, and which come back.
func TestNodeNumbers(t *testing.T) {
	embedded, first, last := Epoch(0), Epoch(1<<epochShift), Epoch(MaxEpoch<<epochShift)
	for _, id := range []uint64{1, 2, 1<<32 - 1, ServiceNodes, ServiceNodes + 5} {
		if got := embedded.Node(id); got != id {
			t.Errorf("%d is %d on a mount of our own", id, got)
		}
		for _, s := range []Epoch{first, last} {
			n := s.Node(id)
			if n >= NodesEnd {
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
