package suite

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// primaryParallel: parallel calls for different blobs lose nothing and mix up nothing.
func primaryParallel(t *testing.T, h PrimaryHarness) {
	const workers, each = 8, 100
	p, _ := openPrimary(t, h, "parallel")
	var mu sync.Mutex
	want := map[driver.BlobID]string{}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				path := fmt.Sprintf("g%d/%d", w, i)
				id, f, err := p.Create()
				if err != nil {
					t.Error(err)
					return
				}
				_, err = f.WriteString(path)
				fi, errStat := f.Stat()
				err = errors.Join(err, errStat)
				if err == nil {
					err = p.Commit(id, f, &driver.Record{Path: path, Size: fi.Size(), Mtime: fi.ModTime()})
				}
				_, errFree := p.FreeBytes()
				err = errors.Join(err, errFree, f.Close())
				switch i % 3 {
				case 0:
					err = errors.Join(err, p.Remove(id))
				case 1:
					f, errOpen := p.Open(id)
					err = errors.Join(err, errOpen, p.Uncommit(id, f), f.Close())
				case 2:
					mu.Lock()
					want[id] = path
					mu.Unlock()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	closePrimary(t, p, true)
	p, got := openPrimary(t, h, "parallel")
	if len(got) != len(want) {
		t.Errorf("adopted %d, want %d", len(got), len(want))
	}
	for id, path := range want {
		g := got[id]
		if g.record == nil || g.modified || g.record.Path != path || readPrimary(t, p, id) != path {
			t.Errorf("blob %d: got %+v, want %q", id, g, path)
		}
	}
	closePrimary(t, p, false)
}

// primaryClosing: Close may come during calls. Each call works or fails with ErrClosed, and nothing
// is left behind.
func primaryClosing(t *testing.T, h PrimaryHarness) {
	p, _ := openPrimary(t, h, "closing")
	started := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for range cap(started) {
		wg.Go(func() {
			for n := 0; ; n++ {
				_, f, err := p.Create()
				if err == nil {
					f.Close()
				} else {
					wantKind(t, "Create while closing", err, block.ErrClosed)
					return
				}
				if n == 10 {
					started <- struct{}{}
				}
			}
		})
	}
	for range cap(started) {
		<-started
	}
	closePrimary(t, p, false)
	wg.Wait()
	p, got := openPrimary(t, h, "closing")
	if len(got) != 0 {
		t.Errorf("adopted %d, want none", len(got))
	}
	closePrimary(t, p, false)
}
