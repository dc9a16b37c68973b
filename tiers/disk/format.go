package disk

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// The sizes and names of the format. The package comment draws it.
const (
	formatVersion = 1
	pageBytes     = 4096
	sumOffset     = pageBytes - 8 // of the checksum of a page

	superName    = "kvfs-disk"
	indexName    = "kvfs-index"
	indexTmpName = "kvfs-index.tmp"
	slabTmpName  = "kvfs-slab.tmp"
	slabPrefix   = "slab-"

	superMagic = "KVFSDISK"
	slabMagic  = "KVFSSLAB"
	slotMagic  = "KVFSSLOT"

	slotFixedBytes = 88 // of a slot header, before the key
	dirBytes       = 12 // of one directory
	// maxKeyBytes is the longest path of a block that this tier can hold.
	maxKeyBytes = sumOffset - slotFixedBytes

	maxSlabNumber = 99999999 // eight digits
	maxSlotBytes  = 1 << 40  // keeps sums of sizes far from overflow
	maxSlots      = 1 << 24
)

const (
	superClean = 1 << 0
	slotPinned = 1 << 0
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

// uuid identifies a directory.
type uuid [16]byte

// newUUID returns a random uuid, version 4.
func newUUID() uuid {
	var u uuid
	rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// String returns the usual 8-4-4-4-12 digits.
func (u uuid) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// alignUp returns n rounded up to whole pages.
func alignUp(n int64) int64 { return (n + pageBytes - 1) &^ (pageBytes - 1) }

var le = binary.LittleEndian

var zeroPage [pageBytes]byte

// isZero reports whether a page is all zeros: its slot was freed or never used.
func isZero(page []byte) bool { return bytes.Equal(page, zeroPage[:]) }

// corrupt is an error that wraps ErrCorrupt.
func corrupt(what, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", what, fmt.Sprintf(format, args...), block.ErrCorrupt)
}

// sealPage sets the checksum of a page.
func sealPage(page []byte) {
	le.PutUint64(page[sumOffset:], block.Sum(page[:sumOffset]).Sum)
}

// checkPage checks what all header pages have in common in all versions: the magic, the checksum,
// and then the version. The VersionError has no Path.
func checkPage(page []byte, magic, what string) error {
	if len(page) != pageBytes {
		return corrupt(what, "%d bytes, not a page", len(page))
	}
	if string(page[:8]) != magic {
		return corrupt(what, "no %s at its start", magic)
	}
	if block.Sum(page[:sumOffset]).Sum != le.Uint64(page[sumOffset:]) {
		return corrupt(what, "checksum")
	}
	switch v := le.Uint32(page[8:]); {
	case v > formatVersion:
		return &VersionError{What: what, Got: v, Want: formatVersion}
	case v == 0:
		return corrupt(what, "version 0")
	}
	return nil
}

// superblock is the content of kvfs-disk.
type superblock struct {
	clean     bool // the index of indexGen is complete
	uuid      uuid
	seq       uint64
	slabBytes int64
	indexGen  uint64
	day       int64 // days since the epoch, UTC
	dayBytes  int64 // written on that day
}

// encode fills a page.
func (s *superblock) encode(page []byte) {
	page = page[:pageBytes]
	clear(page)
	copy(page, superMagic)
	le.PutUint32(page[8:], formatVersion)
	if s.clean {
		le.PutUint32(page[12:], superClean)
	}
	copy(page[16:], s.uuid[:])
	le.PutUint64(page[32:], s.seq)
	le.PutUint64(page[40:], uint64(s.slabBytes))
	le.PutUint64(page[48:], s.indexGen)
	le.PutUint64(page[56:], uint64(s.day))
	le.PutUint64(page[64:], uint64(s.dayBytes))
	sealPage(page)
}

// decodeSuperblock is the inverse of encode. It fails with a VersionError or ErrCorrupt.
func decodeSuperblock(page []byte) (superblock, error) {
	const what = "superblock"
	if err := checkPage(page, superMagic, what); err != nil {
		return superblock{}, err
	}
	s := superblock{
		clean:     le.Uint32(page[12:])&superClean != 0,
		uuid:      uuid(page[16:32]),
		seq:       le.Uint64(page[32:]),
		slabBytes: int64(le.Uint64(page[40:])),
		indexGen:  le.Uint64(page[48:]),
		day:       int64(le.Uint64(page[56:])),
		dayBytes:  int64(le.Uint64(page[64:])),
	}
	if s.slabBytes < 0 || s.dayBytes < 0 {
		return superblock{}, corrupt(what, "negative size")
	}
	return s, nil
}

// slabHeader describes a slab.
type slabHeader struct {
	number    uint32
	uuid      uuid
	epoch     uint64
	slotBytes int64
	slots     uint32
}

// slotsFor returns how many slots of slotBytes fit into a slab of slabBytes.
func slotsFor(slabBytes, slotBytes int64) uint32 {
	return uint32(min(max((slabBytes-pageBytes)/(slotBytes+pageBytes), 0), maxSlots))
}

// headerOff returns the file offset of a slot's header.
func (h *slabHeader) headerOff(slot uint32) int64 { return pageBytes * (1 + int64(slot)) }

// dataOff returns the file offset of a slot's data.
func (h *slabHeader) dataOff(slot uint32) int64 {
	return pageBytes*(1+int64(h.slots)) + int64(slot)*h.slotBytes
}

// wantBytes returns the size that the slab's file should have.
func (h *slabHeader) wantBytes() int64 { return h.dataOff(h.slots) }

// check returns an error for a slab header with impossible values.
func (h *slabHeader) check(what string) error {
	switch {
	case h.number > maxSlabNumber:
		return corrupt(what, "slab number %d", h.number)
	case h.slotBytes < pageBytes || h.slotBytes > maxSlotBytes || h.slotBytes%pageBytes != 0:
		return corrupt(what, "slots of %d bytes", h.slotBytes)
	case h.slots == 0 || h.slots > maxSlots:
		return corrupt(what, "%d slots", h.slots)
	case h.epoch == 0:
		return corrupt(what, "epoch 0")
	case int64(h.slots) > (1<<62)/(h.slotBytes+pageBytes):
		return corrupt(what, "%d slots of %d bytes", h.slots, h.slotBytes)
	}
	return nil
}

// encode fills a page.
func (h *slabHeader) encode(page []byte) {
	page = page[:pageBytes]
	clear(page)
	copy(page, slabMagic)
	le.PutUint32(page[8:], formatVersion)
	le.PutUint32(page[12:], h.number)
	copy(page[16:], h.uuid[:])
	le.PutUint64(page[32:], h.epoch)
	le.PutUint64(page[40:], uint64(h.slotBytes))
	le.PutUint32(page[48:], h.slots)
	sealPage(page)
}

// decodeSlabHeader is the inverse of encode. It fails with a VersionError or ErrCorrupt.
func decodeSlabHeader(page []byte) (slabHeader, error) {
	const what = "slab header"
	if err := checkPage(page, slabMagic, what); err != nil {
		return slabHeader{}, err
	}
	h := slabHeader{
		number:    le.Uint32(page[12:]),
		uuid:      uuid(page[16:32]),
		epoch:     le.Uint64(page[32:]),
		slotBytes: int64(le.Uint64(page[40:])),
		slots:     le.Uint32(page[48:]),
	}
	if err := h.check(what); err != nil {
		return slabHeader{}, err
	}
	return h, nil
}

// slotHeader describes a block in its slot. attrs holds the flags and everything else about the
// block's file. Without attrs a block has a key, a size and a sum.
type slotHeader struct {
	slot  uint32
	epoch uint64 // of the slab
	size  int64
	sum   uint64 // CRC-64/NVME of the bytes
	attrs driver.Attrs
	// key is the path below the mount. After a decode it shares the memory of the decoded page, and
	// the next decode into this slotHeader overwrites attrs.Dirs.
	key []byte
}

// checkKey returns an error for a path that no block of this tier can have. It is ErrNameTooLong
// beyond maxKeyBytes, else an error of block.CheckPath.
func checkKey(path string) error {
	if len(path) > maxKeyBytes {
		return block.ErrNameTooLong
	}
	return block.CheckPath(path)
}

// keepDirs cuts directories from the end until the rest fits behind the key.
func keepDirs(dirs []driver.DirAttrs, keyBytes int) []driver.DirAttrs {
	return dirs[:min(len(dirs), (maxKeyBytes-keyBytes)/dirBytes)]
}

// encode fills a page. It leaves out directories that do not fit, from the end. It fails with
// ErrNameTooLong if the key does not fit. The page is then unchanged.
func (h *slotHeader) encode(page []byte) error {
	if len(h.key) > maxKeyBytes {
		return block.ErrNameTooLong
	}
	page = page[:pageBytes]
	clear(page)
	copy(page, slotMagic)
	le.PutUint32(page[8:], formatVersion)
	le.PutUint32(page[12:], h.flags())
	le.PutUint64(page[16:], h.epoch)
	le.PutUint64(page[24:], h.attrs.Seq)
	le.PutUint64(page[32:], uint64(h.size))
	le.PutUint64(page[40:], h.sum)
	le.PutUint64(page[48:], uint64(h.attrs.Mtime))
	le.PutUint64(page[56:], uint64(h.attrs.Expires))
	le.PutUint32(page[64:], h.attrs.Mode)
	le.PutUint32(page[68:], h.attrs.UID)
	le.PutUint32(page[72:], h.attrs.GID)
	le.PutUint32(page[76:], h.slot)
	dirs := keepDirs(h.attrs.Dirs, len(h.key))
	le.PutUint16(page[80:], uint16(len(h.key)))
	le.PutUint16(page[82:], uint16(len(dirs)))
	n := slotFixedBytes + copy(page[slotFixedBytes:], h.key)
	for _, d := range dirs {
		putDir(page[n:], d)
		n += dirBytes
	}
	sealPage(page)
	return nil
}

func (h *slotHeader) flags() uint32 {
	if h.attrs.Pinned {
		return slotPinned
	}
	return 0
}

// decodeChecked reads a page that checkPage has accepted as one of slotMagic. It fails with
// ErrCorrupt. h is then undefined.
func (h *slotHeader) decodeChecked(page []byte) error {
	const what = "slot header"
	keyBytes, dirs := int(le.Uint16(page[80:])), int(le.Uint16(page[82:]))
	if keyBytes > maxKeyBytes || dirs > (maxKeyBytes-keyBytes)/dirBytes {
		return corrupt(what, "%d bytes of key and %d directories", keyBytes, dirs)
	}
	h.epoch = le.Uint64(page[16:])
	h.size = int64(le.Uint64(page[32:]))
	h.sum = le.Uint64(page[40:])
	h.slot = le.Uint32(page[76:])
	h.key = page[slotFixedBytes : slotFixedBytes+keyBytes : slotFixedBytes+keyBytes]
	h.attrs = driver.Attrs{
		Seq:     le.Uint64(page[24:]),
		Mode:    le.Uint32(page[64:]),
		UID:     le.Uint32(page[68:]),
		GID:     le.Uint32(page[72:]),
		Mtime:   int64(le.Uint64(page[48:])),
		Expires: int64(le.Uint64(page[56:])),
		Pinned:  le.Uint32(page[12:])&slotPinned != 0,
		Dirs:    readDirs(h.attrs.Dirs[:0], page[slotFixedBytes+keyBytes:], dirs),
	}
	return h.check(what)
}

// decode reads a page. It fails with a VersionError or ErrCorrupt. h is then undefined.
func (h *slotHeader) decode(page []byte) error {
	if err := checkPage(page, slotMagic, "slot header"); err != nil {
		return err
	}
	return h.decodeChecked(page)
}

// check returns an error for a slot header with impossible values.
func (h *slotHeader) check(what string) error {
	switch {
	case h.size < 0 || h.size > maxSlotBytes:
		return corrupt(what, "block of %d bytes", h.size)
	case h.attrs.Seq == 0:
		return corrupt(what, "seq 0")
	}
	// CheckPath only looks at the string. Its error would hold the string, so the error is not
	// kept.
	if block.CheckPath(unsafe.String(unsafe.SliceData(h.key), len(h.key))) != nil {
		return corrupt(what, "key %.64q", h.key)
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

// slabName returns the name of a slab's file.
func slabName(number uint32) string { return fmt.Sprintf("%s%08d", slabPrefix, number) }

// parseSlabName is the inverse of slabName.
func parseSlabName(name string) (number uint32, ok bool) {
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
