package fs

import (
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// dirHandle is one open directory. Positions in it are the cookies of the
// engine, which stay valid while names come and go; the handle only remembers
// what was read ahead. Positions 1 and 2 follow "." and "..".
type dirHandle struct {
	id  index.ID
	tid uint32

	mu    sync.Mutex // the kernel may read one open directory from several threads
	ahead []tiers.Dirent
	next  int      // of ahead
	pos   uint64   // position before ahead[next]
	last  index.ID // entry at pos, to resume from
}

// listedTimeout is how long the kernel keeps the name of a file that it saw in a
// listing: enough for the stat that follows, short because listing a directory
// must not forbid the eviction of all that is in it, as look-ups do.
const listedTimeout = time.Second

// dots is how many positions "." and ".." take.
const dots = 2

// OpenDir implements OPENDIR.
func (s *Server) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	s.ops.add(opOpendir)
	if isControl(in.NodeId) {
		return s.control.opendir(in, out)
	}
	d := &dirHandle{id: index.ID(in.NodeId), tid: in.Pid}
	out.Fh = s.handles.add(&handle{dir: d}, fhHandle)
	return fuse.OK
}

// ReleaseDir implements RELEASEDIR.
func (s *Server) ReleaseDir(in *fuse.ReleaseIn) {
	s.ops.add(opReleasedir)
	s.handles.take(in.Fh)
}

// ReadDir implements READDIR: names and types, without a look-up each.
func (s *Server) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	s.ops.add(opReaddir)
	return s.readDir(in, out, func(e fuse.DirEntry, _ index.ID) bool { return out.AddDirEntry(e) })
}

// ReadDirPlus implements READDIRPLUS: names with attributes, which count as
// look-ups for the kernel's references but grant no lease.
func (s *Server) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	s.ops.add(opReaddirplus)
	return s.readDir(in, out, func(e fuse.DirEntry, id index.ID) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		if id == 0 || e.Name == "." || e.Name == ".." {
			return true
		}
		a, ok := s.engine.RefNamed(index.ID(in.NodeId), id, e.Name)
		if !ok {
			entry.NodeId = 0 // went meanwhile: the kernel looks it up itself
			return true
		}
		s.fillEntry(entry, &a)
		if a.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			entry.SetEntryTimeout(min(s.opts.EntryTimeout, listedTimeout))
		}
		return true
	})
}

// readDir sends entries from in.Offset on until add has no room.
func (s *Server) readDir(in *fuse.ReadIn, out *fuse.DirEntryList, add func(fuse.DirEntry, index.ID) bool) fuse.Status {
	h := s.handles.get(in.Fh)
	if h == nil || h.dir == nil {
		return fuse.EBADF
	}
	if h.control != nil {
		return s.control.readdir(in, out, add)
	}
	d := h.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	pos := in.Offset
	for ; pos < dots; pos++ {
		e := fuse.DirEntry{Mode: syscall.S_IFDIR, Name: ".", Ino: uint64(d.id), Off: pos + 1}
		if pos == 1 {
			e.Name, e.Ino = "..", uint64(s.engine.Parent(d.id))
		}
		if !add(e, d.id) {
			return fuse.OK
		}
	}
	if pos-dots != d.pos || pos == dots {
		d.pos, d.last, d.next, d.ahead = pos-dots, 0, 0, d.ahead[:0]
	}
	for {
		if d.next == len(d.ahead) {
			d.ahead = s.engine.ReadDir(d.id, d.pos, d.last, d.tid, d.ahead[:0])
			d.next = 0
			if len(d.ahead) == 0 {
				return fuse.OK
			}
		}
		e := &d.ahead[d.next]
		if !add(fuse.DirEntry{Mode: e.Mode & syscall.S_IFMT, Name: e.Name, Ino: uint64(e.ID), Off: e.Cookie + dots}, e.ID) {
			return fuse.OK
		}
		d.pos, d.last = e.Cookie, e.ID
		d.next++
	}
}
