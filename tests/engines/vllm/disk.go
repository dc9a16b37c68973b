package vllm

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// diskBackend is the disk back-end of simple offloading: one file a worker, with
// a slot for each block, which is open for the life of the process. What is in
// which slot only the process knows.
type diskBackend struct {
	file    replay.File
	path    string
	slot    int
	tensors int // of which a slot has one piece each
}

// openDisk removes what an earlier process left and makes the file in its full
// size.
func openDisk(dir string, slots, slot, tensors int) (*diskBackend, error) {
	if err := replay.MakeDirs(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "kv_offload_rank0.bin")
	if err := replay.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	f, err := replay.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_DIRECT, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(int64(slots) * int64(slot)); err != nil {
		return nil, errors.Join(err, f.Close(), replay.Unlink(path))
	}
	return &diskBackend{f, path, slot, tensors}, nil
}

// pieces cuts a slot into one vector for each tensor.
func (d *diskBackend) pieces(p []byte) [][]byte {
	var parts [][]byte
	for n := len(p) / d.tensors; len(p) > 0; p = p[n:] {
		parts = append(parts, p[:n])
	}
	return parts
}

func (d *diskBackend) store(slot int, p []byte) error {
	return d.file.Pwritev(int64(slot)*int64(d.slot), d.pieces(p)...)
}

func (d *diskBackend) load(slot int, p []byte) error {
	return d.file.Preadv(int64(slot)*int64(d.slot), d.pieces(p)...)
}

// end removes the file while it is open.
func (d *diskBackend) end() error { return errors.Join(replay.Unlink(d.path), d.file.Close()) }
