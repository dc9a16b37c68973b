package pack

import (
	"fmt"
	"math"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Builder makes a pack in one buffer. It is for one goroutine.
type Builder struct {
	buf     []byte // frames; len is a multiple of Align
	index   []byte
	entries uint32
	user    bool  // some block has attributes of processes
	last    Entry // for the next entry of the index
	alone   bool  // the block is larger than MaxShared

	// The block that was reserved and is not committed.
	next      Entry
	head      []byte // header and path; nil if there is none
	nextIndex []byte // index with its entry
}

// NewBuilder returns an empty Builder. The pack grows in buf up to its capacity: the Builder owns
// buf until Finish returns it.
func NewBuilder(buf []byte) *Builder { return &Builder{buf: buf[:0]} }

// Reserve begins to add a block. The caller fills data, which has size bytes of any content, and
// calls Commit. Without Commit the block is not added, and the next Reserve or Finish invalidates
// data. The Builder keeps no reference to a.
//
// Reserve fails with ErrNoSpace if the pack has no room: it is to be finished first. A block with
// which an empty Builder fails needs a larger buffer. Other errors are those of
// block.CheckPath, and ErrInvalid for a size or Seq that cannot be.
func (b *Builder) Reserve(path string, a *driver.Attrs, size int64) (data []byte, err error) {
	b.head = nil
	if err := check(path, a, size); err != nil {
		return nil, err
	}
	start := len(b.buf)
	end := int64(start) + PaddedBytes(len(path), size, a.User)
	if b.entries > 0 && (b.alone || size > MaxShared || end > MaxFrames) {
		return nil, block.ErrNoSpace
	}
	b.next = Entry{Path: path, Size: size, Attrs: *a}
	b.next.Attrs.Dirs = append([]driver.DirAttrs(nil), keptDirs(path, a.Dirs)...)
	b.nextIndex = appendEntry(b.index, &b.last, &b.next)
	tail := len(b.nextIndex) + FooterBytes
	if tail > MaxTail || end+int64(tail) > int64(cap(b.buf)) {
		return nil, block.ErrNoSpace
	}
	b.head = appendHead(b.buf, path, a, size)[start:]
	from := start + len(b.head)
	return b.buf[from : from+int(size) : from+int(size)], nil
}

// Commit adds the block that was reserved last. sum is that of its data. Without such a block
// Commit does nothing.
func (b *Builder) Commit(sum block.Checksum) {
	if b.head == nil {
		return
	}
	sealHead(b.head, sum)
	le.PutUint64(b.nextIndex[len(b.index):], sum.Sum)
	user := b.next.Attrs.User
	end := len(b.buf) + int(PaddedBytes(len(b.next.Path), b.next.Size, user))
	data := len(b.buf) + len(b.head) + int(b.next.Size)
	clear(b.buf[len(appendUser(b.buf[:data], user)):end])
	b.user = b.user || user != ""
	b.buf, b.index, b.last = b.buf[:end], b.nextIndex, b.next
	b.alone = b.next.Size > MaxShared
	b.entries++
	b.head = nil
}

// Add adds a block of which the caller has the bytes. Errors are those of Reserve.
func (b *Builder) Add(path string, a *driver.Attrs, data []byte, sum block.Checksum) error {
	room, err := b.Reserve(path, a, int64(len(data)))
	if err != nil {
		return err
	}
	copy(room, data)
	b.Commit(sum)
	return nil
}

// Finish completes the pack, which has at least one block, and returns its name and bytes: the
// buffer, which is the caller's again. The Builder is of no use any more.
func (b *Builder) Finish(at int64, writer uint64) (Name, []byte) {
	n := Name{Time: at, Writer: writer, Index: int64(len(b.buf))}
	return n, appendFooter(append(b.buf, b.index...), b.index, n, b.entries, versionOf(b.user))
}

// check returns an error for a block that cannot be in a pack.
func check(path string, a *driver.Attrs, size int64) error {
	if size < 0 || size > MaxBlockBytes || a.Seq == 0 || a.Mode > math.MaxUint16 {
		return fmt.Errorf("pack: seq %d, %d bytes: %w", a.Seq, size, block.ErrInvalid)
	}
	return block.CheckPath(path)
}

// appendFooter appends the footer of the pack n, whose index is given.
func appendFooter(b, index []byte, n Name, entries, version uint32) []byte {
	start := len(b)
	b = append(b, make([]byte, FooterBytes)...)
	f := b[start:]
	copy(f, footerMagic)
	le.PutUint32(f[16:], version)
	le.PutUint32(f[20:], entries)
	le.PutUint64(f[24:], uint64(n.Index))
	le.PutUint64(f[32:], uint64(len(index)))
	le.PutUint64(f[40:], block.Sum(index).Sum)
	le.PutUint64(f[48:], uint64(n.Time))
	le.PutUint64(f[56:], n.Writer)
	seal(f)
	return b
}
