package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/tests/harness"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

const holderHelper = "holder"

// patience is for what must happen, on an emulated processor.
const patience = 2 * time.Minute

// offer is the output of a holder: how to read its memory.
type offer struct {
	Addr   string
	Region rdma.RemoteRegion
}

// pattern returns the bytes that a seed makes.
func pattern(seed uint64, size int) []byte {
	b := make([]byte, size)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(b)
	return b
}

// memoryFile returns a file in memory with that content.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "region")
	_, err = f.WriteAt(content, 0)
	return f, err
}

// holder is a process that registers the pattern of a seed, args[0], of a size, args[1], and
// serves it until its input ends.
func holder(args []string) int {
	if err := serve(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serve(args []string) error {
	var seed uint64
	var size int
	if _, err := fmt.Sscan(args[0], &seed); err != nil {
		return err
	}
	if _, err := fmt.Sscan(args[1], &size); err != nil {
		return err
	}
	t, err := newFabric()
	if err != nil {
		return err
	}
	f, err := memoryFile(pattern(seed, size))
	if err != nil {
		return err
	}
	region, err := t.Register(f, int64(size))
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(offer{t.Addr(), region.Remote()}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return errors.Join(region.Close(), t.Close(), f.Close())
}

// startHolder starts a holder and returns what it offers.
func startHolder(t *testing.T, seed uint64, size int) (*harness.Process, offer) {
	t.Helper()
	p := harness.StartHelper(t, harness.ProcessOptions{}, holderHelper, fmt.Sprint(seed), fmt.Sprint(size))
	var o offer
	if err := json.NewDecoder(p.Stdout).Decode(&o); err != nil {
		p.Kill()
		t.Fatalf("the holder offers nothing: %v\n%s", err, p.Stderr())
	}
	return p, o
}

// read reads n bytes of a region.
func read(t *testing.T, p rdma.Peer, r rdma.RemoteRegion, n int) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f, err := memoryFile(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	if err := p.Read(ctx, r, 0, int64(n), rdma.Dest{File: f}); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b, nil
}

// holds shows that all of a region can be read and is the pattern of a seed. It tries again
// where a read may fail because of what happened before: reads that were under way with one
// that was refused fail with it.
func holds(t *testing.T, p rdma.Peer, o offer, seed uint64, tries int) {
	t.Helper()
	for {
		b, err := read(t, p, o.Region, int(o.Region.Size))
		if tries--; err != nil && tries > 0 {
			t.Logf("read: %v; again", err)
			continue
		}
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		if !bytes.Equal(b, pattern(seed, len(b))) {
			t.Fatal("wrong bytes")
		}
		return
	}
}

// TestHolderKilled shows that reads end with an error when the holder is killed in the middle
// of them, that later ones do so, too, and that its successor can be read, but not with the
// keys of its predecessor.
func TestHolderKilled(t *testing.T) {
	const size, readers = 8 * mib, 3 // more takes minutes on an emulated processor
	reader := openFabric(t)
	first, old := startHolder(t, 1, size)
	peer := dial(t, reader, old.Addr)
	holds(t, peer, old, 1, 1)

	results := make(chan error, readers)
	for range readers {
		go func() { results <- readUntilError(t, peer, old, 1) }() // ends as the holder is dead
	}
	before := reader.Stats().ReadBytes
	harness.Poll(t, "reads are under way", func() bool { return reader.Stats().ReadBytes > before })
	first.Kill()
	for range readers {
		select {
		case err := <-results:
			t.Logf("the read ended with: %v", err)
			if !errors.Is(err, rdma.ErrUnavailable) && !errors.Is(err, rdma.ErrGone) {
				t.Errorf("read from a killed holder: %v, want %v", err, rdma.ErrUnavailable)
			}
		case <-time.After(patience):
			t.Fatal("a read hangs after the holder was killed")
		}
	}
	if b, err := read(t, peer, old.Region, mib); err == nil {
		t.Errorf("read %d bytes from the dead", len(b))
	}

	_, now := startHolder(t, 2, size)
	again := dial(t, reader, now.Addr)
	holds(t, again, now, 2, 1)
	if b, err := read(t, again, old.Region, mib); err == nil {
		t.Errorf("the key of the holder before opens the memory of this one: its own bytes: %v", bytes.Equal(b, pattern(2, mib)))
	} else {
		t.Logf("with an old key: %v", err)
	}
	holds(t, again, now, 2, 3)
}

// readUntilError reads all of a region again and again. Bytes that come are right.
func readUntilError(t *testing.T, p rdma.Peer, o offer, seed uint64) error {
	want := pattern(seed, int(o.Region.Size))
	for {
		b, err := read(t, p, o.Region, int(o.Region.Size))
		if err != nil {
			return err
		}
		if !bytes.Equal(b, want) {
			return errors.New("wrong bytes")
		}
	}
}

// TestHolderStopped shows that reads from a holder that stands still, but is not dead, come or
// end: over RDMA hardware its processor takes no part.
func TestHolderStopped(t *testing.T) {
	reader := openFabric(t)
	p, o := startHolder(t, 3, 2*mib)
	peer := dial(t, reader, o.Addr)
	holds(t, peer, o, 3, 1)
	harness.Freeze(t, p.Pid)
	b, err := read(t, peer, o.Region, 2*mib)
	switch {
	case err == nil && !bytes.Equal(b, pattern(3, 2*mib)):
		t.Error("wrong bytes")
	case err != nil && !errors.Is(err, rdma.ErrUnavailable):
		t.Errorf("read from a holder that was stopped: %v", err)
	case err != nil && os.Getenv("KVFS_TEST_FABRIC_PROVIDER") == fabric.Verbs:
		t.Errorf("the read is not one-sided: %v", err)
	}
	t.Logf("read from a holder that was stopped: %v", err)
	if err := unix.Kill(p.Pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	holds(t, dial(t, reader, o.Addr), o, 3, 3)
}

// TestStaleRegion shows that a read of one region never returns bytes of another one in the same place: registrations
// of closed regions are not used again for other files.
func TestStaleRegion(t *testing.T) {
	const size = 256 * kib
	held, reader := openFabric(t), openFabric(t)
	peer := dial(t, reader, held.Addr())
	var closed []rdma.RemoteRegion
	for seed := range uint64(20) {
		f, err := memoryFile(pattern(seed, size))
		if err != nil {
			t.Fatal(err)
		}
		region, err := held.Register(f, size)
		if err != nil {
			t.Fatal(err)
		}
		holds(t, peer, offer{Region: region.Remote()}, seed, 3)
		if err := region.Close(); err != nil {
			t.Errorf("close region: %v", err)
		}
		f.Close()
		if closed = append(closed, region.Remote()); seed%5 != 4 {
			continue
		}
		for i, r := range closed {
			if b, err := read(t, peer, r, size); err == nil && !bytes.Equal(b, pattern(uint64(i), size)) {
				t.Fatalf("region %d: closed, and other bytes come", i)
			}
		}
	}
}
