package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/state"
)

// link publishes a temporary file as link(2) does. It holds the file while it runs, as the kernel does.
func (w *world) link(tid uint32, from, to string) error {
	dir, err := w.parent(to)
	if err != nil {
		return err
	}
	a, err := w.lookup(tid, from)
	if err != nil {
		return err
	}
	defer w.forget(a.ID)
	l, err := w.e.Link(context.Background(), a.ID, dir, path.Base(to), by(tid))
	if err == nil {
		w.forget(l.ID)
	}
	return err
}

func (w *world) must(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Errorf("%s: %v", what, err)
	}
}

// TestLinkExpires: the temporary name that a killed publisher left goes like any temporary file, unless a process reads it. It
// pins the block that long, and no longer (H5).
func TestLinkExpires(t *testing.T) {
	now := time.Unix(1700000000, 0)
	w := open(t, shmDir(t), state.Options{Now: func() time.Time { return now }, TempExpiry: time.Minute})
	w.must("mkdir", w.mkdir("g"))
	w.must("put", w.put(10, "g/a.tmp", []byte("x")))
	w.must("link", w.link(10, "g/a.tmp", "g/a"))
	if st := w.e.Stats(); st.PinnedBytes != page {
		t.Errorf("%d bytes pinned, want those of the file with two names", st.PinnedBytes)
	}
	f, err := w.openRead(20, "g/a.tmp")
	if err != nil {
		t.Fatal(err)
	}
	w.must("unlink", w.unlink(20, "g/a"))
	now = now.Add(2 * time.Minute)
	w.e.Expire()
	if b, err := w.get(20, "g/a.tmp"); string(b) != "x" {
		t.Errorf("while it is open: %q, %v", b, err)
	}
	f.release()
	w.e.Expire()
	if b, err := w.get(20, "g/a.tmp"); kind(err) != "ErrNotFound" {
		t.Errorf("after a minute: %q, %v", b, err)
	}
	if st := w.e.Stats(); st.UsedBytes != 0 || st.PinnedBytes != 0 {
		t.Errorf("%d bytes used, %d pinned; want none", st.UsedBytes, st.PinnedBytes)
	}
	w.close(false)
}

// TestLinkLimit: the number of files with two names is bounded (H5).
func TestLinkLimit(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 2048 * page})
	w.must("mkdir", w.mkdir("g"))
	one := func(i int) error {
		tmp := fmt.Sprintf("g/%d.tmp", i)
		w.must("put", w.put(10, tmp, nil))
		return w.link(10, tmp, fmt.Sprintf("g/%d", i))
	}
	for i := range 1024 {
		w.must("link", one(i))
	}
	if err := one(1024); !errors.Is(err, syscall.EMLINK) {
		t.Errorf("one more: %v, want EMLINK", err)
	}
	w.must("unlink", w.unlink(10, "g/7.tmp"))
	w.must("link", w.link(10, "g/1024.tmp", "g/1024"))
	w.close(false)
}
