package object

import (
	"cmp"
	"os"
	"slices"
	"sync"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// delivery puts the blocks of a run into their files while their bytes come, in any order. It is the io.WriterAt of
// Bucket.Copy.
type delivery struct {
	work *work
	run  *run
}

func newDelivery(w *work, r *run) *delivery {
	for i := range r.wants {
		path := w.outcomes[r.wants[i].i].Key.Path()
		r.wants[i].came = &arrival{head: make([]byte, pack.HeaderBytes+len(path))}
	}
	return &delivery{w, r}
}

// WriteAt implements io.WriterAt. Bytes between the blocks are dropped. It does not fail: an error of one file is that of
// its block alone.
func (d *delivery) WriteAt(p []byte, offset int64) (int, error) {
	for i := range d.run.wants {
		w := &d.run.wants[i]
		begin := w.rec.Offset - d.run.from
		from, until := max(offset, begin), min(offset+int64(len(p)), begin+w.size)
		if from < until {
			w.came.write(d.work.Blocks[w.i].File, p[from-offset:until-offset], from-begin)
		}
	}
	return len(p), nil
}

// arrival is what has come of the frame of a block.
type arrival struct {
	head []byte // header and path

	mu struct {
		sync.Mutex
		pieces []piece // of the data
		err    error   // of the file
	}
}

// piece is a part of the data of a block.
type piece struct {
	at, bytes int64
	sum       block.Checksum
}

// write takes bytes that are at a place of the frame.
func (a *arrival) write(f *os.File, p []byte, at int64) {
	head := int64(len(a.head))
	if at < head {
		n := copy(a.head[at:], p)
		p, at = p[n:], head
	}
	if len(p) == 0 {
		return
	}
	at -= head
	sum := block.Sum(p)
	_, err := f.WriteAt(p, at)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.pieces = append(a.mu.pieces, piece{at, int64(len(p)), sum})
	a.mu.err = cmp.Or(a.mu.err, err)
}

// sum returns the checksum of the data that has come, and its length. A gap is not counted.
func (a *arrival) sum() (block.Checksum, int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortFunc(a.mu.pieces, func(a, b piece) int { return cmp.Compare(a.at, b.at) })
	sum, bytes := block.Sum(nil), int64(0)
	for _, p := range a.mu.pieces {
		sum, bytes = sum.Append(p.sum, p.bytes), bytes+p.bytes
	}
	return sum, bytes
}
