package fs

import (
	"context"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
)

// answerTime is how long a client may take to go on after its open was answered: until it does, the
// file has to be registered by which it was answered. Nothing tells when it has.
// To wait longer costs the memory of what is evicted meanwhile, so that memory which is full takes
// nothing more than the headroom. Then shortAnswerTime has to do.
var answerTime = 30 * time.Second // a variable for tests

// shortAnswerTime is answerTime once blocks are evicted that an earlier owner may have registered.
const shortAnswerTime = 2 * time.Second

// dropLater is dropEarlier after answerTime, unless ctx ends.
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

// dropEarlier unregisters the files with numbers from there up to and without the first of
// ours. They were an earlier owner's; while they are registered, their memory is not freed
// when they are evicted. The kernel counts upwards. What clients have open stays open.
func (b *backings) dropEarlier(ctx context.Context, from int32) {
	const end = 1<<31 - 1
	if from > b.first { // it began anew
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

// dropIdle unregisters the files that no handle uses: each open of them that was answered has been
// closed, so nobody is to come to use them any more, and the next owner need not keep their memory for it.
func (b *backings) dropIdle() {
	b.mu.Lock()
	gone := make([]int32, 0, b.mu.idle.Len())
	for el := b.mu.idle.Front(); el != nil; el = el.Next() {
		blob := el.Value.(tiers.BlobID)
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

// dropAll forgets all registrations; what clients have open stays open in the kernel.
func (b *backings) dropAll() {
	b.mu.Lock()
	table := b.mu.table
	b.mu.table = map[tiers.BlobID]*backing{}
	b.mu.idle.Init()
	b.mu.Unlock()
	for _, e := range table {
		b.unregister(e.id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// The kernel has counted from first, and may have begun anew.
	after := func(id int32) uint32 { return uint32(id-b.first) & (1<<31 - 1) }
	b.lowest = b.first
	for i, id := range b.mu.heirs {
		if i == 0 || after(id) < after(b.lowest) {
			b.lowest = id
		}
	}
	b.mu.heirs = nil
}

// inherited returns from which number on the next owner may find files registered; 0: as this one did.
// After left it is that of those which dropAll has left.
func (b *backings) inherited() int32 {
	switch {
	case !b.alone.Load():
		return 0
	case b.left.Load():
		return b.lowest
	}
	return b.first
}
