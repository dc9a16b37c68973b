package lmcache

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// native is one worker of the native file system adapter of the multi-process
// mode: --l2-adapter with type fs_native.
type native struct {
	base   string
	direct bool // use_odirect, where the size allows it
}

// startNative returns a maker of adapters. relative_tmp_dir is tmp.
func startNative(direct bool) replay.Maker {
	return func(base string) (func(int) replay.Engine, error) {
		if err := replay.MakeDirs(base + "/tmp"); err != nil {
			return nil, err
		}
		return func(int) replay.Engine { return &native{base, direct} }, nil
	}
}

// TemplateMP is where an object of the multi-process mode is below the mount, of one worker of one: the
// rank is the number of workers, the worker, and both again for its node.
const TemplateMP = remote + "/" + model + "@0x01000100@{group}@{hash}.data"

// object is the name of an object since June 2026, in the object group of a block.
func object(b replay.Block) string {
	return fmt.Sprintf("%s@0x01000100@%x@%s.data", model, b.Group, b.Hash)
}

// Lookup implements replay.Engine.
func (e *native) Lookup(b replay.Block) bool {
	_, err := replay.Stat(e.base + "/" + object(b))
	return err == nil
}

func (e *native) flag(n int) int {
	if e.direct && n%4096 == 0 {
		return unix.O_DIRECT
	}
	return 0
}

// Load implements replay.Engine: reads until the buffer is full.
func (e *native) Load(b replay.Block, p []byte) error {
	f, err := replay.Open(e.base+"/"+object(b), unix.O_RDONLY|e.flag(len(p)), 0)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", replay.ErrMiss, err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for len(p) > 0 {
		n, err := unix.Read(int(f), p)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			p = p[n:]
		}
	}
	return nil
}

// Store implements replay.Engine. If the object is there, it does nothing. Otherwise it writes until all is written,
// closes the file without a look at the result, and renames it.
func (e *native) Store(b replay.Block, p []byte) error {
	if e.Lookup(b) {
		return nil
	}
	tmp := e.base + "/tmp/" + object(b)
	f, err := replay.Open(tmp, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC|e.flag(len(p)), 0o644)
	if err != nil {
		return err
	}
	for len(p) > 0 && err == nil {
		var n int
		if n, err = unix.Write(int(f), p); err == nil {
			p = p[n:]
		} else if errors.Is(err, unix.EINTR) {
			err = nil
		}
	}
	f.Close()
	if err == nil {
		err = replay.Rename(tmp, e.base+"/"+object(b))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: another server was first
		replay.Unlink(tmp)
		return err
	}
	return nil
}
