package fs

import (
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
)

// The control directory has inode numbers that no entry of the index can have.
const (
	controlBase uint64 = 1 << 40
	controlDir         = controlBase
)

func isControl(nodeid uint64) bool { return nodeid >= controlBase }

// ControlFile is one file of the control directory: a text to read, or requests
// to write and their answers to read. One of Text, Do, Ask and Follow is set.
type ControlFile struct {
	Name string
	Text func() []byte // made at open, so that what a reader gets is of one moment
	Do   Dialogue      // for root and the user of the daemon
	// Ask is called at open and returns the dialogue of that descriptor. as is nil for root and the
	// user of the daemon; else it is one of Users, or in one of Groups, by number.
	Ask           func(as *tiers.Viewer) Dialogue
	Users, Groups []uint32
	// Follow is Ask for an answer that is a stream. Such a file may be opened for reading
	// only, which asks the empty request at once.
	Follow func(as *tiers.Viewer) Dialogue
}

// mode returns the type and the permissions. Anybody may read what is only text. Of the others open
// decides where users are named, which a mode cannot.
func (f *ControlFile) mode() uint32 {
	switch {
	case f.Text != nil:
		return syscall.S_IFREG | 0o444
	case len(f.Users)+len(f.Groups) > 0:
		return syscall.S_IFREG | 0o666
	}
	return syscall.S_IFREG | 0o600
}

// viewer returns as whom the caller of an open asks. It reports false if he may not.
func (f *ControlFile) viewer(in *fuse.InHeader, procs processes) (as *tiers.Viewer, may bool) {
	if in.Uid == 0 || in.Uid == uint32(os.Geteuid()) {
		return nil, true
	}
	if len(f.Users)+len(f.Groups) == 0 {
		return nil, false
	}
	as = &tiers.Viewer{UID: in.Uid, GIDs: append(procs.groups(in.Pid), in.Gid)}
	member := func(gid uint32) bool { return slices.Contains(f.Groups, gid) }
	return as, slices.Contains(f.Users, in.Uid) || slices.ContainsFunc(as.GIDs, member)
}

// controlFiles is the directory .kvfs: it resolves, but is not listed.
type controlFiles struct {
	s     *Server
	files []ControlFile // inode controlBase + 1 + position; constant after init
	born  time.Time

	memory requestMemory // of the requests of all descriptors
}

// controlHandle is one open control file, or the control directory itself, of
// which both fields are empty.
type controlHandle struct {
	text    []byte
	request *controlRequest // of a file of requests; else nil
	// nonblock: it was opened so. That the flag was set later does not count: Go's runtime does
	// so with every file that can be polled, and waits for a signal that FUSE files do not give.
	nonblock bool
}

func (c *controlFiles) init(s *Server) {
	c.s, c.born = s, time.Now()
	engine := s.opts.evictor
	if engine == nil {
		engine = s.engine
	}
	c.files = append([]ControlFile{
		{Name: "status", Text: s.opts.Status},
		{Name: "evict", Do: controlJSON(evictWith(engine, s.notices.flush))},
	}, s.opts.Control...)
}

func (c *controlFiles) lookup(parent uint64, name string, out *fuse.EntryOut) fuse.Status {
	ino := uint64(0)
	if parent == fuse.FUSE_ROOT_ID {
		ino = controlDir
	} else if parent == controlDir && name == probeName {
		ino = probeIno
	} else if parent == controlDir {
		for i, f := range c.files {
			if f.Name == name {
				ino = controlBase + 1 + uint64(i)
			}
		}
	}
	if ino == 0 {
		return fuse.ENOENT
	}
	out.NodeId, out.Generation = c.s.node(ino), 1
	c.fill(ino, &out.Attr)
	out.SetEntryTimeout(c.s.opts.EntryTimeout)
	out.SetAttrTimeout(c.s.opts.AttrTimeout)
	return fuse.OK
}

// file returns the file with an inode number; nil for the directory and for what
// does not exist.
func (c *controlFiles) file(ino uint64) *ControlFile {
	if ino == probeIno {
		return probeFile
	}
	if n := ino - controlBase; n >= 1 && n <= uint64(len(c.files)) {
		return &c.files[n-1]
	}
	return nil
}

