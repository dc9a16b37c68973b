package fs

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/fs/device"
)

// TestFailAll: without an owner a mount answers that nothing is there, to requests that
// wait already and to new ones, while what is open is read as before; from the next owner on,
// all is there again.
func TestFailAll(t *testing.T) {
	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, memoryIn(t))
	x := openSession(t)
	block := filepath.Join(x.Dir, "group", "block")
	early, reader, writer := startClient(t), startClient(t), startClient(t)

	early.begin("fails", block) // before there has been an owner
	failing(t, x, func() { early.end("ok") })
	if x.Init == nil {
		t.Fatal("nothing is kept for the first owner")
	}
	x.Epoch++
	s := attachHere(t, engine, mounts, x)
	early.do("write", block)
	reader.do("open", block)
	writer.do("create", filepath.Join(x.Dir, "group", "half"))
	x.Init = s.SessionInit()
	s.Detach()

	early.begin("read", block)
	failing(t, x, func() {
		early.end("no such file or directory")
		reader.do("read-held", "")
		early.do("fails", filepath.Join(x.Dir, "group", "other"))
		early.begin("create", filepath.Join(x.Dir, "other"))
		early.end("open " + filepath.Join(x.Dir, "other") + ": input/output error")
		writer.begin("close-held", "")
		writer.end("close " + filepath.Join(x.Dir, "group", "half") + ": input/output error")
	})

	x.Epoch++
	attachHere(t, engine, mounts, x)
	early.do("read", block)
	reader.do("read-held", "")
	reader.do("close-held", "")
	early.do("write", filepath.Join(x.Dir, "group", "half"))
}

// failing runs do while FailAll answers.
func failing(t *testing.T, x *device.Session, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- device.FailAll(ctx, x) }() // ends with cancel
	defer func() {
		cancel()
		must(t, <-ended)
	}()
	do()
}
