package fs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/index"
)

// BenchmarkHotRead is open, read and close of a 64 KiB block in memory by another
// process, on a mount of the process that has the engine.
func BenchmarkHotRead(b *testing.B) {
	_, dir := mountHere(b)
	benchmarkReads(b, dir)
}

// benchmarkReads has a client read a block below dir b.N times.
func benchmarkReads(b *testing.B, dir string) {
	c := startClient(b)
	path := filepath.Join(dir, "group", "block")
	c.do("write", path)
	c.do("reads", "100 "+path)
	b.SetBytes(int64(len(clientBytes)))
	b.ResetTimer()
	c.do("reads", fmt.Sprint(b.N, " ", path))
}

// BenchmarkHotReadShared is the same on one of several mounts.
func BenchmarkHotReadShared(b *testing.B) {
	mounts := &Mounts{}
	engine := sharedEngine(b, mounts, memoryIn(b))
	x := openSession(b)
	attachHere(b, engine, mounts, openSession(b))
	attachHere(b, engine, mounts, x)
	benchmarkReads(b, x.Dir)
}

// BenchmarkHotAnswer is what an open and the close of a hot block cost in this process.
func BenchmarkHotAnswer(b *testing.B) {
	s, dir := mountHere(b)
	benchmarkAnswers(b, s, dir)
}

// BenchmarkHotAnswerShared is the same on a mount of several.
func BenchmarkHotAnswerShared(b *testing.B) {
	mounts := &Mounts{}
	engine := sharedEngine(b, mounts, memoryIn(b))
	x := openSession(b)
	s := attachHere(b, engine, mounts, x)
	benchmarkAnswers(b, s, x.Dir)
}

// benchmarkAnswers answers requests that no kernel has sent, as the loop of package device has them answered.
func benchmarkAnswers(b *testing.B, s *Server, dir string) {
	path := filepath.Join(dir, "group", "block")
	c := startClient(b)
	c.do("write", path)
	c.do("read", path)
	released(b, s)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		b.Fatal(err)
	}
	var files device.Files = s.files
	head := fuse.InHeader{Unique: 2, NodeId: uint64(index.ID(st.Ino)), Caller: fuse.Caller{Pid: uint32(os.Getpid())}}
	open, release := &fuse.OpenIn{InHeader: head}, &fuse.ReleaseIn{InHeader: head}
	out := &fuse.OpenOut{}
	for b.Loop() {
		*out = fuse.OpenOut{}
		if st, later := files.OpenLater(open, out, device.Reply{}); st != fuse.OK || later {
			b.Fatal("not hot")
		}
		release.Fh = out.Fh
		files.Release(nil, release)
	}
}
