package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// wantErr fails a test if an error is not of a kind.
func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// wantOutcome ends a test if a block had another outcome, or another error if there has to be one.
func wantOutcome(t testing.TB, o driver.Outcome, status driver.Status, err error) {
	t.Helper()
	if o.Status != status || err != nil && !errors.Is(o.Err, err) {
		t.Fatalf("%v: got %v (%v), want %v (%v)", o.Key, o.Status, o.Err, status, err)
	}
}

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// memFile returns a file in memory with content.
func memFile(t testing.TB, content []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("block", unix.MFD_CLOEXEC)
	must(t, err)
	f := os.NewFile(uintptr(fd), "block")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// bytesOf returns the content that stands for a number.
func bytesOf(n uint64, size int) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], n)
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

// keyOf returns a key for a name.
func keyOf(name string) block.Key { return block.Key{Group: "group", Hash: block.Hash(name)} }

// stored is a block that a test stores.
type stored struct {
	key  block.Key
	seq  uint64
	data []byte
}

// transfer is one for storing b.
func (b *stored) transfer(t testing.TB) driver.Transfer {
	return driver.Transfer{
		Key: b.key, Size: int64(len(b.data)), File: memFile(t, b.data),
		Attrs: driver.Attrs{Seq: b.seq, Mode: 0o640, Dirs: []driver.DirAttrs{{Mode: 0o750, UID: 7, GID: 8}}},
	}
}

var jobIDs struct {
	sync.Mutex
	last driver.JobID
}

// begin submits a job and returns where its outcomes will be.
func begin(submit func(*driver.Job), force bool, transfers ...driver.Transfer) <-chan []driver.Outcome {
	c := make(chan []driver.Outcome, 1)
	jobIDs.Lock()
	jobIDs.last++
	id := jobIDs.last
	jobIDs.Unlock()
	submit(&driver.Job{ID: id, Force: force, Blocks: transfers, Done: func(res *driver.Result) { c <- res.Outcomes }})
	return c
}

// wait returns what comes out of c.
func wait[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing within %v", what, patience)
		panic("unreachable")
	}
}

// numbered returns n blocks of size bytes each.
func numbered(n, size int) (blocks []stored) {
	for i := range n {
		blocks = append(blocks, stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), size)})
	}
	return blocks
}

// fill stores n blocks of size bytes each.
func (r *rig) fill(t testing.TB, n, size int) []stored {
	t.Helper()
	blocks := numbered(n, size)
	r.mustStore(t, blocks...)
	return blocks
}

// store stores blocks in one job.
func (r *rig) store(t testing.TB, blocks ...stored) []driver.Outcome {
	t.Helper()
	var transfers []driver.Transfer
	for i := range blocks {
		transfers = append(transfers, blocks[i].transfer(t))
	}
	out := wait(t, "store", begin(r.Store, false, transfers...))
	for _, tr := range transfers {
		tr.File.Close()
	}
	return out
}

// mustStore stores blocks, which must succeed.
func (r *rig) mustStore(t testing.TB, blocks ...stored) {
	t.Helper()
	for _, o := range r.store(t, blocks...) {
		wantOutcome(t, o, driver.Stored, nil)
	}
}

// load loads one block of size bytes. data is what the file holds then.
func (r *rig) load(t testing.TB, key block.Key, size int64) (o driver.Outcome, data []byte) {
	t.Helper()
	f := memFile(t, bytes.Repeat([]byte{0xa5}, int(size)))
	defer f.Close()
	o = wait(t, "load", begin(r.Load, false, driver.Transfer{Key: key, Size: size, File: f}))[0]
	data = make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil && size > 0 {
		t.Fatal(err)
	}
	return o, data
}

// TestSpareLoad: a load whose caller may wait is done when Load returns, or else follows as any other.
func TestSpareLoad(t *testing.T) {
	r := newRig(t, 1, 64<<20, nil)
	blocks := []stored{{keyOf("small"), 1, bytesOf(1, 64<<10)}, {keyOf("large"), 2, bytesOf(2, 3<<20)}}
	r.mustStore(t, blocks...)
	for _, b := range blocks {
		file, result := memFile(t, nil), make(chan *driver.Result, 1)
		r.Load(&driver.Job{ID: 1, Spare: true, Done: func(res *driver.Result) { result <- res }, Blocks: []driver.Transfer{
			{Key: b.key, Size: int64(len(b.data)), File: file},
		}})
		if within := len(result) > 0; within != (b.key.Hash == "small") {
			t.Errorf("%v: done within Load: %v", b.key, within)
		}
		data := make([]byte, len(b.data))
		o := (<-result).Outcomes[0]
		if _, err := file.ReadAt(data, 0); err != nil || o.Status != driver.Loaded || !bytes.Equal(data, b.data) {
			t.Errorf("%v: %v (%v), %v, or wrong bytes", b.key, o.Status, o.Err, err)
		}
	}
}

// mustLoad loads a block, which must have its bytes.
func (r *rig) mustLoad(t testing.TB, b stored) {
	t.Helper()
	o, data := r.load(t, b.key, int64(len(b.data)))
	if o.Status != driver.Loaded || !bytes.Equal(data, b.data) {
		t.Fatalf("load %v: got %v (%v), right bytes: %v", b.key, o.Status, o.Err, bytes.Equal(data, b.data))
	}
}

// sync calls Sync and waits for it.
func (r *rig) sync(t testing.TB) error {
	t.Helper()
	c := make(chan error, 1)
	r.Sync(func(err error) { c <- err })
	return wait(t, "sync", c)
}

// presence looks up one key.
func (r *rig) presence(t testing.TB, key block.Key) driver.Presence {
	t.Helper()
	var out [1]driver.Presence
	must(t, r.Lookup(context.Background(), []block.Key{key}, out[:]))
	return out[0]
}

var eventually = harness.Poll

// accountHost is a Host that keeps account, and refuses the keys that veto names.
type accountHost struct {
	sync.Mutex
	veto    func(key block.Key) bool
	evicted map[block.Key]int
	lost    map[block.Key]error
}

func newHost() *accountHost {
	return &accountHost{evicted: make(map[block.Key]int), lost: make(map[block.Key]error)}
}

// watch has a new Host keep account of a tier.
func (r *rig) watch() *accountHost {
	host := newHost()
	r.SetHost(host)
	return host
}

// MayEvict gives leave unless veto refuses.
func (h *accountHost) MayEvict(key block.Key) bool {
	h.Lock()
	defer h.Unlock()
	if h.veto != nil && h.veto(key) {
		return false
	}
	h.evicted[key]++
	return true
}

// Lost notes why.
func (h *accountHost) Lost(key block.Key, err error) {
	h.Lock()
	defer h.Unlock()
	h.lost[key] = err
}

// lossOf returns why a key was lost, nil if it was not.
func (h *accountHost) lossOf(key block.Key) error {
	h.Lock()
	defer h.Unlock()
	return h.lost[key]
}
