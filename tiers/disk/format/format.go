package format

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// The sizes of the format. The package comment draws it.
const (
	Version   = 1             // the latest that this kvfs reads, and the one that it writes
	PageBytes = 4096          // everything is written in pages
	sumOffset = PageBytes - 8 // of the checksum of a page

	superMagic = "KVFSDISK"
	slabMagic  = "KVFSSLAB"
	SlotMagic  = "KVFSSLOT" // the first bytes of a slot header

	slotFixedBytes = 88 // of a slot header, before the key
	dirBytes       = 12 // of one directory
	// MaxKeyBytes is the longest path of a block that this tier can hold.
	MaxKeyBytes = sumOffset - slotFixedBytes

	MaxSlotBytes = 1 << 40 // keeps sums of sizes far from overflow
	maxSlots     = 1 << 24
)

const (
	superClean   = 1 << 0
	superPartial = 1 << 1
	slotPinned   = 1 << 0
)

// VersionError says that a later kvfs wrote something in the directory. This kvfs then changes
// nothing in it.
type VersionError struct {
	What string // "superblock", "slab header", "slot header", "index"
	Path string // of the file
	Got  uint32
	Want uint32 // the latest version that this kvfs reads
}

// Error names both versions and says what to do.
func (e *VersionError) Error() string {
	return fmt.Sprintf("%s: %s has format version %d, this kvfs reads up to version %d: upgrade kvfs",
		e.Path, e.What, e.Got, e.Want)
}

// UUID identifies a directory.
type UUID [16]byte

