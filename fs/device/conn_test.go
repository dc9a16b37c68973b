package device

import (
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// oneFile is the Files of a mount with one file, "x", which is node 5.
type oneFile struct {
	fuse.RawFileSystem
	epoch Epoch
}

const oneNode = 5

func newOneFile(epoch uint32) *oneFile {
	return &oneFile{RawFileSystem: fuse.NewDefaultRawFileSystem(), epoch: Epoch(epoch) << epochShift}
}

// Lookup answers LOOKUP.
func (f *oneFile) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if name != "x" {
		return fuse.ENOENT
	}
	out.NodeId, out.Ino, out.Mode, out.Nlink = f.epoch.Node(oneNode), f.epoch.Ino(oneNode), syscall.S_IFREG|0o444, 1
	return fuse.OK
}

// GetAttr answers GETATTR.
func (f *oneFile) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if out.Ino, out.Mode, out.Nlink = f.epoch.Ino(in.NodeId), syscall.S_IFREG|0o444, 1; in.NodeId == fuse.FUSE_ROOT_ID {
		out.Mode = syscall.S_IFDIR | 0o755
	}
	return fuse.OK
}

// OpenLater implements Files.
func (f *oneFile) OpenLater(*fuse.OpenIn, *fuse.OpenOut, Reply) (fuse.Status, bool) {
	return fuse.OK, false
}

// Earlier implements Files.
func (f *oneFile) Earlier(uint32) fuse.Status { return fuse.Status(syscall.ESTALE) }

// answerHere answers a session in this process.
func answerHere(t *testing.T, x *Session) *Conn {
	t.Helper()
	c, err := Answer(x, newOneFile(x.Epoch), Options{Logger: zap.NewNop()})
	must(t, err)
	c.Start()
	return c
}

// TestOwners: one owner of a mount after the other answers it with Files that know their own nodes only. The last
// ends with the mount.
func TestOwners(t *testing.T) {
	x := openSession(t)
	path := filepath.Join(x.Dir, "x")
	for x.Epoch = 1; ; x.Epoch++ {
		c := answerHere(t, x)
		if got := c.Epoch().Number(); got != x.Epoch {
			t.Errorf("owner %d, want %d", got, x.Epoch)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Ino != c.Epoch().Ino(oneNode) {
			t.Errorf("owner %d: inode %#x, %v", x.Epoch, st.Ino, err)
		}
		if err := unix.Stat(filepath.Join(x.Dir, "y"), &st); err != unix.ENOENT {
			t.Errorf("owner %d: what is not there: %v", x.Epoch, err)
		}
		c.ForgetName(fuse.FUSE_ROOT_ID, "x")
		c.ForgetAttributes(c.Epoch().Node(oneNode))
		c.Flush(t.Context())
		if x.Epoch == 3 {
			must(t, c.Unmount())
			must(t, x.Close())
			c.Wait()
			c.Close()
			return
		}
		if !c.Resends() {
			t.Skip("the kernel cannot send requests again")
		}
		x.Init = c.Keep(0)
		canceled := false
		c.Leave(func() { canceled = true })
		c.Close()
		if !canceled {
			t.Error("who waits is not told")
		}
	}
}

// TestAdmit shows which requests come to Files, with which numbers, and how the others are answered: those about
// a node of another owner.
func TestAdmit(t *testing.T) {
	const ours, theirs = Epoch(2 << epochShift), Epoch(1 << epochShift)
	stale, eio, ok := -int32(unix.ESTALE), -int32(unix.EIO), int32(0)
	const none = 1 // no answer
	for name, c := range map[string]struct {
		opcode uint32
		node   uint64
		files  uint64 // the node that Files are asked about; 0: they are not
		want   int32
	}{
		"root":                            {opcodeGetattr, fuse.FUSE_ROOT_ID, fuse.FUSE_ROOT_ID, none},
		"ours":                            {opcodeGetattr, ours.Node(9), 9, none},
		"about none":                      {opcodeStatfs, 0, 0, none},
		"GETATTR":                         {opcodeGetattr, theirs.Node(9), 0, stale},
		"OPEN":                            {opcodeOpen, theirs.Node(9), 0, stale},
		"FORGET":                          {opcodeForget, theirs.Node(9), 0, none},
		"RELEASE":                         {opcodeRelease, theirs.Node(9), 0, ok},
		"FLUSH of what was written":       {opcodeFlush, theirs.Node(9), 0, eio},
		"FLUSH of what commits nothing":   {opcodeFlush, theirs.Node(ServiceNodes + 9), 0, ok},
		"a request of which nobody knows": {opcodeStatfs, theirs.Node(9), 0, stale},
	} {
		r, out := pipe(t)
		l := newLoop(newOneFile(1), (&Options{Logger: zap.NewNop()}).protocol(false), zap.NewNop())
		l.epoch = ours
		w := l.newWorker()
		defer w.free()
		h := (*fuse.InHeader)(unsafe.Pointer(&w.in[0]))
		h.Opcode, h.NodeId, h.Unique = c.opcode, c.node, 4
		admitted := w.admit(out, int(unsafe.Sizeof(fuse.OpenIn{}))+64)
		unix.Close(out)
		var reply fuse.OutHeader
		n, err := unix.Read(r, unsafe.Slice((*byte)(unsafe.Pointer(&reply)), headBytes))
		switch {
		case err != nil:
			t.Error(name, err)
		case admitted != (c.want == none && c.opcode != opcodeForget):
			t.Errorf("%s: comes to Files: %v", name, admitted)
		case admitted && h.NodeId != c.files:
			t.Errorf("%s: about node %#x, want %d", name, h.NodeId, c.files)
		case c.want == none && n != 0, c.want != none && (n != headBytes || reply.Unique != 4 || reply.Status != c.want):
			t.Errorf("%s: answer of %d bytes, %+v, want status %d", name, n, reply, c.want)
		}
	}
}

// pipe returns both ends of a pipe, of which the test closes that for writing.
func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var fds [2]int
	must(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	t.Cleanup(func() { unix.Close(fds[0]) })
	return fds[0], fds[1]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
