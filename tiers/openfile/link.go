package openfile

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Link gives a temporary file the name of a block, as Rename with NoReplace does, and counts one reference by the kernel.
// The temporary name stays, as a link. It fails with EOPNOTSUPP for other files and names, and while another process
// writes the file; with EMLINK if there are too many links; and as Rename does.
//
// The link goes when a process opens the file for writing: that open fails with ErrStale, and the next look-up of the
// temporary name finds nothing. So a process that uses a temporary name again does not write the block.
func (fl *Files) Link(ctx context.Context, id, parent index.ID, name string, by state.Caller) (state.Attr, error) {
	fl.Mu.Lock()
	from := fl.nameLocked(id)
	fl.Mu.Unlock()
	err := os.NewSyscallError("link", unix.EOPNOTSUPP)
	if from.Name != "" {
		err = fl.Rename(ctx, RenameOptions{
			Parent: from.Parent, Name: from.Name, NewParent: parent, NewName: name, By: by, NoReplace: true, link: id,
		})
	}
	if err != nil {
		return state.Attr{}, err
	}
	fl.Mu.Lock()
	fl.ApplyLocked(catalog.Referred{ID: id})
	fl.Mu.Unlock()
	return fl.names.Attr(id), nil
}

// linkableLocked fails if r is a Link that is not the publication of a temporary file.
func (fl *Files) linkableLocked(r *renaming, en *index.Entry, move draft.Move) error {
	switch {
	case r.link == 0:
		return nil
	case fl.Mu.Kind(en) != draft.Temp || move != draft.Publish:
		return os.NewSyscallError("link", unix.EOPNOTSUPP)
	case !fl.names.MayLinkLocked(r.id):
		return os.NewSyscallError("link", unix.EMLINK)
	}
	return nil
}
