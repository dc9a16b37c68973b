// Package gate makes SSDs that are slow, stuck or broken: a file system of the test below the SSD tier of a daemon, whose
// reads and writes wait as the test says.
package gate

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tests/harness"
)

// Gate is the directory of an SSD tier.
type Gate struct {
	Dir string

	arrived chan struct{} // a read has begun to wait; keeps the first of many

	mu struct {
		sync.Mutex
		open  chan struct{} // closed: reads pass
		write chan struct{} // closed: writes pass
		rate  int64         // bytes a second of reads and writes together; 0: no limit
		idle  time.Time     // when the device has done all that it was given, at that rate
	}
}

// New mounts an open gate, which is gone, and open, when the test ends.
func New(tb testing.TB) *Gate {
	tb.Helper()
	harness.NeedFuse(tb)
	if os.Getuid() != 0 {
		harness.Skip(tb, "a file system below the SSD tier needs root")
	}
	base := harness.NewDiskDir(tb, nil)
	g := &Gate{Dir: filepath.Join(base, "gate"), arrived: make(chan struct{}, 1024)}
	g.mu.open = make(chan struct{})
	g.mu.write = make(chan struct{})
	g.Release()
	back := filepath.Join(base, "back")
	for _, dir := range []string{g.Dir, back} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	root := &fs.LoopbackRoot{Path: back}
	var st syscall.Stat_t
	if err := syscall.Stat(back, &st); err != nil {
		tb.Fatal(err)
	}
	root.Dev = uint64(st.Dev)
	//lint:ignore SA1019 its successor makes nodes below the root only
	root.NewNode = func(r *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &gateNode{LoopbackNode: fs.LoopbackNode{RootData: r}, gate: g}
	}
	//lint:ignore SA1019 as above
	root.RootNode = root.NewNode(root, nil, "", &st)
	server, err := fs.Mount(g.Dir, root.RootNode, &fs.Options{
		MountOptions: fuse.MountOptions{FsName: "gate", Name: "gate", DirectMount: true, AllowOther: true, MaxBackground: 256},
	})
	if err != nil {
		tb.Fatalf("mount of the gate: %v", err)
	}
	closeOnExec(tb)
	tb.Cleanup(func() {
		g.Release()
		if err := server.Unmount(); err != nil {
			tb.Errorf("unmount of the gate: %v", err)
		}
	})
	return g
}

// closeOnExec keeps the connections of gates from the processes that the test starts: one
// that held such a connection would keep it alive, with all that waits at the gate, when the
// test process dies.
func closeOnExec(tb testing.TB) {
	tb.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == "/dev/fuse" {
			fd, err := strconv.Atoi(e.Name())
			if err != nil {
				tb.Fatal(err)
			}
			syscall.CloseOnExec(fd)
		}
	}
}

// Mount starts a daemon whose SSD tier is behind a gate.
func Mount(tb testing.TB, opts harness.Options) (*harness.Daemon, *Gate) {
	tb.Helper()
	harness.KvfsOnly(tb, "a disk tier")
	g := New(tb)
	opts.DiskDir = filepath.Join(g.Dir, "tier")
	if opts.Disk == "" {
		opts.Disk = "512MiB"
	}
	opts.Flags = append([]string{"--disk-slab-size", "32MiB", "--disk-scrub-rate", "0"}, opts.Flags...)
	d := harness.Mount(tb, opts)
	tb.Cleanup(g.Release) // Before the daemon is stopped, which waits for its reads.
	return d, g
}

// Hold makes reads wait from now on.
func (g *Gate) Hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.open = make(chan struct{})
}

// HoldWrites makes writes wait from now on.
func (g *Gate) HoldWrites() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.write = make(chan struct{})
}

// Release lets all reads and writes go, as fast as they can.
func (g *Gate) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.rate = 0
	for _, closed := range []chan struct{}{g.mu.open, g.mu.write} {
		select {
		case <-closed:
		default:
			close(closed)
		}
	}
}

// Slow makes the device move so many bytes a second, reads and writes together, in the order in which they come.
func (g *Gate) Slow(rate int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.rate = rate
}

// Behind returns how long the slow device will need for all that it has been given.
func (g *Gate) Behind() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(0, time.Until(g.mu.idle))
}

// Await waits until a read waits at the gate.
func (g *Gate) Await(tb testing.TB) {
	tb.Helper()
	select {
	case <-g.arrived:
	case <-time.After(harness.Deadline):
		tb.Fatalf("no read of the device after %v", harness.Deadline)
	}
}

// pass lets a read of n bytes wait at the gate.
func (g *Gate) pass(n int) {
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
	g.move(n)
}

// passWrite lets a write of n bytes wait at the gate.
func (g *Gate) passWrite(n int) {
	g.mu.Lock()
	open := g.mu.write
	g.mu.Unlock()
	<-open
	g.move(n)
}

// move takes the time that the device needs for n bytes after all that it has been given before.
func (g *Gate) move(n int) {
	g.mu.Lock()
	var done time.Time
	if now := time.Now(); g.mu.rate > 0 {
		if g.mu.idle.Before(now) {
			g.mu.idle = now
		}
		g.mu.idle = g.mu.idle.Add(time.Duration(n) * time.Second / time.Duration(g.mu.rate))
		done = g.mu.idle
	}
	g.mu.Unlock()
	time.Sleep(time.Until(done)) // reason: it is the speed of the device
}

type gateNode struct {
	fs.LoopbackNode
	gate *Gate
}

// Open implements NodeOpener.
func (n *gateNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, more, errno := n.LoopbackNode.Open(ctx, flags&^syscall.O_DIRECT)
	return n.gated(h), more | fuse.FOPEN_DIRECT_IO, errno
}

// Create implements NodeCreater.
func (n *gateNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	child, h, more, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_DIRECT, mode, out)
	return child, n.gated(h), more | fuse.FOPEN_DIRECT_IO, errno
}

func (n *gateNode) gated(h fs.FileHandle) fs.FileHandle {
	f, ok := h.(*fs.LoopbackFile)
	if !ok {
		return h
	}
	return &gateFile{LoopbackFile: f, gate: n.gate}
}

type gateFile struct {
	*fs.LoopbackFile
	gate *Gate
}

// Read implements FileReader.
func (f *gateFile) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.gate.pass(len(buf))
	return f.LoopbackFile.Read(ctx, buf, off)
}

// Write implements FileWriter.
func (f *gateFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	f.gate.passWrite(len(data))
	return f.LoopbackFile.Write(ctx, data, off)
}
