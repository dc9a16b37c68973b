package fs

import (
	"errors"
	"path"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/accesslog"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// access makes, of what the connection shows, the lines of .kvfs/accesslog, and those of the audit log.
type access struct {
	f     *files
	watch device.Watch
	log   *accesslog.Log
}

// audited are the operations by which a name ends.
var audited = device.OpUnlink.Bit() | device.OpRmdir.Bit() | device.OpRename.Bit()

func (a *access) init(f *files) {
	always := uint32(0)
	if f.opts.AuditChanges {
		always = audited
	}
	a.f, a.watch.Asked, a.watch.Answered = f, a.asked, a.answered
	a.watch.Ops.Store(always)
	a.log = accesslog.New(func(read bool) {
		if read {
			a.watch.Ops.Store(device.AllOps)
		} else {
			a.watch.Ops.Store(always)
		}
	})
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

// asking is what is known of a request before it is answered.
type asking struct {
	path, to string // below the mount
	pid      uint32
	command  string // of audited requests
	replaces bool   // a rename: there is a file or directory at to
}

// asked finds out what the request is about, and who asks.
func (a *access) asked(r *device.Access) {
	node, engine := index.ID(r.Node), a.f.engine
	k := &asking{path: path.Join(engine.PathOf(node), r.Name)}
	r.Known = k
	if r.NewName != "" {
		k.to = path.Join(engine.PathOf(index.ID(r.NewNode)), r.NewName)
	}
	if a.f.opts.AuditChanges && r.Op.Bit()&audited != 0 {
		_, k.replaces = engine.Holding(k.to)
		k.pid, k.command = a.f.program(r.TID)
		return
	}
	if k.pid = a.f.procs.of(r.TID); k.pid == 0 {
		k.pid = r.TID
	}
	switch r.Op {
	case device.OpOpen, device.OpFlush, device.OpRelease, device.OpGetattr:
		r.Size = engine.Attr(node).Size
	}
}

// answered logs the request.
func (a *access) answered(r *device.Access) {
	k := r.Known.(*asking)
	if k.path == block.Reserved {
		return
	}
	line := accesslog.Line{
		Time: r.Came, UID: r.UID, GID: r.GID, PID: k.pid, Op: r.Op.String(), Path: k.path, To: k.to,
		Size: r.Size, Offset: r.Offset, Writes: r.Writes, Result: "OK", Took: r.Took,
	}
	if r.Status != fuse.OK {
		line.Result = unix.ErrnoName(syscall.Errno(r.Status))
	} else if k.to != "" {
		h, _ := a.f.engine.Holding(k.to)
		line.Size = h.Size
	}
	a.log.Add(&line)
	switch {
	case r.Status != fuse.OK, !a.f.opts.AuditChanges:
	case r.Op == device.OpUnlink, r.Op == device.OpRmdir:
		a.audit("remove", r.UID, r.GID, k.pid, k.command, k.path)
	case r.Op == device.OpRename && k.replaces:
		a.audit("replace", r.UID, r.GID, k.pid, k.command, k.to, zap.String("from", k.path))
	}
}

// changed logs what a process has done to a file.
func (a *access) changed(in *fuse.InHeader, what string, to zap.Field, st fuse.Status) {
	if st == fuse.OK && a.f.opts.AuditChanges {
		pid, command := a.f.program(in.Pid)
		a.audit(what, in.Uid, in.Gid, pid, command, a.f.engine.PathOf(index.ID(in.NodeId)), to)
	}
}

func (a *access) audit(what string, uid, gid, pid uint32, command, path string, more ...zap.Field) {
	if a.f.opts.Audit != nil {
		who := append([]zap.Field{zap.Uint32("uid", uid), zap.Uint32("gid", gid)}, control.AuditProcess(pid, command)...)
		a.f.opts.Audit.Info(what, append(append(who, zap.String("path", path)), more...)...)
	}
}
