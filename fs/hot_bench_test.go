package fs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
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

// benchmarkAnswers answers requests that no kernel has sent.
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
	d := s.channel.(*device)
	w := d.newWorker()
	head := fuse.InHeader{Unique: 2, NodeId: st.Ino, Caller: fuse.Caller{Pid: uint32(os.Getpid())}}
	for b.Loop() {
		open := (*fuse.OpenIn)(unsafe.Pointer(&w.in[0]))
		*open = fuse.OpenIn{InHeader: head}
		open.Opcode = opcodeOpen
		ok := w.admit(-1, int(unsafe.Sizeof(*open)))
		if _, hot := w.hot(-1, int(unsafe.Sizeof(*open))); !ok || !hot {
			b.Fatal("not hot")
		}
		fh := (*fuse.OpenOut)(unsafe.Pointer(&w.out[headBytes])).Fh
		release := (*fuse.ReleaseIn)(unsafe.Pointer(&w.in[0]))
		*release = fuse.ReleaseIn{InHeader: head, Fh: fh}
		release.Opcode = opcodeRelease
		ok = w.admit(-1, int(unsafe.Sizeof(*release)))
		if _, hot := w.hot(-1, int(unsafe.Sizeof(*release))); !ok || !hot {
			b.Fatal("not hot")
		}
	}
}
