package mount

import (
	"bytes"
	"hash/crc64"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// newer makes a page one of format version 2.
func newer(page []byte) {
	le.PutUint32(page[8:], 2)
	seal(page)
}

var damages = []damage{
	{"nothing", func(t *testing.T, h *hurt) {}},
	{"superblock copy 0", func(t *testing.T, h *hurt) { h.harm = true; h.flip(t, h.file("kvfs-disk"), 0, diskPage, 2) }},
	{"superblock copy 1", func(t *testing.T, h *hurt) { h.harm = true; h.flip(t, h.file("kvfs-disk"), diskPage, diskPage, 2) }},
	{"both superblocks", func(t *testing.T, h *hurt) {
		h.harm, h.refuse = true, true
		h.flip(t, h.file("kvfs-disk"), 0, 4088, 1)
		h.flip(t, h.file("kvfs-disk"), diskPage, 4088, 1)
	}},
	{"superblock empty", func(t *testing.T, h *hurt) {
		h.harm, h.refuse = true, true
		must(t, "truncate", os.Truncate(h.file("kvfs-disk"), 0))
	}},
	{"superblock lost", func(t *testing.T, h *hurt) {
		h.harm, h.refuse = true, true
		must(t, "remove", os.Remove(h.file("kvfs-disk")))
	}},
	{"index lost", func(t *testing.T, h *hurt) { os.Remove(h.file("kvfs-index")); h.harm = !h.crash }},
	{"index flipped", func(t *testing.T, h *hurt) {
		if h.crash {
			return // there is none that counts
		}
		// Half of the flips hit what comes after the last entry.
		h.flip(t, h.file("kvfs-index"), 0, 4088, 1)
		h.flip(t, h.file("kvfs-index"), diskPage, 1500, 2)
		h.harm = true
	}},
	{"index of an earlier time", func(t *testing.T, h *hurt) {
		must(t, "write", os.WriteFile(h.file("kvfs-index"), h.older, 0o600))
		h.harm = !h.crash
	}},
	{"index is a directory", func(t *testing.T, h *hurt) {
		os.Remove(h.file("kvfs-index"))
		must(t, "mkdir", os.Mkdir(h.file("kvfs-index"), 0o755))
		h.harm, h.refuse, h.stays = !h.crash, true, true
	}},
	{"slab header", func(t *testing.T, h *hurt) {
		s := h.some(t)
		h.flip(t, s.file, 0, diskPage, 2)
		h.lost, h.harm = h.in(s.file), true
	}},
	{"slot header", func(t *testing.T, h *hurt) {
		s := h.some(t)
		h.flip(t, s.file, s.headerOff, diskPage, 3)
		h.lost, h.harm = []string{s.key}, true
	}},
	{"slot header torn", func(t *testing.T, h *hurt) {
		s := h.some(t)
		h.change(t, s.file, s.headerOff, diskPage, func(b []byte) { clear(b[512:]) })
		h.lost, h.harm = []string{s.key}, true
	}},
	{"data", func(t *testing.T, h *hurt) {
		s := h.some(t)
		h.flip(t, s.file, s.data, s.size, 1)
		h.lost, h.harm = []string{s.key}, true
	}},
	{"data torn", func(t *testing.T, h *hurt) {
		s := h.some(t)
		h.change(t, s.file, s.data, int(s.size), func(b []byte) { clear(b[len(b)/2:]) })
		h.lost, h.harm = []string{s.key}, true
	}},
	{"data of another block", func(t *testing.T, h *hurt) {
		s := h.some(t)
		other := pattern("another block", int(s.size))
		h.change(t, s.file, s.data, int(s.size), func(b []byte) { copy(b, other) })
		h.lost, h.harm = []string{s.key}, true
	}},
	{"slot header of a neighbour", func(t *testing.T, h *hurt) {
		s := h.some(t)
		i := slices.IndexFunc(h.slots, func(o diskSlot) bool { return o.file == s.file && o.slot != s.slot })
		from := readAll(t, s.file)[h.slots[i].headerOff:][:diskPage]
		h.change(t, s.file, s.headerOff, diskPage, func(b []byte) { copy(b, from) })
		h.lost, h.harm = []string{s.key}, true
	}},
	{"older version in a free slot", olderVersion},
	{"slab truncated", func(t *testing.T, h *hurt) {
		s := h.some(t)
		must(t, "truncate", os.Truncate(s.file, s.data+s.size/2))
		h.lost, h.harm = h.in(s.file), true
	}},
	{"slab truncated in its table", func(t *testing.T, h *hurt) {
		s := h.some(t)
		must(t, "truncate", os.Truncate(s.file, s.headerOff+100))
		h.lost, h.harm = h.in(s.file), true
	}},
	{"slab empty", func(t *testing.T, h *hurt) {
		s := h.some(t)
		must(t, "truncate", os.Truncate(s.file, 0))
		h.lost, h.harm = h.in(s.file), true
	}},
	{"slab lost", func(t *testing.T, h *hurt) {
		s := h.some(t)
		must(t, "remove", os.Remove(s.file))
		h.lost, h.harm = h.in(s.file), !h.crash // after a crash nothing tells of it
	}},
	{"foreign files", func(t *testing.T, h *hurt) {
		must(t, "write", os.WriteFile(h.file("README"), []byte("not ours"), 0o644))
		must(t, "mkdir", os.Mkdir(h.file("lost+found"), 0o700))
		must(t, "mkfifo", unix.Mkfifo(h.file("slab-00009998"), 0o600))
		must(t, "symlink", os.Symlink("/dev/zero", h.file("slab-00009999")))
		must(t, "write", os.WriteFile(h.file("slab-00009997"), pattern("junk", 100_000), 0o600))
		h.harm = true
		h.stays = true // what is no file of ours is not removed, perhaps
	}},
	{"20 bits anywhere", anywhere},
	{"20 bits anywhere, again", anywhere},
	{"superblock of a later version", func(t *testing.T, h *hurt) {
		for _, at := range []int64{0, diskPage} {
			h.change(t, h.file("kvfs-disk"), at, diskPage, newer)
		}
		h.later = true
	}},
	{"slab of a later version", func(t *testing.T, h *hurt) {
		h.change(t, h.some(t).file, 0, diskPage, newer)
		h.later = true
	}},
	{"slot of a later version", func(t *testing.T, h *hurt) {
		if !h.crash {
			return // the index speaks for it
		}
		s := h.some(t)
		h.change(t, s.file, s.headerOff, diskPage, newer)
		h.later = true
	}},
	{"index of a later version", func(t *testing.T, h *hurt) {
		if h.crash {
			return
		}
		h.change(t, h.file("kvfs-index"), 0, diskPage, newer)
		h.later = true
	}},
}

// olderVersion plants a valid older copy of a block, with other bytes, in a free slot. A crash between a store and
// the removal of the replaced copy leaves such a slot.
func olderVersion(t *testing.T, h *hurt) {
	for _, s := range h.slots {
		used := map[uint32]bool{}
		for _, o := range h.slots {
			if o.file == s.file {
				used[o.slot] = true
			}
		}
		slab := readAll(t, s.file)
		slots := le.Uint32(slab[48:])
		free := uint32(0)
		for used[free] {
			free++
		}
		if free >= slots || s.size == 0 {
			continue
		}
		old := pattern("older", int(s.size))
		page := bytes.Clone(slab[s.headerOff:][:diskPage])
		le.PutUint64(page[24:], s.seq-1)
		le.PutUint64(page[40:], crc64.Checksum(old, nvme))
		le.PutUint32(page[76:], free)
		seal(page)
		h.change(t, s.file, diskPage*int64(1+free), diskPage, func(b []byte) { copy(b, page) })
		h.change(t, s.file, diskPage*int64(1+slots)+int64(free)*s.slotBytes, len(old), func(b []byte) { copy(b, old) })
		// No damage: a note of fsck at most.
		return
	}
	t.Fatal("no slab has a free slot")
}

// anywhere flips bits in what the files have on disk, superblocks left out: those
// have cases of their own.
func anywhere(t *testing.T, h *hurt) {
	h.lost, h.refuse = h.keys, true
	files := slices.Clone(h.slabs)
	if !h.crash {
		files = append(files, h.file("kvfs-index"))
	}
	for range 20 {
		file := files[h.rnd.IntN(len(files))]
		length := stat(t, file).Size
		if h.rnd.IntN(2) == 0 {
			length = min(length, 20*diskPage) // headers
		}
		h.flip(t, file, 0, length, 1)
	}
}
