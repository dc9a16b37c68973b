package format

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

// The names of files; SlabName has those of slabs.
const (
	SuperName    = "kvfs-disk"
	IndexName    = "kvfs-index"
	IndexTmpName = "kvfs-index.tmp" // an index that is being written
	SlabTmpName  = "kvfs-slab.tmp"  // a slab that is being made
	PlaceName    = "kvfs-place"     // on which file system the directory was
	slabPrefix   = "slab-"

	MaxSlabNumber = 99999999 // eight digits
)

// SlabName returns the name of a slab's file.
func SlabName(number uint32) string { return fmt.Sprintf("%s%08d", slabPrefix, number) }

// ParseSlabName is the inverse of SlabName. ok is false for another name.
func ParseSlabName(name string) (number uint32, ok bool) {
	if len(name) != len(slabPrefix)+8 || name[:len(slabPrefix)] != slabPrefix {
		return 0, false
	}
	for _, c := range []byte(name[len(slabPrefix):]) {
		if c < '0' || c > '9' {
			return 0, false
		}
		number = number*10 + uint32(c-'0')
	}
	return number, true
}

// Ours reports whether this package gives such a name, or the file system makes it, as lost+found.
func Ours(name string) bool {
	rest, ok := strings.CutPrefix(name, slabPrefix)
	if ok && len(rest) >= 8 {
		_, ok = ParseSlabName(name[:len(slabPrefix)+8])
		return ok && (len(rest) == 8 || rest[8] == '.')
	}
	return strings.HasPrefix(name, "kvfs-") || strings.HasPrefix(name, ".kvfs-") || name == "lost+found"
}

// AppendPath appends the path of key to b.
func AppendPath(b []byte, key block.Key) []byte {
	if key.Group != "" {
		b = append(append(b, key.Group...), '/')
	}
	return append(b, key.Hash...)
}

// ParsePath returns the key of a path that Check has accepted.
func ParsePath(path []byte) block.Key {
	group, hash, ok := bytes.Cut(path, []byte{'/'})
	if !ok {
		return block.Key{Hash: block.Hash(path)}
	}
	return block.Key{Group: block.GroupID(group), Hash: block.Hash(hash)}
}
