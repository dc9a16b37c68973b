//go:build ofi && cgo

package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tests/sets"
)

// patience is how long an expected event may take.
const patience = 2 * time.Minute

// childVar tells a child process, which is this program again, what to do.
const childVar = "KVFS_FABRIC_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVar) {
	case "":
		sets.Select()
		os.Exit(m.Run())
	case "open":
		_, err := Open(Options{Provider: TCP})
		exit(err)
	case "environment":
		exit(environment())
	case "rails":
		exit(twoRails())
	}
}

func exit(err error) {
	if err != nil {
		fmt.Println(err)
		if errors.Is(err, ErrUnavailable) {
			os.Exit(3)
		}
		os.Exit(1)
	}
	os.Exit(0)
}

// child returns this program as a child that runs what.
func child(what string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childVar+"="+what)
	return c
}

// pattern returns n bytes that depend on seed.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= n; i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// file returns a file in memory with these bytes.
func file(tb testing.TB, content []byte) *os.File {
	tb.Helper()
	f, err := memFile()
	must(tb, err)
	tb.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(content, 0); err != nil {
		tb.Fatal(err)
	}
	return f
}

func register(tb testing.TB, t *Transport, f *os.File, size int64) rdma.Region {
	tb.Helper()
	r, err := t.Register(f, size)
	must(tb, err)
	return r
}

func connect(tb testing.TB, t *Transport, addr string) *Peer {
	tb.Helper()
	p, err := t.Connect(addr)
	must(tb, err)
	return p.(*Peer)
}

// reads reads n bytes at off and compares them, if they come.
func reads(tb testing.TB, p rdma.Peer, r rdma.RemoteRegion, off, n int64, want []byte) error {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return readsWith(ctx, tb, p, r, off, n, want)
}

func readsWith(ctx context.Context, tb testing.TB, p rdma.Peer, r rdma.RemoteRegion, off, n int64, want []byte) error {
	tb.Helper()
	dst, err := memFile()
	if err != nil {
		return err
	}
	defer dst.Close()
	if err := p.Read(ctx, r, off, n, rdma.Dest{File: dst}); err != nil {
		return err
	}
	got := make([]byte, n)
	if _, err := dst.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want[off:off+n]) {
		tb.Errorf("read %d bytes at %d: wrong bytes", n, off)
	}
	return nil
}

// await polls until ok.
func await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			tb.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(time.Millisecond) // reason: polls for what has no event
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
