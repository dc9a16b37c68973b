package control

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tests/harness"
)

// gate is a directory for an SSD tier on a file system whose reads the test holds up
// or fails: a device that is slow, stuck or broken, without a clock.
type gate struct {
	dir     string        // for the tier
	arrived chan struct{} // a read has begun to wait; keeps the first of many

	mu struct {
		sync.Mutex
		open  chan struct{} // closed: reads pass
		write chan struct{} // closed: writes pass
		fails bool          // reads that pass fail with EIO
	}
}

// newGate mounts an open gate, which is gone, and open, when the test ends.
func newGate(t testing.TB) *gate {
	t.Helper()
	harness.NeedFuse(t)
	if os.Getuid() != 0 {
		harness.Skip(t, "a file system below the SSD tier needs root")
	}
	base := harness.NewDiskDir(t, nil)
	g := &gate{dir: filepath.Join(base, "gate"), arrived: make(chan struct{}, 1024)}
	g.mu.open = make(chan struct{})
	g.mu.write = make(chan struct{})
	g.release()
	back := filepath.Join(base, "back")
	for _, dir := range []string{g.dir, back} {
		must(t, "mkdir", os.Mkdir(dir, 0o755))
	}
	root := &fusefs.LoopbackRoot{Path: back}
	var st syscall.Stat_t
	must(t, "stat", syscall.Stat(back, &st))
	root.Dev = uint64(st.Dev)
	//lint:ignore SA1019 its successor makes nodes below the root only
	root.NewNode = func(r *fusefs.LoopbackRoot, _ *fusefs.Inode, _ string, _ *syscall.Stat_t) fusefs.InodeEmbedder {
		return &gateNode{LoopbackNode: fusefs.LoopbackNode{RootData: r}, gate: g}
	}
	//lint:ignore SA1019 as above
	root.RootNode = root.NewNode(root, nil, "", &st)
	server, err := fusefs.Mount(g.dir, root.RootNode, &fusefs.Options{
		MountOptions: fuse.MountOptions{FsName: "gate", Name: "gate", DirectMount: true, AllowOther: true, MaxBackground: 256},
	})
	must(t, "mount of the gate", err)
	closeOnExec(t)
	t.Cleanup(func() {
		g.release()
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount of the gate: %v", err)
		}
	})
	return g
}

// closeOnExec keeps the connections of gates from the processes that the test starts: one
// that held such a connection would keep it alive, with all that waits at the gate, when the
// test process dies.
func closeOnExec(t testing.TB) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, "list of descriptors", err)
	for _, e := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == "/dev/fuse" {
			fd, err := strconv.Atoi(e.Name())
			must(t, "descriptor", err)
			syscall.CloseOnExec(fd)
		}
	}
}

// hold makes reads wait from now on.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.open = make(chan struct{})
}

// holdWrites makes writes wait from now on.
func (g *gate) holdWrites() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.write = make(chan struct{})
}

// release lets all reads and writes go.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, closed := range []chan struct{}{g.mu.open, g.mu.write} {
		select {
		case <-closed:
		default:
			close(closed)
		}
	}
}

// fail makes reads fail, or not.
func (g *gate) fail(fails bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.fails = fails
}

// pass waits at the gate.
func (g *gate) pass() syscall.Errno {
	g.mu.Lock()
	open := g.mu.open
	g.mu.Unlock()
	select {
	case <-open:
	default:
		select {
		case g.arrived <- struct{}{}:
		default: // As many have been told of already.
		}
		<-open
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.fails {
		return syscall.EIO
	}
	return 0
}

// await waits until a read waits at the gate.
func (g *gate) await(t testing.TB) {
	t.Helper()
	receive(t, "a read of the device", g.arrived)
}

type gateNode struct {
	fusefs.LoopbackNode
	gate *gate
}

// Open implements NodeOpener.
func (n *gateNode) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, more, errno := n.LoopbackNode.Open(ctx, flags&^syscall.O_DIRECT)
	return n.gated(h), more | fuse.FOPEN_DIRECT_IO, errno
}

// Create implements NodeCreater.
func (n *gateNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	child, h, more, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_DIRECT, mode, out)
	return child, n.gated(h), more | fuse.FOPEN_DIRECT_IO, errno
}

func (n *gateNode) gated(h fusefs.FileHandle) fusefs.FileHandle {
	f, ok := h.(*fusefs.LoopbackFile)
	if !ok {
		return h
	}
	return &gateFile{LoopbackFile: f, gate: n.gate}
}

type gateFile struct {
	*fusefs.LoopbackFile
	gate *gate
}

// Read implements FileReader.
func (f *gateFile) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := f.gate.pass(); errno != 0 {
		return nil, errno
	}
	return f.LoopbackFile.Read(ctx, buf, off)
}

// Write implements FileWriter.
func (f *gateFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	f.gate.mu.Lock()
	open := f.gate.mu.write
	f.gate.mu.Unlock()
	<-open
	return f.LoopbackFile.Write(ctx, data, off)
}

// gateMount starts a daemon whose SSD tier is behind a gate.
func gateMount(t testing.TB, opts harness.Options) (*harness.Daemon, *gate) {
	t.Helper()
	harness.KvfsOnly(t, "a disk tier")
	g := newGate(t)
	opts.DiskDir, opts.Disk = filepath.Join(g.dir, "tier"), "512MiB"
	opts.Flags = append([]string{"--disk-slab-size", "32MiB", "--disk-scrub-rate", "0"}, opts.Flags...)
	d := harness.Mount(t, opts)
	t.Cleanup(g.release) // Before the daemon is stopped, which waits for its reads.
	return d, g
}

// TestGate shows that a read waits at the gate, that blocks are whole afterwards, and that a failing read is a miss.
func TestGate(t *testing.T) {
	d, g := gateMount(t, harness.Options{})
	coldBlocks(t, d, mib, "g/a", "g/b")
	g.hold()
	got := make(chan error, 1)
	go func() { // Ends with the gate.
		_, err := readBlock(d.Path("g/a"))
		got <- err
	}()
	g.await(t)
	select {
	case err := <-got:
		t.Fatalf("the read is back before its device: %v", err)
	default:
	}
	g.release()
	must(t, "read", receive(t, "the read", got))
	wantBytes(t, d.Path("g/a"), pattern("g/a", mib))
	g.fail(true)
	wantMiss(t, d.Path("g/b"))
}
