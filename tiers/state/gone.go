package state

import (
	"errors"
	"os"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// Gone is the work left to do outside the lock after entries left the primary tier:
// to remove their files, and to take their names out of the kernel's cache.
type Gone struct {
	Blobs   []driver.BlobID
	Dropped []driver.BlobID // those of blobs that no handle of the engine uses any more
	Names   []GoneName
	Files   []WriteSide    // to be settled
	Records []index.ID     // to be written
	Graves  []driver.Grave // names whose versions elsewhere are void, because this node has a version now

	pooled bool // Finish gives it back to State.gones
}

// GoneName is a name that kernels are to forget.
type GoneName struct {
	Parent, ID index.ID
	Name       string
	By         Process // as in Options.Invalidate
}

// ChangeLocked is ApplyLocked, and adds to g what is left to do then: what kernels are to forget, and the file that the
// entry gives up. by is the process for which a kernel has asked for the change, nil if none has.
func (st *State) ChangeLocked(e catalog.Edit, by *Process, g *Gone) catalog.Change {
	ch := st.ApplyLocked(e)
	if ch.Blob != 0 {
		g.Blobs = append(g.Blobs, driver.BlobID(ch.Blob))
		g.Dropped = append(g.Dropped, driver.BlobID(ch.Blob))
	}
	if ch.Left != (catalog.Name{}) {
		n := GoneName{Parent: ch.Left.Parent, ID: ch.ID, Name: ch.Left.Name}
		if by != nil {
			n.By = *by
		}
		g.Names = append(g.Names, n)
	}
	if ch.Hidden {
		g.Names = append(g.Names, GoneName{Parent: st.Mu.Ix.Parent(ch.ID), ID: ch.ID, Name: st.Mu.Ix.Name(ch.ID)})
	}
	if ch.Aged {
		g.Names = append(g.Names, GoneName{ID: ch.ID})
	}
	return ch
}

// TellAttrsLocked has kernels forget the attributes of an entry.
func (st *State) TellAttrsLocked(id index.ID, g *Gone) { st.ChangeLocked(catalog.Aged{ID: id}, nil, g) }

// NewGone returns an empty Gone that Finish takes back: it is not used after that.
func (st *State) NewGone() *Gone {
	if g, ok := st.gones.Get().(*Gone); ok {
		return g
	}
	return &Gone{pooled: true}
}

// Finish does the work in g. The event log has the events already. The caller holds no lock.
func (st *State) Finish(g *Gone) {
	for _, f := range g.Files {
		if err := f.Settle(); err != nil && !errors.Is(err, os.ErrClosed) {
			st.Log.Warn("give up a failed write", zap.Error(err))
		}
	}
	for _, id := range g.Records {
		if err := st.Recorder.WriteRecord(id, nil); err != nil {
			st.Log.Warn("record of a file", zap.Error(err))
		}
	}
	for _, b := range g.Blobs {
		st.removeBlob(b)
	}
	for _, b := range g.Dropped {
		st.Opts.Dropped(b)
	}
	for _, n := range g.Names {
		st.Opts.Invalidate(n.By, n.Parent, n.ID, n.Name)
	}
	if len(g.Graves) > 0 {
		st.Far.Bury(g.Graves)
	}
	if g.pooled {
		*g = Gone{pooled: true}
		st.gones.Put(g)
	}
}

// Discard closes and removes a file of the primary tier that is not used.
func (st *State) Discard(blob driver.BlobID, file *os.File) {
	file.Close()
	st.Finish(&Gone{Blobs: []driver.BlobID{blob}})
}
