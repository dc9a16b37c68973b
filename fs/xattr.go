package fs

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"

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

var xattrNames = []string{xattrTier, xattrChecksum, xattrPinned, xattrTTL, xattrState, xattrWhy}

// GetXAttr implements GETXATTR.
func (f *files) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	defer f.begin(device.OpGetxattr).end()
	if isControl(in.NodeId) || !strings.HasPrefix(attr, "user.kvfs.") {
		return 0, fuse.ENOATTR
	}
	value, st := f.xattr(index.ID(in.NodeId), attr)
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

// ListXAttr implements LISTXATTR.
func (f *files) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	defer f.begin(device.OpListxattr).end()
	if isControl(in.NodeId) || f.engine.Attr(index.ID(in.NodeId)).Mode&syscall.S_IFMT != syscall.S_IFREG {
		return 0, fuse.OK
	}
	list := strings.Join(xattrNames, "\x00") + "\x00"
	if len(dest) < len(list) {
		return uint32(len(list)), fuse.ERANGE
	}
	return uint32(copy(dest, list)), fuse.OK
}

// SetXAttr implements SETXATTR for .pinned and .ttl.
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
	return fuse.Status(syscall.EOPNOTSUPP)
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

// RemoveXAttr implements REMOVEXATTR for .pinned and .ttl. It restores the default.
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
	return fuse.ENOATTR
}
