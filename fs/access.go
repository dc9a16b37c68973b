package fs

import (
	"cmp"
	"errors"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/fs/accesslog"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// access makes the lines of .kvfs/accesslog from what the connection shows.
type access struct {
	f     *files
	watch device.Watch
	log   *accesslog.Log
}

func (a *access) init(f *files) {
	a.f, a.log = f, accesslog.New(&a.watch.Watchers)
	a.watch.Asked, a.watch.Answered = a.asked, a.answered
}

// errNotWatched is why a mount has no access log.
var errNotWatched = errors.New("this mount has no access log: it was made without root, or with memory.passthrough: off")

// file returns the control file.
func (a *access) file() control.File {
	reads := func() (string, error) {
		if a.f.splice {
			return "", errNotWatched
		}
		return a.f.readPath(), nil
	}
	return a.log.File(reads, a.f.opts.Users, a.f.opts.Groups)
}

// asked finds out what the request is about.
func (a *access) asked(r *device.Access) {
	node, engine := index.ID(r.Node), a.f.engine
	r.Path = path.Join(engine.PathOf(node), r.Name)
	switch {
	case r.NewName != "":
		r.NewPath = path.Join(engine.PathOf(index.ID(r.NewNode)), r.NewName)
	case r.Op == device.OpOpen, r.Op == device.OpFlush, r.Op == device.OpRelease, r.Op == device.OpGetattr:
		r.Size = engine.Attr(node).Size
	}
}

// answered logs the request.
func (a *access) answered(r *device.Access) {
	if r.Path == block.Reserved {
		return
	}
	if r.NewName != "" && r.Status == fuse.OK {
		h, _ := a.f.engine.Holding(r.NewPath)
		r.Size = h.Size
	}
	line := accesslog.Line{
		Time: r.Came, UID: r.UID, GID: r.GID, PID: cmp.Or(a.f.procs.of(r.TID), r.TID), Op: r.Op.String(),
		Path: r.Path, To: r.NewPath, Size: r.Size, Offset: r.Offset, Result: "OK", Took: r.Took,
	}
	if r.Status != fuse.OK {
		line.Result = unix.ErrnoName(syscall.Errno(r.Status))
	}
	a.log.Add(&line)
}