// NewUUID returns a random uuid, version 4.
func NewUUID() UUID {
	var u UUID
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// String returns the usual 8-4-4-4-12 digits.
func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Size returns n bytes as people read them: "124.3 MiB".
func Size(n int64) string {
	v, unit := float64(n), 0
	for v >= 1023.95 && unit < 6 { // which %.1f prints as 1024.0
		v /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTPE"[unit-1])
}

// AlignUp returns n rounded up to whole pages.
func AlignUp(n int64) int64 { return (n + PageBytes - 1) &^ (PageBytes - 1) }

var le = binary.LittleEndian

var zeroPage [PageBytes]byte

// IsZero reports whether a page is all zeros: its slot was freed or never used.
func IsZero(page []byte) bool { return bytes.Equal(page, zeroPage[:]) }

// Corrupt returns an error that wraps block.ErrCorrupt. Its text is what, then format with args.
func Corrupt(what, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", what, fmt.Sprintf(format, args...), block.ErrCorrupt)
}

// SealPage sets the checksum of a page of PageBytes.
func SealPage(page []byte) {
	le.PutUint64(page[sumOffset:], block.Sum(page[:sumOffset]).Sum)
}

// CheckPage checks what all header pages have in common in all versions: the magic, the checksum,
// and then the version. It fails with ErrCorrupt, which names what, or with a VersionError without
// Path.
func CheckPage(page []byte, magic, what string) error {
	if len(page) != PageBytes {
		return Corrupt(what, "%d bytes, not a page", len(page))
	}
	if string(page[:8]) != magic {
		return Corrupt(what, "no %s at its start", magic)
	}
	if block.Sum(page[:sumOffset]).Sum != le.Uint64(page[sumOffset:]) {
		return Corrupt(what, "checksum")
	}
	switch v := le.Uint32(page[8:]); {
	case v > Version:
		return &VersionError{What: what, Got: v, Want: Version}
	case v == 0:
		return Corrupt(what, "version 0")
	}
	return nil
}

// Superblock is the content of kvfs-disk.
type Superblock struct {
	Clean     bool // the index of IndexGen is complete
	Partial   bool // not Clean, and the index of IndexGen is right for the slabs that are not in Changed
	UUID      UUID
	Seq       uint64
	SlabBytes int64
	IndexGen  uint64
	Day       int64 // days since the epoch, UTC
	DayBytes  int64 // written on that day
	Changed   SlabSet
}

// SlabSet is a set of numbers of slabs. The numbers from MarkedSlabs on are always in it.
type SlabSet [MarkedSlabs / 64]uint64

// MarkedSlabs is how many slabs a SlabSet tells apart.
const MarkedSlabs = 64 * 501

// Has reports whether a number is in the set.
func (c *SlabSet) Has(number uint32) bool {
	return number >= MarkedSlabs || c[number/64]&(1<<(number%64)) != 0
}

// Add adds a number.
func (c *SlabSet) Add(number uint32) {
	if number < MarkedSlabs {
		c[number/64] |= 1 << (number % 64)
	}
}

// Outdated reports whether s, if it came to count in place of now, would have a start believe more of the index than
// now does.
func (s *Superblock) Outdated(now *Superblock) bool {
	switch {
	case s.Clean:
		return !now.Clean
	case !s.Partial:
		return false
	case !now.Clean && !now.Partial:
		return true
	case s.IndexGen != now.IndexGen: // of an index that is not there
		return false
	}
	for i, marks := range s.Changed {
		if now.Changed[i]&^marks != 0 {
			return true
		}
	}
	return false
}

// Encode fills page, which has at least PageBytes.
func (s *Superblock) Encode(page []byte) {
	page = page[:PageBytes]
	clear(page)
	copy(page, superMagic)
	le.PutUint32(page[8:], Version)
	gen := s.IndexGen
	switch {
	case s.Clean:
		le.PutUint32(page[12:], superClean)
	case s.Partial:
		le.PutUint32(page[12:], superClean|superPartial)
		gen--
	}
	copy(page[16:], s.UUID[:])
	le.PutUint64(page[32:], s.Seq)
	le.PutUint64(page[40:], uint64(s.SlabBytes))
	le.PutUint64(page[48:], gen)
	le.PutUint64(page[56:], uint64(s.Day))
	le.PutUint64(page[64:], uint64(s.DayBytes))
	for i, marks := range s.Changed {
		le.PutUint64(page[72+8*i:], marks)
	}
	SealPage(page)
}

// DecodeSuperblock is the inverse of Encode. It fails with a VersionError or ErrCorrupt.
func DecodeSuperblock(page []byte) (Superblock, error) {
	const what = "superblock"
	if err := CheckPage(page, superMagic, what); err != nil {
		return Superblock{}, err
	}
	s := Superblock{
		Clean:     le.Uint32(page[12:])&superClean != 0,
		UUID:      UUID(page[16:32]),
		Seq:       le.Uint64(page[32:]),
		SlabBytes: int64(le.Uint64(page[40:])),
		IndexGen:  le.Uint64(page[48:]),
		Day:       int64(le.Uint64(page[56:])),
		DayBytes:  int64(le.Uint64(page[64:])),
	}
	for i := range s.Changed {
		s.Changed[i] = le.Uint64(page[72+8*i:])
	}
	if le.Uint32(page[12:]) == superClean|superPartial {
		s.Clean, s.Partial = false, true
		s.IndexGen++
	}
	if s.SlabBytes < 0 || s.DayBytes < 0 {
		return Superblock{}, Corrupt(what, "negative size")
	}
	return s, nil
}

// SlabHeader describes a slab: one file with slots of one size. Sizes are bytes.
type SlabHeader struct {
	Number    uint32
	UUID      UUID
	Epoch     uint64
	SlotBytes int64
	Slots     uint32
}

// SlotsFor returns how many slots of slotBytes fit into a slab of slabBytes.
func SlotsFor(slabBytes, slotBytes int64) uint32 {
	return uint32(min(max((slabBytes-PageBytes)/(slotBytes+PageBytes), 0), maxSlots))
}

// HeaderOff returns the file offset of a slot's header.
func (h *SlabHeader) HeaderOff(slot uint32) int64 { return PageBytes * (1 + int64(slot)) }

// DataOff returns the file offset of a slot's data.
func (h *SlabHeader) DataOff(slot uint32) int64 {
	return PageBytes*(1+int64(h.Slots)) + int64(slot)*h.SlotBytes
}

// WantBytes returns the size that the slab's file should have.
func (h *SlabHeader) WantBytes() int64 { return h.DataOff(h.Slots) }

// Check returns an ErrCorrupt, which names what, for a slab header with impossible values.
func (h *SlabHeader) Check(what string) error {
	switch {
	case h.Number > MaxSlabNumber:
		return Corrupt(what, "slab number %d", h.Number)
	case h.SlotBytes < PageBytes || h.SlotBytes > MaxSlotBytes || h.SlotBytes%PageBytes != 0:
		return Corrupt(what, "slots of %d bytes", h.SlotBytes)
	case h.Slots == 0 || h.Slots > maxSlots:
		return Corrupt(what, "%d slots", h.Slots)
	case h.Epoch == 0:
		return Corrupt(what, "epoch 0")
	case int64(h.Slots) > (1<<62)/(h.SlotBytes+PageBytes):
		return Corrupt(what, "%d slots of %d bytes", h.Slots, h.SlotBytes)
	}
	return nil
}

// Encode fills page, which has at least PageBytes.
func (h *SlabHeader) Encode(page []byte) {
	page = page[:PageBytes]
	clear(page)
	copy(page, slabMagic)
	le.PutUint32(page[8:], Version)
	le.PutUint32(page[12:], h.Number)
	copy(page[16:], h.UUID[:])
	le.PutUint64(page[32:], h.Epoch)
	le.PutUint64(page[40:], uint64(h.SlotBytes))
	le.PutUint32(page[48:], h.Slots)
	SealPage(page)
}

// DecodeSlabHeader is the inverse of Encode. It fails with a VersionError or ErrCorrupt.
func DecodeSlabHeader(page []byte) (SlabHeader, error) {
	const what = "slab header"
	if err := CheckPage(page, slabMagic, what); err != nil {
		return SlabHeader{}, err
	}
	h := SlabHeader{
		Number:    le.Uint32(page[12:]),
		UUID:      UUID(page[16:32]),
		Epoch:     le.Uint64(page[32:]),
		SlotBytes: int64(le.Uint64(page[40:])),
		Slots:     le.Uint32(page[48:]),
	}
	if err := h.Check(what); err != nil {
		return SlabHeader{}, err
	}
	return h, nil
}

// SlotHeader describes a block in its slot. Attrs holds the flags and everything else about the
// block's file. Without Attrs a block has a key, a size and a sum.
type SlotHeader struct {
	Slot  uint32
	Epoch uint64 // of the slab
	Size  int64
	Sum   uint64 // CRC-64/NVME of the bytes
	Attrs driver.Attrs
	// Key is the path below the mount. After a decode it shares the memory of the decoded page, and
	// the next decode into this SlotHeader overwrites Attrs.Dirs.
	Key []byte
}

// Check returns an error for a path that no block of this tier can have, or not with those attributes of processes. It is
// ErrNameTooLong for a path beyond MaxKeyBytes, ErrTooLarge if both together are, else an error of block.CheckPath.
func Check(path string, user block.UserAttrs) error {
	switch {
	case len(path) > MaxKeyBytes:
		return block.ErrNameTooLong
	case len(path)+len(user) > MaxKeyBytes:
		return fmt.Errorf("attributes of %d bytes: %w", len(user), block.ErrTooLarge)
	}
	return block.CheckPath(path)
}

// KeepDirs cuts directories from the end until the rest fits behind the key and the attributes of processes.
func KeepDirs(a *driver.Attrs, keyBytes int) []driver.DirAttrs {
	return a.Dirs[:min(len(a.Dirs), (MaxKeyBytes-keyBytes-len(a.User))/dirBytes)]
}

// Encode fills a page. It leaves out directories that do not fit, from the end. It fails with
// ErrNameTooLong if the key and the attributes of processes do not fit. The page is then unchanged.
func (h *SlotHeader) Encode(page []byte) error {
	if len(h.Key)+len(h.Attrs.User) > MaxKeyBytes {
		return block.ErrNameTooLong
	}
	page = page[:PageBytes]
	clear(page)
	copy(page, SlotMagic)
	le.PutUint32(page[8:], Version)
	le.PutUint32(page[12:], h.flags())
	le.PutUint64(page[16:], h.Epoch)
	le.PutUint64(page[24:], h.Attrs.Seq)
	le.PutUint64(page[32:], uint64(h.Size))
	le.PutUint64(page[40:], h.Sum)
	le.PutUint64(page[48:], uint64(h.Attrs.Mtime))
	le.PutUint64(page[56:], uint64(h.Attrs.Expires))
	le.PutUint32(page[64:], h.Attrs.Mode)
	le.PutUint32(page[68:], h.Attrs.UID)
	le.PutUint32(page[72:], h.Attrs.GID)
	le.PutUint32(page[76:], h.Slot)
	dirs := KeepDirs(&h.Attrs, len(h.Key))
	le.PutUint16(page[80:], uint16(len(h.Key)))
	le.PutUint16(page[82:], uint16(len(dirs)))
	le.PutUint16(page[84:], uint16(len(h.Attrs.User)))
	n := slotFixedBytes + copy(page[slotFixedBytes:], h.Key)
	for _, d := range dirs {
		putDir(page[n:], d)
		n += dirBytes
	}
	copy(page[n:], h.Attrs.User)
	SealPage(page)
	return nil
}

func (h *SlotHeader) flags() uint32 {
	if h.Attrs.Pinned {
		return slotPinned
	}
	return 0
}

// DecodeChecked reads a page that CheckPage has accepted as one of SlotMagic. It fails with
// ErrCorrupt. h is then undefined.
func (h *SlotHeader) DecodeChecked(page []byte) error {
	const what = "slot header"
	keyBytes, dirs, user := int(le.Uint16(page[80:])), int(le.Uint16(page[82:])), int(le.Uint16(page[84:]))
	if keyBytes+dirs*dirBytes+user > MaxKeyBytes {
		return Corrupt(what, "%d bytes of key, %d directories and %d bytes of attributes", keyBytes, dirs, user)
	}
	n := slotFixedBytes + keyBytes
	h.Epoch = le.Uint64(page[16:])
	h.Size = int64(le.Uint64(page[32:]))
	h.Sum = le.Uint64(page[40:])
	h.Slot = le.Uint32(page[76:])
	h.Key = page[slotFixedBytes : slotFixedBytes+keyBytes : slotFixedBytes+keyBytes]
	h.Attrs = driver.Attrs{
		Seq:     le.Uint64(page[24:]),
		Mode:    le.Uint32(page[64:]),
		UID:     le.Uint32(page[68:]),
		GID:     le.Uint32(page[72:]),
		Mtime:   int64(le.Uint64(page[48:])),
		Expires: int64(le.Uint64(page[56:])),
		Pinned:  le.Uint32(page[12:])&slotPinned != 0,
		Dirs:    readDirs(h.Attrs.Dirs[:0], page[n:], dirs),
		User:    block.UserAttrs(page[n+dirs*dirBytes:][:user]),
	}
	return h.Check(what)
}

// Decode reads a page. It fails with a VersionError or ErrCorrupt. h is then undefined.
func (h *SlotHeader) Decode(page []byte) error {
	if err := CheckPage(page, SlotMagic, "slot header"); err != nil {
		return err
	}
	return h.DecodeChecked(page)
}

// Check returns an ErrCorrupt, which names what, for a slot header with impossible values.
func (h *SlotHeader) Check(what string) error {
	switch {
	case h.Size < 0 || h.Size > MaxSlotBytes:
		return Corrupt(what, "block of %d bytes", h.Size)
	case h.Attrs.Seq == 0:
		return Corrupt(what, "seq 0")
	case h.Attrs.User.Check() != nil:
		return Corrupt(what, "attributes of %d bytes", len(h.Attrs.User))
	}
	// block.CheckPath only looks at the string. Its error would hold the string, so the error is not
	// kept.
	if block.CheckPath(unsafe.String(unsafe.SliceData(h.Key), len(h.Key))) != nil {
		return Corrupt(what, "key %.64q", h.Key)
	}
	return nil
}

func putDir(b []byte, d driver.DirAttrs) {
	le.PutUint32(b, d.Mode)
	le.PutUint32(b[4:], d.UID)
	le.PutUint32(b[8:], d.GID)
}

// readDirs appends n directories from b to dirs.
func readDirs(dirs []driver.DirAttrs, b []byte, n int) []driver.DirAttrs {
	for ; n > 0; n-- {
		dirs = append(dirs, driver.DirAttrs{Mode: le.Uint32(b), UID: le.Uint32(b[4:]), GID: le.Uint32(b[8:])})
		b = b[dirBytes:]
	}
	return dirs
}
