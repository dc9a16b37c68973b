package block

import (
	"strings"
)

// Limits on names, those of Linux (NAME_MAX, PATH_MAX).
const (
	MaxName = 255  // bytes in one path component
	MaxPath = 4096 // bytes in a path below the mount
)

// Reserved is the directory of control files at the root of a mount. No block
// or directory may take its name.
const Reserved = ".kvfs"

// GroupID names a KV-cache group. The empty group holds the files directly
// below the mount.
type GroupID string

// Hash is what follows the group in a block's path: opaque bytes. It is one component in the native
// layout, and several if an engine brings its own sub-tree.
type Hash string

// Key names a block. Keys are comparable.
type Key struct {
	Group GroupID
	Hash  Hash
}

// ParseKey splits a path below the mount into a key. The first component is the
// group, the rest the hash; a path of one component is a hash in the empty
// group.
//
// It fails with ErrInvalid if path is empty, absolute, ends in a slash, has an
// empty component, "." or "..", or a NUL byte, and with ErrNameTooLong if a component
// exceeds MaxName or the path MaxPath. Paths below Reserved fail with
// ErrReserved.
func ParseKey(path string) (Key, error) {
	if err := CheckPath(path); err != nil {
		return Key{}, err
	}
	group, hash, ok := strings.Cut(path, "/")
	if !ok {
		return Key{Hash: Hash(path)}, nil
	}
	return Key{Group: GroupID(group), Hash: Hash(hash)}, nil
}

// CheckPath reports why path cannot name a block or directory below the mount;
// the errors are those of ParseKey.
func CheckPath(path string) error {
	if len(path) > MaxPath {
		return &Error{Op: "parse", Key: Key{Hash: Hash(path[:64])}, Err: ErrNameTooLong}
	}
	rest := path
	for first := true; ; first = false {
		name, tail, more := strings.Cut(rest, "/")
		if err := CheckName(name); err != nil {
			return err
		}
		if first && name == Reserved {
			return &Error{Op: "parse", Key: Key{Hash: Hash(path)}, Err: ErrReserved}
		}
		if !more {
			return nil
		}
		rest = tail
	}
}

// CheckName reports why name cannot be one component of a path: ErrInvalid if it
// is empty, "." or "..", or holds '/' or NUL, ErrNameTooLong beyond MaxName.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == "..", strings.IndexByte(name, 0) >= 0, strings.IndexByte(name, '/') >= 0:
		return &Error{Op: "parse", Key: Key{Hash: Hash(name)}, Err: ErrInvalid}
	case len(name) > MaxName:
		return &Error{Op: "parse", Key: Key{Hash: Hash(name[:64])}, Err: ErrNameTooLong}
	}
	return nil
}

// Path returns the key's path below the mount, the inverse of ParseKey.
func (k Key) Path() string {
	if k.Group == "" {
		return string(k.Hash)
	}
	return string(k.Group) + "/" + string(k.Hash)
}

// String returns the path, for logs and errors.
func (k Key) String() string { return k.Path() }

// GroupOf returns the group of a path below the mount, without allocating.
func GroupOf(path string) GroupID {
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return GroupID(path[:i])
	}
	return ""
}

// MaxSeq is the highest version number that is believed: the year 2116. A number above it is damage, after which no
// higher one might be left. Nothing that a clock says is above it, right or wrong. If nodes did not believe what a wrong
// clock has numbered, they would ignore what its node writes and removes, and go on to do so when it is mended.
const MaxSeq = 1 << 62
