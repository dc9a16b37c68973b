package control

import (
	"context"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
)

// Dialogue answers one request to a control file, which it may keep until it returns. What it
// writes to answer is read by the client; a write waits while there is much that has not been
// read, and fails when the descriptor is closed or the mount goes away, as ctx is done then.
type Dialogue func(ctx context.Context, request []byte, answer io.Writer)

// File is one file of the control directory: a text to read, or requests to write and their answers
// to read. One of Text and Open is set.
type File struct {
	Name string
	Text func() []byte // made at open, so that what a reader gets is of one moment
	// Open returns the dialogue of one descriptor. as is nil for root and the user of the daemon; else it
	// is one of Users, or in one of Groups, by number.
	Open          func(as *tiers.Viewer) Dialogue
	Users, Groups []uint32
	// Stream: the answer is a stream. Such a file may be opened for reading only, which asks the empty
	// request at once.
	Stream bool
}

// Same is an Open that gives all descriptors one dialogue.
func Same(do Dialogue) func(*tiers.Viewer) Dialogue {
	return func(*tiers.Viewer) Dialogue { return do }
}

// Mode returns the type and the permissions. Anybody may read what is only text. Of the others Admit
// decides where users are named, which a mode cannot.
func (f *File) Mode() uint32 {
	switch {
	case f.Text != nil:
		return unix.S_IFREG | 0o444
	case len(f.Users)+len(f.Groups) > 0:
		return unix.S_IFREG | 0o666
	}
	return unix.S_IFREG | 0o600
}

// Opener is who opens a file.
type Opener struct {
	UID, GID uint32
	Groups   func() []uint32 // the supplementary groups, by number; called only if they matter
}

// Admit returns as whom an opener asks. It reports false if he may not.
func (f *File) Admit(by Opener) (as *tiers.Viewer, may bool) {
	if by.UID == 0 || by.UID == uint32(os.Geteuid()) {
		return nil, true
	}
	if len(f.Users)+len(f.Groups) == 0 {
		return nil, false
	}
	as = &tiers.Viewer{UID: by.UID, GIDs: append(by.Groups(), by.GID)}
	member := func(gid uint32) bool { return slices.Contains(f.Groups, gid) }
	return as, slices.Contains(f.Users, by.UID) || slices.ContainsFunc(as.GIDs, member)
}

// Dir is the control files of one mount. Its methods may be called in parallel.
type Dir struct {
	Files []File // constant

	ctx    context.Context
	wg     sync.WaitGroup // of requests that run
	memory requestMemory  // of the requests of all descriptors
}

// New returns the directory of files. All that runs in it ends with ctx.
func New(ctx context.Context, files []File) *Dir { return &Dir{Files: files, ctx: ctx} }

// Wait returns when no request runs any more, which is soon after all have been closed, or ctx has ended.
func (d *Dir) Wait() { d.wg.Wait() }

// Open opens a file with the flags of open(2). It fails with EACCES if the opener may not, and with EINVAL if
// he would ask without an answer, or the other way round.
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
		// The kernel has checked the mode, but a process may have the capability to
		// pass over modes without being root.
		return nil, unix.EACCES
	case how != unix.O_RDWR && !(f.Stream && how == unix.O_RDONLY):
		return nil, unix.EINVAL
	}
	h.request = newConversation(d.ctx, &d.wg, &d.memory, f.Open(as))
	if how == unix.O_RDONLY {
		h.request.ask()
	}
	return h, nil
}

// Handle is one open control file. The zero value is an empty text.
type Handle struct {
	text    []byte
	request *conversation // of a file of requests; else nil
	// nonblock: it was opened so. That the flag was set later does not count: Go's runtime does
	// so with every file that can be polled, and waits for a signal that FUSE files do not give.
	nonblock bool
}

// Dialogue reports whether the handle has no positions: its offsets mean nothing.
func (h *Handle) Dialogue() bool { return h.request != nil }

// Read copies what is to be read next into p: of a text, what is there from off on; of a dialogue, some of the
// answer, for which it waits. 0 bytes are the end. It fails with EINTR when cancel is closed first, with EAGAIN
// if it would have to wait and may not, and with EIO when the mount goes away.
func (h *Handle) Read(cancel <-chan struct{}, p []byte, off int64) (int, error) {
	if h.request != nil {
		return h.request.read(cancel, h.nonblock, p)
	}
	if off >= int64(len(h.text)) {
		return 0, nil
	}
	return copy(p, h.text[off:]), nil
}

// Write adds to the request, or begins the next one, and never waits. It fails with EBUSY while one runs, and
// with EBADF if there is nothing to ask.
func (h *Handle) Write(p []byte) (int, error) {
	if h.request == nil {
		return 0, unix.EBADF
	}
	return h.request.write(p)
}

// Close ends what the handle may have begun.
func (h *Handle) Close() {
	if h.request != nil {
		h.request.close()
	}
}
