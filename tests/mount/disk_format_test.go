package mount

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// A reader of the disk format, written from its description and nothing else:
// offsets are those in the package comment of the disk tier.

const diskPage = 4096

var le = binary.LittleEndian

// diskSlot is a used slot.
type diskSlot struct {
	file            string // of the slab
	headerOff, data int64
	slot            uint32
	slotBytes       int64
	seq             uint64
	size            int64
	sum             uint64
	mtime           int64
	mode, uid, gid  uint32
	key             string
	dirs            [][3]uint32 // mode, uid, gid
}

// diskImage is what a directory holds.
type diskImage struct {
	dir   string
	clean bool
	uuid  []byte
	slots []diskSlot
	slabs []string // paths
}

// sealed reports whether the checksum at the end of a page is right.
func sealed(page []byte) bool {
	return le.Uint64(page[4088:]) == crc64.Checksum(page[:4088], nvme)
}

// seal writes the checksum of a page.
func seal(page []byte) { le.PutUint64(page[4088:], crc64.Checksum(page[:4088], nvme)) }

// readImage reads a directory by its description, and fails the test where the
// two differ.
func readImage(t testing.TB, dir string) *diskImage {
	t.Helper()
	img := &diskImage{dir: dir}
	super := readAll(t, filepath.Join(dir, "kvfs-disk"))
	var seq uint64
	for at := 0; at+diskPage <= len(super) && at <= diskPage; at += diskPage {
		page := super[at : at+diskPage]
		if string(page[:8]) != "KVFSDISK" || !sealed(page) {
			t.Errorf("superblock copy at %d: magic %q, sealed: %t", at, page[:8], sealed(page))
			continue
		}
		if s := le.Uint64(page[32:]); s > seq {
			seq, img.uuid, img.clean = s, page[16:32], le.Uint32(page[12:])&1 != 0
		}
	}
	var err error
	img.slabs, err = filepath.Glob(filepath.Join(dir, "slab-????????"))
	must(t, "glob", err)
	for _, path := range img.slabs {
		img.readSlab(t, path)
	}
	return img
}

