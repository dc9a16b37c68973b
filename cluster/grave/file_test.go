package grave

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestFileBounded shows that the file is written anew when most of it counts no more.
func TestFileBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "graves")
	f := NewFile(file)
	index := location.New(location.Options{MaxGraves: 100, Buried: f.Told})
	if err := f.Open(index); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- f.Keep(ctx) }() // ends with ctx, and is waited for
	defer func() {
		cancel()
		if err := errors.Join(<-kept, f.Close()); err != nil {
			t.Error(err)
		}
	}()
	path := "g/" + strings.Repeat("d/", block.MaxPath/4) + "x"
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	seq := uint64(time.Now().UnixNano())
	largest, shrunk := int64(0), false
	for i := range 20_000 {
		p := fmt.Sprintf("%s%d", path, i)
		index.Bury(location.HashPath(p), seq+uint64(i), false, p, int64(seq)+int64(i))
		if i%100 == 0 {
			now := size()
			largest, shrunk = max(largest, now), shrunk || now < largest
		}
	}
	for deadline := time.Now().Add(time.Minute); !shrunk; {
		if time.Now().After(deadline) {
			t.Fatal("it is not written anew")
		}
		time.Sleep(2 * time.Millisecond) // reason: polls for a state that has no event
		seq += 1 << 20
		index.Bury(1, seq, false, path, int64(seq))
		now := size()
		largest, shrunk = max(largest, now), shrunk || now < largest
	}
	if largest > 3*slack {
		t.Errorf("%d bytes for 100 graves", largest)
	}
}
