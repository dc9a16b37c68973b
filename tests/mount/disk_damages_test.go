package mount

import (
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
	{"superblock copy 0", func(t *testing.T, h *hurt) { h.harm = true; h.flip(t, h.file("kvfs-disk"), 0, diskPage, 2) }},
	{"both superblocks", func(t *testing.T, h *hurt) {
		h.harm, h.refuse = true, true
		h.flip(t, h.file("kvfs-disk"), 0, 4088, 1)
		h.flip(t, h.file("kvfs-disk"), diskPage, 4088, 1)
	}},
	{"index lost", func(t *testing.T, h *hurt) { os.Remove(h.file("kvfs-index")); h.harm = !h.crash }},
	{"slot header", func(t *testing.T, h *hurt) {
		s := h.some(t)
		h.flip(t, s.file, s.headerOff, diskPage, 3)
		h.lost, h.harm = []string{s.key}, true
	}},
	{"data", func(t *testing.T, h *hurt) {
		s := h.some(t)
		h.flip(t, s.file, s.data, s.size, 1)
		h.lost, h.harm = []string{s.key}, true
	}},
	{"slab truncated", func(t *testing.T, h *hurt) {
		s := h.some(t)
		must(t, "truncate", os.Truncate(s.file, s.data+s.size/2))
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
