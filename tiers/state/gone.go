package state

import (
	"errors"
	"os"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
)

// Gone is the work left to do outside the lock after entries left the primary tier:
// to remove their files, and to take their names out of the kernel's cache.
type Gone struct {
	Blobs   []driver.BlobID
	Dropped []driver.BlobID // those of blobs that no handle of the engine uses any more
	Names   []GoneName
	Files   []WriteSide    // no longer in use: to be closed
	Emptied []WriteSide    // their bytes are given up
	Idle    []WriteSide    // no handle is left
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

// NewGone returns an empty Gone that Finish takes back: it is not used after that.
func (st *State) NewGone() *Gone {
	if g, ok := st.gones.Get().(*Gone); ok {
		return g
	}
	return &Gone{pooled: true}
}

// Finish does the work in g. The event log has the events already. The caller holds no lock.
func (st *State) Finish(g *Gone) {
	for _, f := range g.Emptied {
		if err := f.GiveUp(); err != nil && !errors.Is(err, os.ErrClosed) {
			st.Log.Warn("give up a failed write", zap.Error(err))
		}
	}
	for _, f := range g.Idle {
		f.CloseIdle()
	}
	for _, id := range g.Records {
		if err := st.Recorder.WriteRecord(id, nil); err != nil {
			st.Log.Warn("record of a file", zap.Error(err))
		}
	}
	for _, f := range g.Files {
		f.CloseFile()
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
