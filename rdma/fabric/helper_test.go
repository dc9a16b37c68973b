//go:build ofi && cgo

package fabric

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	case "hold":
		exit(hold(os.Stdin, os.Stdout))
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

// heldBytes is the length of the region of a holder in its own process.
const heldBytes = 8 << 20

// hold registers a region, tells about it, and serves until stdin ends.
func hold(stdin io.Reader, stdout io.Writer) error {
	t, err := Open(Options{Provider: TCP, Devices: []string{"lo"}, Host: "127.0.0.1"})
	if err != nil {
		return err
	}
	f, err := memFile()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(pattern(1, heldBytes), 0); err != nil {
		return err
	}
	r, err := t.Register(f, heldBytes)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s %x\n", t.Addr(), r.Remote().Key)
	io.Copy(io.Discard, stdin)
	return t.Close()
}

// holder is a process with a region.
type holder struct {
	cmd    *exec.Cmd
	addr   string
	region rdma.RemoteRegion
}

func startHolder(tb testing.TB) *holder {
	tb.Helper()
	needLibrary(tb)
	h := &holder{cmd: child("hold")}
	stdin, err := h.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := h.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		h.cmd.Process.Signal(syscall.SIGCONT)
		stdin.Close()
		h.cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	addr, key, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		tb.Fatalf("holder says %q: %v", line, err)
	}
	h.addr = addr
	h.region.Size = heldBytes
	if h.region.Key, err = hex.DecodeString(key); err != nil {
		tb.Fatal(err)
	}
	return h
}

// freeze returns when no thread of the holder runs any more, until SIGCONT.
func (h *holder) freeze(tb testing.TB) {
	tb.Helper()
	h.cmd.Process.Signal(syscall.SIGSTOP)
	for {
		err := unix.Waitid(unix.P_PID, h.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
		if err == nil {
			return
		}
		if err != unix.EINTR {
			tb.Fatalf("wait for the holder to stop: %v", err)
		}
	}
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
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(content, 0); err != nil {
		tb.Fatal(err)
	}
	return f
}

func register(tb testing.TB, t *Transport, f *os.File, size int64) rdma.Region {
	tb.Helper()
	r, err := t.Register(f, size)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func connect(tb testing.TB, t *Transport, addr string) *Peer {
	tb.Helper()
	p, err := t.Connect(addr)
	if err != nil {
		tb.Fatal(err)
	}
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
