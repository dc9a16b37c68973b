package fs

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers/index"
)

// toldKernel is a kernel that keeps what it is told about attributes.
type toldKernel struct {
	kernel
	told []string
}

func (k *toldKernel) MayBlock(uint64)         {}
func (k *toldKernel) ForgetAttributes(uint64) { k.told = append(k.told, "forget") }
func (k *toldKernel) Flush(context.Context)   { k.told = append(k.told, "flush") }

// unmounted is the files of a mount without passthrough, and its kernel.
func unmounted(t *testing.T) (*files, *toldKernel) {
	t.Helper()
	f := newFiles(t.Context(), sharedEngine(t, &Mounts{}, memoryIn(t)), &Options{EntryTimeout: time.Hour, AttrTimeout: time.Hour})
	k := &toldKernel{}
	f.kernel = k
	return f, k
}

// create makes a file in the root.
func (f *files) create(t *testing.T, name string, flags uint32) fuse.CreateOut {
	t.Helper()
	in := &fuse.CreateIn{Flags: flags | syscall.O_CREAT | syscall.O_EXCL, Mode: 0o600}
	in.NodeId, in.Pid = uint64(index.Root), 1
	var out fuse.CreateOut
	if st := f.Create(nil, in, name, &out); st != fuse.OK {
		t.Fatal(name, st)
	}
	t.Cleanup(func() { f.engine.Forget(index.ID(out.NodeId), 1) })
	return out
}

// TestKeptAttributes shows which attributes the kernel may keep: of a new file if it sees each change of it, and of another
// one if nobody has it open for writing. What it knew before such an open it has forgotten when close returns.
func TestKeptAttributes(t *testing.T) {
	f, k := unmounted(t)
	for _, c := range []struct {
		name  string
		flags uint32
		kept  bool
	}{{"block", syscall.O_WRONLY, false}, {"a.tmp", syscall.O_RDWR, false}, {"b.tmp", syscall.O_WRONLY, true}} {
		out := f.create(t, c.name, c.flags)
		if kept := out.AttrTimeout() > 0; kept != c.kept {
			t.Errorf("%s, flags %#x: kept: %v, want %v", c.name, c.flags, kept, c.kept)
		}
		if out.OpenFlags&fuse.FOPEN_NOFLUSH != 0 {
			t.Errorf("%s: the daemon does not hear of its closes, and the kernel does not write by itself", c.name)
		}
		f.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: out.NodeId}, Fh: out.Fh})
		f.wantKept(t, out.NodeId, true)
		if c.name == "block" {
			f.openForWriting(t, out.NodeId, k)
		}
	}
	f.refs = newRefs() // as with other mounts of the engine
	out := f.create(t, "c.tmp", syscall.O_WRONLY)
	if out.AttrTimeout() > 0 {
		t.Error("a file that other kernels may open and change: kept")
	}
	f.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: out.NodeId}, Fh: out.Fh})
}

func (f *files) wantKept(t *testing.T, node uint64, want bool) {
	t.Helper()
	in := &fuse.GetAttrIn{}
	in.NodeId, in.Pid = node, 1
	var out fuse.AttrOut
	if st := f.GetAttr(nil, in, &out); st != fuse.OK || out.Timeout() > 0 != want {
		t.Errorf("attributes: %v, timeout %v; kept: want %v", st, out.Timeout(), want)
	}
}

// openForWriting opens a block and closes it again.
func (f *files) openForWriting(t *testing.T, node uint64, k *toldKernel) {
	t.Helper()
	in := &fuse.OpenIn{Flags: syscall.O_RDWR}
	in.NodeId, in.Pid = node, 1
	var out fuse.OpenOut
	k.told = nil
	if st := f.Open(nil, in, &out); st != fuse.OK {
		t.Fatal(st)
	}
	f.wantKept(t, node, false)
	f.Flush(nil, &fuse.FlushIn{InHeader: in.InHeader, Fh: out.Fh})
	if want := []string{"forget", "flush"}; !slices.Equal(k.told, want) {
		t.Errorf("the kernel was told %q, want %q", k.told, want)
	}
	f.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
	f.wantKept(t, node, true)
}

// TestAppendMoved shows that O_APPEND writes at the end of today, also where the kernel that asks has another in mind.
func TestAppendMoved(t *testing.T) {
	f, _ := unmounted(t)
	out := f.create(t, "a.tmp", syscall.O_WRONLY|syscall.O_APPEND)
	for range 2 {
		in := &fuse.WriteIn{Fh: out.Fh, Flags: syscall.O_APPEND, Size: 4}
		in.NodeId, in.Pid = out.NodeId, 1
		if n, st := f.Write(nil, in, []byte("kvfs")); n != 4 || st != fuse.OK {
			t.Fatal(n, st)
		}
	}
	if a := f.engine.Attr(index.ID(out.NodeId)); a.Size != 8 {
		t.Errorf("%d bytes after two writes of 4", a.Size)
	}
	f.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: out.NodeId}, Fh: out.Fh})
}
