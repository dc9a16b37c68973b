package inproc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/inproc"
	"github.com/kvfs/kvfs/rdma/rdmatest"
)

func TestConformance(t *testing.T) {
	rdmatest.Run(t, func(testing.TB) *rdmatest.Harness {
		n := inproc.NewNetwork()
		var nodes atomic.Int64
		return &rdmatest.Harness{
			Open: func(tb testing.TB, s rdma.Source) rdma.Transport {
				tr, err := n.Transport(fmt.Sprint("node", nodes.Add(1)), s)
				if err != nil {
					tb.Fatal(err)
				}
				return tr
			},
			Cut: func(a, b rdma.Transport) (heal func()) {
				n.Cut(a.Addr(), b.Addr())
				return func() { n.Heal(a.Addr(), b.Addr()) }
			},
			Stall: func(a, b rdma.Transport) (resume func()) { return n.Stall(a.Addr(), b.Addr()) },
		}
	})
}

// lender lends one file by any name.
type lender struct {
	file *os.File
	size int64
}

func (l lender) Lend(context.Context, []byte) (rdma.Loan, error) {
	return rdma.Loan{File: l.file, Size: l.size, Close: func() {}}, nil
}

func file(t *testing.T, content []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// get gets the block from p and returns its bytes.
func get(t *testing.T, p rdma.Peer, hook func()) ([]byte, error) {
	t.Helper()
	f := file(t, nil)
	err := p.(rdma.Getter).Get(t.Context(), []*rdma.Item{{
		Name: []byte("x"),
		Accept: func([]byte, int64) (rdma.Dest, error) {
			if hook != nil {
				hook()
			}
			return rdma.Dest{File: f}, nil
		},
		Done: func(error) {},
	}})
	b, readErr := os.ReadFile(f.Name())
	if readErr != nil {
		t.Fatal(readErr)
	}
	return b, err
}

func pair(t *testing.T, content []byte) (*inproc.Network, rdma.Peer) {
	t.Helper()
	n := inproc.NewNetwork()
	a, err := n.Transport("a", lender{file(t, content), int64(len(content))})
	if err != nil {
		t.Fatal(err)
	}
	b, err := n.Transport("b", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	p, err := b.Connect("a")
	if err != nil {
		t.Fatal(err)
	}
	return n, p
}

func TestCut(t *testing.T) {
	content := bytes.Repeat([]byte("kvfs"), 1<<20)
	n, p := pair(t, content)
	if _, err := get(t, p, func() { n.Cut("b", "a") }); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("cut during a get: %v", err)
	}
	if _, err := get(t, p, nil); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("get over a cut link: %v", err)
	}
	n.Heal("a", "b")
	if b, err := get(t, p, nil); err != nil || !bytes.Equal(b, content) {
		t.Errorf("get over a healed link: %v", err)
	}
}

func TestCorrupt(t *testing.T) {
	content := bytes.Repeat([]byte("kvfs"), 1<<18)
	n, p := pair(t, content)
	n.Corrupt("b", "a", 1) // the other direction
	n.Corrupt("a", "b", 2)
	for i := range 3 {
		b, err := get(t, p, nil)
		differ := 0
		for j := range content {
			if b[j] != content[j] {
				differ++
			}
		}
		if want := map[bool]int{true: 1, false: 0}[i < 2]; err != nil || differ != want {
			t.Errorf("get %d: %d bytes differ, want %d (%v)", i, differ, want, err)
		}
	}
}

func TestTruncate(t *testing.T) {
	for _, size := range []int{1, 2, 1000, 1 << 20} {
		content := bytes.Repeat([]byte("k"), size)
		n, p := pair(t, content)
		n.Truncate("a", "b", 1)
		if b, err := get(t, p, nil); !errors.Is(err, rdma.ErrProtocol) || len(b) != size/2 {
			t.Errorf("truncated get of %d: %d bytes, %v", size, len(b), err)
		}
		if b, err := get(t, p, nil); err != nil || !bytes.Equal(b, content) {
			t.Errorf("get after a truncated one: %v", err)
		}
	}
}

// TestDelay shows that a delay is there and that it ends with the context and with
// the link.
func TestDelay(t *testing.T) {
	n, p := pair(t, []byte("kvfs"))
	n.Delay("a", "b", time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := p.(rdma.Getter).Get(ctx, []*rdma.Item{{Done: func(error) {}}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get over a slow link: %v", err)
	}
	done := make(chan error, 1)
	go func() { // ends with the cut
		_, err := get(t, p, nil)
		done <- err
	}()
	n.Cut("a", "b")
	if err := <-done; !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("cut during a delay: %v", err)
	}
	n.Heal("a", "b")
	n.Delay("a", "b", time.Millisecond)
	if b, err := get(t, p, nil); err != nil || string(b) != "kvfs" {
		t.Errorf("get after a delay: %q, %v", b, err)
	}
}

// TestStall shows that bytes wait while the link is stalled, and then arrive unchanged.
func TestStall(t *testing.T) {
	content := bytes.Repeat([]byte("kvfs"), 1<<20)
	n, p := pair(t, content)
	began := make(chan func())
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() { // ends when the link is resumed
		b, err := get(t, p, func() { began <- n.Stall("b", "a") })
		done <- result{b, err}
	}()
	resume := <-began
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	item := &rdma.Item{
		Accept: func([]byte, int64) (rdma.Dest, error) { return rdma.Dest{File: file(t, nil)}, nil },
		Done:   func(error) {},
	}
	if err := p.(rdma.Getter).Get(ctx, []*rdma.Item{item}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get over a stalled link: %v", err)
	}
	select {
	case r := <-done:
		t.Errorf("get over a stalled link ended: %v", r.err)
	default:
		resume()
		resume()
		if r := <-done; r.err != nil || !bytes.Equal(r.b, content) {
			t.Errorf("get over a link that was stalled: %v", r.err)
		}
	}
}

// TestAddresses shows that an address has one node at a time.
func TestAddresses(t *testing.T) {
	n, _ := pair(t, []byte("kvfs"))
	if _, err := n.Transport("a", nil); err == nil {
		t.Errorf("two nodes with one address")
	}
	if _, err := n.Transport("", nil); err == nil {
		t.Errorf("node without an address")
	}
	c, err := n.Transport("c", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if c, err = n.Transport("c", nil); err != nil {
		t.Errorf("address of a closed node: %v", err)
	}
	c.Close()
}
