package pack

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Flags of an entry.
const (
	flagPinned = 1 << iota
	flagExpires
	flagSame // mode, uid, gid and directories as in the entry before
	flagUser
	flagsEnd
)

// minEntryBytes is the size of the smallest entry.
const minEntryBytes = 8 + 1 + 1 + 1 + 1 + 1 + 1

// Entry is one block in the index of a pack.
type Entry struct {
	Path   string
	Offset int64 // of its frame in the pack
	Size   int64
	Sum    block.Checksum
	Attrs  driver.Attrs
}

// DataOffset returns where in the pack the data is.
func (e *Entry) DataOffset() int64 { return e.Offset + HeaderBytes + int64(len(e.Path)) }

// FrameBytes returns how much of the pack, from Offset on, is the frame of a block without its attributes of processes:
// header, path and data.
func FrameBytes(path string, size int64) int64 { return HeaderBytes + int64(len(path)) + size }

// keptDirs returns those of dirs that an entry can have.
func keptDirs(path string, dirs []driver.DirAttrs) []driver.DirAttrs {
	return dirs[:min(len(dirs), strings.Count(path, "/"))]
}

// appendEntry appends the entry of e, without its checksum. last is the entry before.
func appendEntry(b []byte, last, e *Entry) []byte {
	a, before := &e.Attrs, &last.Attrs
	flags := byte(0)
	if a.Pinned {
		flags |= flagPinned
	}
	if a.Expires != 0 {
		flags |= flagExpires
	}
	if a.User != "" {
		flags |= flagUser
	}
	same := a.Mode == before.Mode && a.UID == before.UID && a.GID == before.GID && slices.Equal(a.Dirs, before.Dirs)
	if same {
		flags |= flagSame
	}
	shared := 0
	for shared < min(len(e.Path), len(last.Path)) && e.Path[shared] == last.Path[shared] {
		shared++
	}
	b = append(le.AppendUint64(b, 0), flags)
	b = binary.AppendUvarint(b, uint64(shared))
	b = binary.AppendUvarint(b, uint64(len(e.Path)-shared))
	b = append(b, e.Path[shared:]...)
	b = binary.AppendUvarint(b, uint64(e.Size))
	b = binary.AppendVarint(b, int64(a.Seq-before.Seq))
	b = binary.AppendVarint(b, a.Mtime-before.Mtime)
	if a.Expires != 0 {
		b = binary.AppendVarint(b, a.Expires-a.Mtime)
	}
	if a.User != "" {
		b = append(binary.AppendUvarint(b, uint64(len(a.User))), a.User...)
	}
	if same {
		return b
	}
	b = appendOwner(b, driver.DirAttrs{Mode: a.Mode, UID: a.UID, GID: a.GID})
	b = binary.AppendUvarint(b, uint64(len(a.Dirs)))
	for _, d := range a.Dirs {
		b = appendOwner(b, d)
	}
	return b
}

func appendOwner(b []byte, d driver.DirAttrs) []byte {
	b = binary.AppendUvarint(b, uint64(d.Mode))
	b = binary.AppendUvarint(b, uint64(d.UID))
	return binary.AppendUvarint(b, uint64(d.GID))
}

// reader takes fields from the front of bytes. After a field that is not there all are zero.
type reader struct {
	b   []byte
	bad bool
}

