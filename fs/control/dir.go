package control

import (
	"context"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/state"
)

// Dialogue answers one request to a control file. It may keep request until it returns. The
// client reads what Dialogue writes to answer. A write waits while much of the answer is
// unread. It fails when the descriptor is closed or the mount goes away; ctx is then done.
type Dialogue func(ctx context.Context, request []byte, answer io.Writer)

// File is one file of the control directory: a text to read, or a dialogue of requests and
// answers. One of Text and Open is set.
type File struct {
	Name string
	Text func() []byte // called at open, so that a reader sees one moment
	// Open returns the dialogue of one descriptor. as is nil for root and the user of the
	// daemon. Else it is one of Users, or the member of one of Groups, by number.
	Open          func(as *event.Viewer) Dialogue
	Users, Groups []uint32
	// Stream marks an answer that is a stream. Such a file may be opened for reading only,
	// which runs the empty request at once.
	Stream bool
}

// Same returns an Open that gives all descriptors one dialogue.
func Same(do Dialogue) func(*event.Viewer) Dialogue {
	return func(*event.Viewer) Dialogue { return do }
}

// Mode returns the type and the permissions. Anybody may read a text. For a dialogue with named
// users, which a mode cannot express, Admit decides.
func (f *File) Mode() uint32 {
	switch {
	case f.Text != nil:
		return unix.S_IFREG | 0o444
	case len(f.Users)+len(f.Groups) > 0:
		return unix.S_IFREG | 0o666
	}
	return unix.S_IFREG | 0o600
}

// Opener is the process that opens a file.
type Opener struct {
	UID, GID uint32
	Groups   func() []uint32 // the supplementary groups, by number; called only if they matter

	User state.Process // the process whose uses of blocks the requests are

	// Process returns the process and the name of its program, as far as it can be seen. Nil: it cannot.
	Process func() (pid uint32, command string)
}

// Admit returns the viewer of an opener. It reports false if the opener may not open the file.
func (f *File) Admit(by Opener) (as *event.Viewer, may bool) {
	if by.UID == 0 || by.UID == uint32(os.Geteuid()) {
		return nil, true
	}
	if len(f.Users)+len(f.Groups) == 0 {
		return nil, false
	}
	as = &event.Viewer{UID: by.UID, GIDs: append(by.Groups(), by.GID)}
	member := func(gid uint32) bool { return slices.Contains(f.Groups, gid) }
	return as, slices.Contains(f.Users, by.UID) || slices.ContainsFunc(as.GIDs, member)
}

// Dir holds the control files of one mount. Its methods may be called in parallel.
type Dir struct {
	Files []File // constant

	ctx    context.Context
	wg     sync.WaitGroup // counts running requests
	memory requestMemory  // shared by the requests of all descriptors
}

// New returns the directory of files. Every request in it ends with ctx.
func New(ctx context.Context, files []File) *Dir { return &Dir{Files: files, ctx: ctx} }

// Wait returns when no request runs: soon after all handles are closed, or ctx has ended.
func (d *Dir) Wait() { d.wg.Wait() }

// Open opens a file with the flags of open(2). It fails with EACCES if the opener may not open it, and with
// EINVAL if the flags allow a request without an answer or an answer without a request.
func (d *Dir) Open(f *File, flags uint32, by Opener) (*Handle, error) {
	how := flags & unix.O_ACCMODE
	h := &Handle{nonblock: flags&unix.O_NONBLOCK != 0}
	if f.Text != nil {
		if how != unix.O_RDONLY {
			return nil, unix.EACCES
		}
		h.text = f.Text()
		return h, nil
	}
	as, may := f.Admit(by)
	switch {
	case !may:
		// The kernel has checked the mode, but the capability to ignore modes does not make a process root.
		return nil, unix.EACCES
	case how != unix.O_RDWR && !(f.Stream && how == unix.O_RDONLY):
		return nil, unix.EINVAL
	}
	h.request = newConversation(tiers.WithUser(context.WithValue(d.ctx, openerKey{}, by), by.User), &d.wg, &d.memory, f.Open(as))
	if how == unix.O_RDONLY {
		h.request.ask()
	}
	return h, nil
}

// Handle is one open control file. The zero value is an empty text.
type Handle struct {
	text    []byte
	request *conversation // nil for a text
	// nonblock is O_NONBLOCK at the open. Setting the flag later does not count: Go's runtime sets it on every
	// file that can be polled, and then waits for a signal that FUSE files do not give.
	nonblock bool
}

// Dialogue reports whether the handle ignores offsets.
func (h *Handle) Dialogue() bool { return h.request != nil }

// Read copies a text from off on, or the next part of an answer, for which it waits. Zero bytes
// are the end. It fails with EINTR when cancel is closed first, with EAGAIN if it would have to
// wait and may not, and with EIO when the mount goes away.
func (h *Handle) Read(cancel <-chan struct{}, p []byte, off int64) (int, error) {
	if h.request != nil {
		return h.request.read(cancel, h.nonblock, p)
	}
	if off >= int64(len(h.text)) {
		return 0, nil
	}
	return copy(p, h.text[off:]), nil
}

// Write adds to the request, or begins the next one. It never waits. It fails with EBUSY while
// a request runs, and with EBADF for a text.
func (h *Handle) Write(p []byte) (int, error) {
	if h.request == nil {
		return 0, unix.EBADF
	}
	return h.request.write(p)
}

// Close ends the requests of the handle.
func (h *Handle) Close() {
	if h.request != nil {
		h.request.close()
	}
}
