package fs

import (
	"context"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/driver"
)

// answerTime is how long a client may take from the answer to its open to its use of the
// backing file. The file must stay registered that long, and the kernel does not tell when the
// client has used it. A longer time costs memory: evicted blocks keep theirs meanwhile. If that
// fills memory beyond the headroom, shortAnswerTime applies.
var answerTime = 30 * time.Second // a variable for tests

// shortAnswerTime replaces answerTime once a block is evicted that an earlier owner may have registered.
const shortAnswerTime = 2 * time.Second

// dropLater calls dropEarlier after answerTime, unless ctx ends.
func (b *backings) dropLater(ctx context.Context, from int32) {
	began := time.Now()
	t := time.NewTimer(answerTime)
	defer t.Stop()
	unknown := b.unknown
	for {
		select {
		case <-unknown:
			unknown = nil
			t.Reset(min(answerTime, shortAnswerTime) - time.Since(began))
		case <-t.C:
			b.dropEarlier(ctx, from)
			b.alone.Store(ctx.Err() == nil)
			return
		case <-ctx.Done():
			return
		}
	}
}

// dropEarlier unregisters the files of earlier owners: those numbered from "from" up to our
// first. The kernel counts upwards. While they are registered, eviction does not free their
// memory. Files that clients have open stay open.
func (b *backings) dropEarlier(ctx context.Context, from int32) {
	const end = 1<<31 - 1
	if from > b.first { // the kernel restarted its numbers
		b.dropRange(ctx, from, end)
		from = 1
	}
	b.dropRange(ctx, from, b.first)
}

func (b *backings) dropRange(ctx context.Context, from, to int32) {
	for id := from; id < to && ctx.Err() == nil; id++ {
		if errno := b.reg.Unregister(id); errno != 0 && errno != unix.ENOENT {
			b.log.Warn("unregister an earlier owner's backing file", zap.Error(errno))
			return
		}
	}
}

// dropIdle unregisters the files that no handle uses. Each answered open of them has been
// closed, so no client still needs them, and the next owner need not keep their memory.
func (b *backings) dropIdle() {
	b.mu.Lock()
	gone := make([]int32, 0, b.mu.idle.Len())
	for el := b.mu.idle.Front(); el != nil; el = el.Next() {
		blob := el.Value.(driver.BlobID)
		gone = append(gone, b.mu.table[blob].id)
		delete(b.mu.table, blob)
	}
	b.mu.idle.Init()
	b.mu.Unlock()
	for _, id := range gone {
		if errno := b.reg.Unregister(id); errno != 0 && errno != syscall.EBADF {
			b.log.Warn("unregister backing file", zap.Error(errno))
		}
	}
}

// dropAll forgets all registrations. Files that clients have open stay open in the kernel.
func (b *backings) dropAll() {
	b.mu.Lock()
	table := b.mu.table
	b.mu.table = map[driver.BlobID]*backing{}
	b.mu.idle.Init()
	b.mu.Unlock()
	for _, e := range table {
		b.unregister(e.id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// The kernel has counted from first, and may have restarted at 0.
	after := func(id int32) uint32 { return uint32(id-b.first) & (1<<31 - 1) }
	b.lowest = b.first
	for i, id := range b.mu.heirs {
		if i == 0 || after(id) < after(b.lowest) {
			b.lowest = id
		}
	}
	b.mu.heirs = nil
}

// inherited returns the lowest number at which the next owner may find a registered file. Zero means the
// same as for this owner. After left is set, that is the lowest number which dropAll left.
func (b *backings) inherited() int32 {
	switch {
	case !b.alone.Load():
		return 0
	case b.left.Load():
		return b.lowest
	}
	return b.first
}
