package fs

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// The extended attributes of files.
const (
	xattrTier     = "user.kvfs.tier"     // names of the tiers that hold the block, separated by commas; read only
	xattrChecksum = "user.kvfs.checksum" // "crc64nvme:<16 hex digits>", computed if nobody has yet; read only
	xattrPinned   = "user.kvfs.pinned"   // "1" or "0"
	xattrTTL      = "user.kvfs.ttl"      // time left to live: "90s", "1h30m", or whole seconds; "0": for ever
	xattrState    = "user.kvfs.state"    // "hit", or "pending" while it is being written or promoted; read only
	xattrWhy      = "user.kvfs.why"      // "<verdict>: <why it is where it is>"; read only. kvfs why tells it of absent names.
)

// The attributes of processes are those with the prefix xattrUser, but for xattrOurs.
const (
	xattrUser = "user."
	xattrOurs = "user.kvfs."
)

var xattrNames = []string{xattrTier, xattrChecksum, xattrPinned, xattrTTL, xattrState, xattrWhy}

// GetXAttr implements GETXATTR.
func (f *files) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	defer f.begin(device.OpGetxattr).end()
	if isControl(in.NodeId) || !strings.HasPrefix(attr, xattrUser) {
		return 0, fuse.ENOATTR
	}
	get := f.userAttr
	if strings.HasPrefix(attr, xattrOurs) {
		get = f.xattr
	}
	value, st := get(index.ID(in.NodeId), attr)
	if st != fuse.OK {
		return 0, st
	}
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

func (f *files) xattr(id index.ID, attr string) (string, fuse.Status) {
	a := f.engine.Attr(id)
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return "", fuse.ENOATTR
	}
	switch attr {
	case xattrTier:
		return strings.Join(f.engine.TierNames(id), ","), fuse.OK
	case xattrState:
		return f.engine.PresenceOf(id).String(), fuse.OK
	case xattrWhy:
		v := f.engine.WhyOf(id)
		return string(v.Kind) + ": " + v.Text, fuse.OK
	case xattrChecksum:
		sum, err := f.engine.Checksum(id)
		if err != nil {
			return "", status(err)
		}
		return sum.String(), fuse.OK
	case xattrPinned:
		if f.engine.Pinned(id) {
			return "1", fuse.OK
		}
		return "0", fuse.OK
	case xattrTTL:
		ttl := f.engine.TTL(id)
		if ttl == 0 {
			return "0", fuse.OK
		}
		return ttl.Round(time.Millisecond).String(), fuse.OK
	}
	return "", fuse.ENOATTR
}

// userAttr returns an attribute of processes.
func (f *files) userAttr(id index.ID, attr string) (string, fuse.Status) {
	user, err := f.engine.UserAttrs(id)
	if err != nil {
		return "", status(err)
	}
	value, ok := user.Get(attr)
	if !ok {
		return "", fuse.ENOATTR
	}
	return value, fuse.OK
}

// setUserAttr changes the attributes of processes of a file.
func (f *files) setUserAttr(id index.ID, change func(block.UserAttrs) (block.UserAttrs, error)) fuse.Status {
	if f.engine.Attr(id).Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	return status(f.engine.SetUserAttrs(id, change))
}

// ListXAttr implements LISTXATTR. It brings nothing to memory, so of a block elsewhere it may not know all names.
func (f *files) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	defer f.begin(device.OpListxattr).end()
	if isControl(in.NodeId) || f.engine.Attr(index.ID(in.NodeId)).Mode&syscall.S_IFMT != syscall.S_IFREG {
		return 0, fuse.OK
	}
	list := strings.Join(xattrNames, "\x00") + "\x00" + f.engine.KnownUserAttrs(index.ID(in.NodeId)).Names()
	if len(dest) < len(list) {
		return uint32(len(list)), fuse.ERANGE
	}
	return uint32(copy(dest, list)), fuse.OK
}

// SetXAttr implements SETXATTR for .pinned, .ttl and the attributes of processes.
func (f *files) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	defer f.begin(device.OpSetxattr).end()
	if isControl(in.NodeId) {
		return fuse.EPERM
	}
	value := strings.TrimSpace(string(data))
	switch attr {
	case xattrPinned:
		switch value {
		case "1", "true":
			return f.pin(&in.InHeader, true)
		case "0", "false":
			return f.pin(&in.InHeader, false)
		}
		return fuse.EINVAL
	case xattrTTL:
		ttl, ok := parseTTL(value)
		if !ok {
			return fuse.EINVAL
		}
		return f.setTTL(&in.InHeader, ttl)
	case xattrTier, xattrChecksum, xattrState, xattrWhy:
		return fuse.EPERM
	}
	if !strings.HasPrefix(attr, xattrUser) || strings.HasPrefix(attr, xattrOurs) {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	mode := block.SetAny
	switch in.Flags {
	case unix.XATTR_CREATE:
		mode = block.SetCreate
	case unix.XATTR_REPLACE:
		mode = block.SetReplace
	}
	return f.setUserAttr(index.ID(in.NodeId), func(u block.UserAttrs) (block.UserAttrs, error) {
		return u.Set(attr, string(data), mode)
	})
}

// pin pins a file, or unpins it. A used-up quota is EDQUOT, so that it is not taken for full memory.
func (f *files) pin(in *fuse.InHeader, pinned bool) fuse.Status {
	err := f.engine.SetPinned(index.ID(in.NodeId), pinned)
	st := status(err)
	if errors.Is(err, block.ErrQuota) {
		st = fuse.Status(syscall.EDQUOT)
	}
	f.access.changed(in, "pin", zap.Bool("pinned", pinned), st)
	return st
}

// setTTL sets the time that a file has left to live.
func (f *files) setTTL(in *fuse.InHeader, ttl time.Duration) fuse.Status {
	st := status(f.engine.SetTTL(index.ID(in.NodeId), ttl))
	f.access.changed(in, "ttl", zap.Duration("ttl", ttl), st)
	return st
}

// parseTTL reads a Go duration or whole seconds, not negative.
func parseTTL(s string) (time.Duration, bool) {
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return time.Duration(n) * time.Second, true
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= 0
}

// RemoveXAttr implements REMOVEXATTR for .pinned and .ttl, of which it restores the default, and the attributes of processes.
func (f *files) RemoveXAttr(_ <-chan struct{}, in *fuse.InHeader, attr string) fuse.Status {
	defer f.begin(device.OpRemovexattr).end()
	if isControl(in.NodeId) {
		return fuse.EPERM
	}
	switch attr {
	case xattrPinned:
		return f.pin(in, false)
	case xattrTTL:
		return f.setTTL(in, 0)
	}
	if !strings.HasPrefix(attr, xattrUser) || strings.HasPrefix(attr, xattrOurs) {
		return fuse.ENOATTR
	}
	return f.setUserAttr(index.ID(in.NodeId), func(u block.UserAttrs) (block.UserAttrs, error) { return u.Remove(attr) })
}