// fill describes an inode. Control files belong to the owner of the daemon.
func (c *controlFiles) fill(ino uint64, out *fuse.Attr) {
	out.Ino, out.Nlink, out.Blksize = c.s.node(ino), 1, 4096
	out.Uid, out.Gid = uint32(os.Geteuid()), uint32(os.Getegid())
	if f := c.file(ino); f != nil {
		out.Mode = f.mode()
	} else {
		out.Mode, out.Nlink = syscall.S_IFDIR|0o555, 2
	}
	out.Mtime, out.Mtimensec = splitTime(c.born.UnixNano())
	out.Atime, out.Atimensec = out.Mtime, out.Mtimensec
	out.Ctime, out.Ctimensec = out.Mtime, out.Mtimensec
}

func (c *controlFiles) getattr(ino uint64, out *fuse.AttrOut) fuse.Status {
	c.fill(ino, &out.Attr)
	out.SetTimeout(c.s.opts.AttrTimeout)
	return fuse.OK
}

func (c *controlFiles) setattr(in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID|fuse.FATTR_SIZE) != 0 {
		return fuse.EPERM
	}
	return c.getattr(in.NodeId, out)
}

func (c *controlFiles) open(in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f := c.file(in.NodeId)
	if f == nil {
		return fuse.EINVAL
	}
	how := in.Flags & syscall.O_ACCMODE
	as, may := f.viewer(&in.InHeader, c.s.procs)
	h := &controlHandle{nonblock: in.Flags&syscall.O_NONBLOCK != 0}
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	switch {
	case (f.Text != nil || f == probeFile) && how != syscall.O_RDONLY:
		return fuse.EACCES
	case f.Text != nil:
		h.text = f.Text()
	case !may:
		// The kernel has checked the mode, but a process may have the capability to
		// pass over modes without being root.
		return fuse.EACCES
	case f == probeFile:
		return c.s.openProbe(out)
	case how != syscall.O_RDWR && (f.Follow == nil || how != syscall.O_RDONLY):
		return fuse.EINVAL // a request without an answer, or the other way round
	default:
		do := f.Do
		if f.Ask != nil {
			do = f.Ask(as)
		} else if f.Follow != nil {
			do = f.Follow(as)
		}
		h.request = newControlRequest(c.s.ctx, &c.s.wg, &c.memory, do)
		if how == syscall.O_RDONLY {
			h.request.ask()
		}
		out.OpenFlags |= fuse.FOPEN_NONSEEKABLE | fuse.FOPEN_STREAM // a dialogue has no positions
	}
	out.Fh = c.s.handles.add(&handle{control: h}, fhControl)
	return fuse.OK
}

// read returns what is to be read next. cancel is closed when the reader is
// interrupted.
func (h *controlHandle) read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if h.request != nil {
		n, st := h.request.read(cancel, h.nonblock, buf)
		if st != fuse.OK {
			return nil, st
		}
		return fuse.ReadResultData(buf[:n]), fuse.OK
	}
	if in.Offset >= uint64(len(h.text)) {
		return fuse.ReadResultData(nil), fuse.OK
	}
	return fuse.ReadResultData(buf[:copy(buf, h.text[in.Offset:])]), fuse.OK
}

func (h *controlHandle) write(_ *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if h.request == nil {
		return 0, fuse.EBADF
	}
	return h.request.write(data)
}

// close ends what the handle may have begun.
func (h *controlHandle) close() {
	if h.request != nil {
		h.request.close()
	}
}

func (c *controlFiles) opendir(in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.NodeId != controlDir {
		return fuse.ENOTDIR
	}
	out.Fh = c.s.handles.add(&handle{dir: &dirHandle{}, control: &controlHandle{}}, fhControl)
	return fuse.OK
}

func (c *controlFiles) readdir(in *fuse.ReadIn, _ *fuse.DirEntryList, add func(fuse.DirEntry, index.ID) bool) fuse.Status {
	list := []fuse.DirEntry{
		{Name: ".", Ino: c.s.node(controlDir), Mode: syscall.S_IFDIR},
		{Name: "..", Ino: fuse.FUSE_ROOT_ID, Mode: syscall.S_IFDIR},
	}
	for i, f := range c.files {
		list = append(list, fuse.DirEntry{Name: f.Name, Ino: c.s.node(controlBase + 1 + uint64(i)), Mode: syscall.S_IFREG})
	}
	for pos := in.Offset; pos < uint64(len(list)); pos++ {
		e := list[pos]
		e.Off = pos + 1
		if !add(e, 0) {
			break
		}
	}
	return fuse.OK
}