func readAll(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (img *diskImage) readSlab(t testing.TB, path string) {
	t.Helper()
	b := readAll(t, path)
	if len(b) < diskPage {
		t.Fatalf("%s: %d bytes", path, len(b))
	}
	h, name := b[:diskPage], filepath.Base(path)
	if string(h[:8]) != "KVFSSLAB" || !sealed(h) || le.Uint32(h[8:]) != 1 || !bytes.Equal(h[16:32], img.uuid) {
		t.Errorf("%s: header: magic %q, sealed: %t, version %d", name, h[:8], sealed(h), le.Uint32(h[8:]))
		return
	}
	if got := fmt.Sprintf("slab-%08d", le.Uint32(h[12:])); got != name {
		t.Errorf("%s: header is of %s", name, got)
	}
	epoch, slotBytes, slots := le.Uint64(h[32:]), int64(le.Uint64(h[40:])), int64(le.Uint32(h[48:]))
	if want := diskPage*(1+slots) + slots*slotBytes; slotBytes%diskPage != 0 || int64(len(b)) != want {
		t.Errorf("%s: %d bytes with %d slots of %d, want %d", name, len(b), slots, slotBytes, want)
	}
	for i := range slots {
		page := b[diskPage*(1+i):][:diskPage]
		if string(page[:8]) != "KVFSSLOT" || !sealed(page) || le.Uint64(page[16:]) != epoch {
			continue // free
		}
		s := diskSlot{
			file: path, headerOff: diskPage * (1 + i), data: diskPage*(1+slots) + i*slotBytes, slot: le.Uint32(page[76:]),
			slotBytes: slotBytes, seq: le.Uint64(page[24:]), size: int64(le.Uint64(page[32:])), sum: le.Uint64(page[40:]),
			mtime: int64(le.Uint64(page[48:])), mode: le.Uint32(page[64:]), uid: le.Uint32(page[68:]), gid: le.Uint32(page[72:]),
		}
		n := int64(le.Uint16(page[80:]))
		s.key = string(page[88 : 88+n])
		for d := range int64(le.Uint16(page[82:])) {
			at := page[88+n+12*d:]
			s.dirs = append(s.dirs, [3]uint32{le.Uint32(at), le.Uint32(at[4:]), le.Uint32(at[8:])})
		}
		if int64(s.slot) != i || s.size > slotBytes {
			t.Errorf("%s: slot %d says that it is %d, with %d bytes of %d", name, i, s.slot, s.size, slotBytes)
			continue
		}
		img.slots = append(img.slots, s)
	}
}

// of returns the slot of a key, the latest if there are several.
func (img *diskImage) of(t testing.TB, key string) diskSlot {
	t.Helper()
	best := diskSlot{}
	for _, s := range img.slots {
		if s.key == key && s.seq > best.seq {
			best = s
		}
	}
	if best.seq == 0 {
		t.Fatalf("no slot of %q", key)
	}
	return best
}

// in returns the keys in a slab.
func (img *diskImage) in(file string) []string {
	var keys []string
	for _, s := range img.slots {
		if s.file == file {
			keys = append(keys, s.key)
		}
	}
	return keys
}

// TestDiskFormat reads the files that a daemon leaves on disk by the description of the format. All blocks are where
// it says, with their attributes and checksums, and nothing else is there (C20, G7).
func TestDiskFormat(t *testing.T) {
	d := diskMount(t, harness.Options{Disk: "128MiB", Flags: []string{"--disk-slab-size", "4MiB"}})
	blocks := sizedBlocks(d.Path("top"))
	mkdir(t, d.Path("top"))
	must(t, "chmod", unix.Chmod(d.Path("top"), 0o711))
	writeAll(t, blocks)
	stats := make(map[string]unix.Stat_t)
	for i, p := range paths(blocks) {
		must(t, "chmod", unix.Chmod(p, uint32(0o600+i)))
		waitOnDisk(t, p)
		stats[p] = stat(t, p)
	}
	gone := d.Path("gone")
	store(t, gone, pattern(gone, 10_000))
	waitOnDisk(t, gone)
	unlink(t, gone)
	waitDrained(t, d)
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}

	img := readImage(t, d.DiskDir)
	if !img.clean {
		t.Error("the superblock does not say that the tier was closed cleanly")
	}
	index := readAll(t, filepath.Join(d.DiskDir, "kvfs-index"))
	if string(index[:8]) != "KVFSINDX" || !sealed(index[:diskPage]) || le.Uint64(index[40:]) != uint64(len(blocks)) || le.Uint64(index[48:]) != uint64(len(index)) {
		t.Errorf("index: magic %q, %d blocks, %d bytes; want %d in %d", index[:8], le.Uint64(index[40:]), le.Uint64(index[48:]), len(blocks), len(index))
	}
	if len(img.slots) != len(blocks) {
		t.Errorf("%d used slots, want %d", len(img.slots), len(blocks))
	}
	for p, want := range blocks {
		rel, _ := filepath.Rel(d.Dir, p)
		s, st := img.of(t, rel), stats[p]
		slab := readAll(t, s.file)
		sameBytes(t, rel, slab[s.data:][:s.size], want)
		if s.sum != crc64.Checksum(want, nvme) {
			t.Errorf("%s: checksum %016x, want %016x", rel, s.sum, crc64.Checksum(want, nvme))
		}
		padded := (s.size + diskPage - 1) / diskPage * diskPage
		if pad := slab[s.data+s.size : s.data+padded]; !bytes.Equal(pad, make([]byte, len(pad))) {
			t.Errorf("%s: the rest of the last page is not zeros", rel)
		}
		if s.mode&0o7777 != st.Mode&0o7777 || s.uid != st.Uid || s.gid != st.Gid || s.mtime != st.Mtim.Nano() {
			t.Errorf("%s: mode %#o, owner %d:%d, mtime %d; want %#o, %d:%d, %d", rel, s.mode, s.uid, s.gid, s.mtime, st.Mode, st.Uid, st.Gid, st.Mtim.Nano())
		}
		if len(s.dirs) != 2 || s.dirs[0][0]&0o7777 != 0o711 {
			t.Errorf("%s: directories %v, want 2, the first with mode 0711", rel, s.dirs)
		}
	}
	names := listNames(t, d.DiskDir)
	if len(names) != len(img.slabs)+2 || !slices.Contains(names, "kvfs-index") {
		t.Errorf("files: %q, want slabs, superblock and index only", names)
	}
}
