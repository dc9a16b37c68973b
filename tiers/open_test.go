package tiers_test

import (
	"context"
	"os"
	"runtime"
	"testing"

	"github.com/kvfs/kvfs/tiers"
)

// promised has thread 20 come to write the block g/a: it finds that, and then the version that was
// made for it to open. The caller has a reference to each.
func promised(t *testing.T, w *world, truncate bool) (block, version tiers.Attr) {
	t.Helper()
	block, err := w.lookup(20, "g/a")
	must(t, err)
	if _, err = w.e.OpenWrite(context.Background(), block.ID, 20, truncate); err != tiers.ErrStale {
		t.Fatalf("open of a block: %v", err)
	}
	version, err = w.lookup(20, "g/a")
	must(t, err)
	return block, version
}

// TestOpenWhileEmptied: who opens a version that another thread of its process is just opening to
// start it anew gets the same file. The kernel takes only one for each inode.
func TestOpenWhileEmptied(t *testing.T) {
	h := &hooked{}
	w := open(t, shmDir(t), tiers.Options{Primary: h})
	defer w.close(false)
	blobOf := func(h *tiers.Handle) (blob tiers.BlobID) {
		must(t, h.WithBlob(func(b tiers.BlobID, _ *os.File) error {
			blob = b
			return nil
		}))
		return blob
	}
	must(t, w.mkdir("g"))
	for range 100 {
		must(t, w.put(10, "g/a", fill("1p", "x")))
		block, version := promised(t, w, true)
		var read tiers.BlobID
		done := make(chan struct{})
		h.create = func() {
			opened := w.e.Stats().Counters.Opened
			go func() { // ends when the version has been opened
				defer close(done)
				o, err := w.e.OpenHot(version.ID, 21)
				if err != nil || o.Write == nil {
					t.Errorf("open for reading: %v, %v", o, err)
					return
				}
				read = blobOf(o.Write)
				w.e.Release(o.Write)
			}()
			for w.e.Stats().Counters.Opened == opened { // till the version is taken
				runtime.Gosched()
			}
		}
		write, err := w.e.OpenWrite(context.Background(), version.ID, 20, true)
		must(t, err)
		<-done
		if got := blobOf(write); got != read {
			t.Fatalf("one handle is of blob %d, another of %d", got, read)
		}
		w.e.Release(write)
		w.forget(version.ID)
		w.forget(block.ID)
	}
}

// TestLookupWhileEmptied: a version that is just being opened to start it anew is what its process
// sees, also where the block that it was made for has lost the name to another process meanwhile.
func TestLookupWhileEmptied(t *testing.T) {
	h := &hooked{}
	w := open(t, shmDir(t), tiers.Options{Primary: h})
	defer w.close(false)
	must(t, w.mkdir("g"), w.put(10, "g/a", fill("1p", "x")))
	block, version := promised(t, w, true)
	h.create = func() {
		must(t, w.put(10, "g/a", fill("2p", "y")))
		a, err := w.lookup(21, "g/a")
		must(t, err)
		if a.ID != version.ID {
			t.Errorf("another thread finds %d, want the version %d", a.ID, version.ID)
		}
		w.forget(a.ID)
	}
	write, err := w.e.OpenWrite(context.Background(), version.ID, 20, true)
	must(t, err)
	w.e.Release(write)
	w.forget(version.ID)
	w.forget(block.ID)
}

// TestUnlinkWhileEmptied: the bytes of a version of which the name goes while it is being emptied go
// with its last handle.
func TestUnlinkWhileEmptied(t *testing.T) {
	h := &hooked{}
	w := open(t, shmDir(t), tiers.Options{Primary: h})
	defer w.close(false)
	must(t, w.mkdir("g"), w.put(10, "g/a", fill("1p", "x")))
	block, version := promised(t, w, true)
	h.create = func() { must(t, w.unlink(21, "g/a")) }
	write, err := w.e.OpenWrite(context.Background(), version.ID, 20, true)
	must(t, err)
	_, err = write.WriteAt(context.Background(), fill("1p", "y"), 0)
	must(t, err)
	w.e.Release(write)
	w.forget(version.ID)
	w.forget(block.ID)
	must(t, w.rmdir("g"))
	w.noBlobs()
}

// TestRenameReplaced: a version that was made to be opened, and shares the bytes of its block, is
// renamed with bytes of its own if another process replaces that block meanwhile, whenever that is.
func TestRenameReplaced(t *testing.T) {
	for when := 1; ; when++ {
		asked, replace := 0, func() {}
		w := open(t, shmDir(t), tiers.Options{SameProcess: func(a, b uint32) bool {
			if asked++; asked == when {
				replace()
			}
			return sameProcess(a, b)
		}})
		must(t, w.mkdir("g"), w.put(10, "g/a", fill("2p", "x")))
		reader, err := w.openRead(30, "g/a") // so that a version has an inode of its own
		must(t, err)
		block, version := promised(t, w, false)
		// Another thread has one, too, so that the engine has to ask whose it is.
		if _, err := w.e.OpenWrite(context.Background(), block.ID, 21, true); err != tiers.ErrStale {
			t.Fatalf("open of a block: %v", err)
		}
		asked, replace = 0, func() { must(t, w.put(10, "g/a", fill("1p", "y"))) }
		must(t, w.rename(20, "g/a", "g/b", false))
		replaced := asked >= when
		replace = func() {}
		w.forget(version.ID)
		w.forget(block.ID)
		must(t, reader.close())
		switch got, err := w.get(40, "g/b"); {
		case err != nil:
			t.Errorf("replaced at question %d: %v", when, err)
		case string(got) != string(fill("2p", "x")) && !(replaced && string(got) == string(fill("1p", "y"))):
			t.Errorf("replaced at question %d: got %d bytes of neither version", when, len(got))
		}
		w.close(false) // checks the accounts
		if !replaced {
			return
		}
	}
}
