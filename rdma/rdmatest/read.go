package rdmatest

import (
	"context"
	"hash"
	"os"

	"github.com/kvfs/kvfs/rdma"
)

// register registers content and returns the file too.
func (e *env) register(content []byte) (rdma.Region, *os.File) {
	f := newFile(e, content)
	r, err := e.holder.Register(f, int64(len(content)))
	if err != nil {
		e.Fatalf("register: %v", err)
	}
	if r.Remote().Size != int64(len(content)) || len(r.Remote().Key) > rdma.MaxKey {
		e.Errorf("remote region %+v of %d bytes", r.Remote(), len(content))
	}
	return r, f
}

// read reads a range of r to a new file at off 4096.
func (e *env) read(ctx context.Context, r rdma.RemoteRegion, off, n int64) (*os.File, hash.Hash64, error) {
	f := newFile(e, nil)
	h := newHash()
	var err error
	if hung := e.within(func() error {
		err = e.peer.Read(ctx, r, off, n, rdma.Dest{File: f, Off: 4096, Hash: h})
		return nil
	}); hung != nil {
		e.Fatalf("Read does not return")
	}
	return f, h, err
}
