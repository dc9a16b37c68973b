package names

import (
	"strings"
	"time"

	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// A process that publishes a block by link and unlink has two names of one file in between. The entry has the new one, as
// after a rename. The temporary name is a link: it is not in the index, is not listed, and leads to the entry. It holds the
// bytes like an open file, and keeps them if the block loses its own name. An entry has one link at most. The record of
// the entry names it, so that it is there after a restart.

// maxLinks bounds the links. A process needs one for a moment; those of killed ones expire.
const maxLinks = 1024

// links are the links by name and by entry.
type links struct {
	names map[catalog.Name]index.ID
	of    map[index.ID]link
}

// link is the second name of an entry.
type link struct {
	catalog.Name
	made int64
}

// MayLinkLocked reports whether an entry may get a link.
func (nm *Names) MayLinkLocked(id index.ID) bool {
	return !nm.LinkedLocked(id) && len(nm.links.of) < maxLinks
}

// LinkLocked makes a name, which no entry has, the link of an entry in memory.
func (nm *Names) LinkLocked(name catalog.Name, id index.ID) {
	if nm.links.of == nil {
		nm.links = links{map[catalog.Name]index.ID{}, map[index.ID]link{}}
	}
	nm.links.names[name], nm.links.of[id] = id, link{name, nm.Now()}
	nm.ApplyLocked(catalog.Opened{ID: id, N: 1})
}

// LinkedLocked reports whether an entry has a link.
func (nm *Names) LinkedLocked(id index.ID) bool { _, ok := nm.links.of[id]; return ok }

// IsLinkLocked reports whether a name is a link.
func (nm *Names) IsLinkLocked(name catalog.Name) bool { return nm.links.names[name] != 0 }

// LinkPathLocked returns the path of the link of an entry, "" if it has none.
func (nm *Names) LinkPathLocked(id index.ID) string {
	l, ok := nm.links.of[id]
	if !ok || !nm.Mu.Ix.Valid(l.Parent) {
		return ""
	}
	return nm.ChildPathLocked(l.Parent, l.Name.Name)
}

// AdoptLinkLocked makes the link that the record of an entry names, unless its directory is gone or an entry has the name.
func (nm *Names) AdoptLinkLocked(path string, id index.ID) {
	cut := strings.LastIndexByte(path, '/')
	name := catalog.Name{Parent: index.Root, Name: path[cut+1:]}
	if cut > 0 {
		name.Parent = nm.Mu.Ix.Walk(path[:cut])
	}
	if name.Parent != 0 && nm.CheckNewLocked(name.Parent, name.Name) == nil && nm.Mu.Ix.Lookup(name.Parent, name.Name) == 0 {
		nm.LinkLocked(name, id)
	}
}

// UnlinkLinkLocked removes the link of an entry.
func (nm *Names) UnlinkLinkLocked(id index.ID, g *state.Gone) {
	delete(nm.links.names, nm.links.of[id].Name)
	delete(nm.links.of, id)
	en := nm.Mu.Ix.At(id)
	if en.Linked() {
		g.Records = append(g.Records, id)
	} else {
		g.Blobs = append(g.Blobs, driver.BlobID(en.Blob()))
	}
	if en.Lookups() > 0 {
		g.Names = append(g.Names, state.GoneName{ID: id}) // the number of its names
	}
	nm.ApplyLocked(catalog.Closed{ID: id})
	nm.ClosedLocked(id, g)
}

// ExpireLinksLocked removes the links of files that no process has open and that were made an age ago.
func (nm *Names) ExpireLinksLocked(age time.Duration, g *state.Gone) {
	for id, l := range nm.links.of {
		if nm.Now()-l.made > int64(age) && nm.Mu.Ix.At(id).Opens() == 1 {
			nm.Mu.Counters.Expired++
			nm.UnlinkLinkLocked(id, g)
		}
	}
}

// dropLinksLocked removes the links in a directory that is about to go.
func (nm *Names) dropLinksLocked(dir index.ID, g *state.Gone) {
	for id, l := range nm.links.of {
		if l.Parent == dir {
			nm.UnlinkLinkLocked(id, g)
		}
	}
}
