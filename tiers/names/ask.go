package names

import (
	"context"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// A node of a large cluster may have no room to know all names. Its Remote is a driver.Asker then: of a name that
// Locate does not find it says whether other nodes must be asked. They are asked when somebody looks the name up, before
// it is looked up once more. The kernel looks a name up before it makes, removes or renames it. So these operations ask
// only about directories that are here: they must know whether other nodes have them, too.

// UnknownLocked returns the path of a name of which this node knows nothing, if other nodes must be asked about it. It
// returns "" for all other names, among them those that other nodes do not tell: temporary and plain ones. The path is a copy:
// answers keep it, and name may be a part of a request's buffer.
func (nm *Names) UnknownLocked(parent index.ID, name string) (path string) {
	if nm.Asker == nil || nm.DirLocked(parent) != nil || nm.Mu.Ix.Lookup(parent, name) != 0 || nm.Mu.NameFlags(parent, name) != 0 {
		return ""
	}
	path = nm.ChildPathLocked(parent, name)
	if block.CheckPath(path) != nil || !nm.Asker.Unknown(path) {
		return ""
	}
	return strings.Clone(path)
}

// AppendUnknownLocked walks a path of several names. It appends to ask the path and the directories above it, as far as
// other nodes must be asked about them.
func (nm *Names) AppendUnknownLocked(ask []string, path string) []string {
	if nm.Asker == nil || block.CheckPath(path) != nil {
		return ask
	}
	dir, list := index.Root, ask
	for end := -1; end < len(path); {
		begin := end + 1
		if end = strings.IndexByte(path[begin:], '/') + begin; end < begin {
			end = len(path)
		}
		name := path[begin:end]
		if dir != 0 {
			if nm.DirLocked(dir) != nil || nm.Mu.Ix.At(dir).IsTemp() {
				return ask
			}
			dir = nm.Mu.Ix.Lookup(dir, name)
		}
		switch last := end == len(path); {
		case dir != 0:
		case last && (nm.Temp.Name(name) || nm.Plain.Name(name)), !last && nm.Temp.Dir(name):
			return ask
		case nm.Asker.Unknown(path[:end]):
			list = append(list, path[:end])
		}
	}
	return list
}

// UnknownDirsLocked returns the paths of those of some directories of this node of which other nodes must be asked
// whether they have them, too. It ignores 0 and what is no directory.
func (nm *Names) UnknownDirsLocked(dirs ...index.ID) (ask []string) {
	for _, id := range dirs {
		if nm.Asker == nil || id == 0 || nm.DirLocked(id) != nil || nm.Mu.Ix.At(id).IsTemp() {
			continue
		}
		path := nm.Mu.Ix.Path(id)
		if _, known := nm.Locate(path); !known && nm.Asker.Unknown(path) {
			ask = append(ask, path)
		}
	}
	return ask
}

// Ask asks other nodes about paths, which may contain duplicates, and puts them in order. It does nothing if there are
// none; else it blocks for half a second at most, or until ctx ends. The caller holds no lock.
func (nm *Names) Ask(ctx context.Context, paths []string) {
	if len(paths) > 0 {
		slices.Sort(paths)
		nm.Asker.Ask(ctx, slices.Compact(paths))
	}
}
