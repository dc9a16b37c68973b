package remote

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
)

// TestConnect shows that the memory of a peer can be read if its probe region has the bytes that it
// tells, and that a description without sense is refused.
func TestConnect(t *testing.T) {
	net := inproc.NewNetwork()
	open := func(name string) *Fabric {
		t.Helper()
		tr, err := net.Transport(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(tr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(f.Close(), tr.Close()); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	a, b := open("a"), open("b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := b.Connect(ctx, a.Description())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Test(ctx), m.Close()); err != nil {
		t.Error(err)
	}
	a.Sum++
	if _, err := b.Connect(ctx, a.Description()); !errors.Is(err, rdma.ErrProtocol) {
		t.Errorf("other bytes: %v", err)
	}
	if err := Check(a.Description()); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(d *wire.DescribeReply){
		"no kind":      func(d *wire.DescribeReply) { d.FabricProto = "" },
		"strange kind": func(d *wire.DescribeReply) { d.FabricProto = "a\nb" },
		"no address":   func(d *wire.DescribeReply) { d.FabricAddr = "" },
		"no key":       func(d *wire.DescribeReply) { d.ProbeKey = nil },
		"no size":      func(d *wire.DescribeReply) { d.ProbeSize = 0 },
		"much":         func(d *wire.DescribeReply) { d.ProbeSize = maxProbe + 1 },
	} {
		d := proto.Clone(a.Description()).(*wire.DescribeReply)
		change(d)
		if err := Check(d); !errors.Is(err, rdma.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