// take returns the next n bytes.
func (r *reader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

// uvarint returns the next number, which is at most most.
func (r *reader) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 || v > most {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v := r.uvarint(math.MaxUint64)
	return int64(v>>1) ^ -int64(v&1)
}

func (r *reader) owner() driver.DirAttrs {
	return driver.DirAttrs{
		Mode: uint32(r.uvarint(math.MaxUint32)), UID: uint32(r.uvarint(math.MaxUint32)), GID: uint32(r.uvarint(math.MaxUint32)),
	}
}

// next reads an entry. e and path are the entry before, and become this one, without Offset and
// e.Path.
func (r *reader) next(e *Entry, path []byte) []byte {
	a := &e.Attrs
	if sum := r.take(8); sum != nil {
		e.Sum = block.Checksum{Sum: le.Uint64(sum), Valid: true}
	}
	flags := byte(0)
	if f := r.take(1); f != nil {
		flags = f[0]
	}
	path = path[:r.uvarint(uint64(len(path)))]
	path = append(path, r.take(r.uvarint(block.MaxPath))...)
	e.Size = int64(r.uvarint(MaxBlockBytes))
	a.Seq += uint64(r.varint())
	a.Mtime += r.varint()
	a.Pinned = flags&flagPinned != 0
	a.Expires = 0
	if flags&flagExpires != 0 {
		a.Expires = a.Mtime + r.varint()
	}
	a.User = ""
	if flags&flagUser != 0 {
		a.User = block.UserAttrs(r.take(r.uvarint(block.MaxUserAttrs)))
		r.bad = r.bad || a.User == "" || a.User.Check() != nil
	}
	slashes := uint64(bytes.Count(path, []byte{'/'}))
	if flags&flagSame == 0 {
		o := r.owner()
		a.Mode, a.UID, a.GID = o.Mode, o.UID, o.GID
		a.Dirs = a.Dirs[:0]
		for n := r.uvarint(slashes); n > 0 && !r.bad; n-- {
			a.Dirs = append(a.Dirs, r.owner())
		}
	}
	// CheckPath only looks at the string, and its error is not kept.
	r.bad = r.bad || flags >= flagsEnd || a.Seq == 0 || uint64(len(a.Dirs)) > slashes ||
		block.CheckPath(unsafe.String(unsafe.SliceData(path), len(path))) != nil
	return path
}

// ReadIndex calls fn for each block of the pack n in order of offsets, until fn returns false. tail
// is the pack from n.Index to its end. The entry, but not its Path, is valid until fn returns.
//
// ReadIndex fails with ErrCorrupt or a VersionError, before fn is called. It does not believe an
// index that says what cannot be: paths that block.CheckPath refuses, Seq 0, frames that are not
// exactly the pack up to the index.
func ReadIndex(n Name, tail []byte, fn func(e *Entry) bool) error {
	index, entries, err := checkTail(n, tail)
	if err != nil {
		return err
	}
	if err := eachEntry(n, index, entries, nil); err != nil {
		return err
	}
	return eachEntry(n, index, entries, fn)
}

// checkTail checks the footer, and the index as a whole.
func checkTail(n Name, tail []byte) (index []byte, entries uint32, err error) {
	const what = "pack"
	if _, err := n.TailBytes(n.Index + int64(len(tail))); err != nil {
		return nil, 0, err
	}
	index, f := tail[:len(tail)-FooterBytes], tail[len(tail)-FooterBytes:]
	if err := sealed(f, footerMagic, what, le.Uint32(f[16:])); err != nil {
		return nil, 0, err
	}
	named := Name{Time: int64(le.Uint64(f[48:])), Writer: le.Uint64(f[56:]), Index: int64(le.Uint64(f[24:]))}
	entries = le.Uint32(f[20:])
	switch {
	case named != n:
		return nil, 0, corrupt(what, "%s says that it is %s", n, named)
	case le.Uint64(f[32:]) != uint64(len(index)) || block.Sum(index).Sum != le.Uint64(f[40:]):
		return nil, 0, corrupt(what, "index of %s", n)
	case entries == 0 || entries > 1 && n.Index > MaxFrames:
		return nil, 0, corrupt(what, "%d blocks in %s", entries, n)
	}
	return index, entries, nil
}

// eachEntry reads an index and calls fn if there is one.
func eachEntry(n Name, index []byte, entries uint32, fn func(e *Entry) bool) error {
	var e Entry
	var path []byte
	r := reader{b: index}
	end := int64(0)
	for i := range entries {
		path = r.next(&e, path)
		e.Offset = end
		end += PaddedBytes(len(path), e.Size, e.Attrs.User)
		if r.bad || end > n.Index || entries > 1 && e.Size > MaxShared {
			return corrupt("pack", "entry %d of %s", i, n)
		}
		if fn == nil {
			continue
		}
		if e.Path = string(path); !fn(&e) {
			return nil
		}
	}
	if end != n.Index || len(r.b) > 0 {
		return corrupt("pack", "frames of %d bytes in %s", end, n)
	}
	return nil
}
