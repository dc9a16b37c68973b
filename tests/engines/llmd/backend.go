package llmd

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

const (
	model  = "meta-llama_Llama-3.1-8B-Instruct_0123456789ab"
	shared = "llm-d" // shared_storage_path, below the mount

	// Template is where a file is below the mount.
	Template = shared + "/" + model + "_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin"
)

// backend is one I/O thread of the file system back-end.
type backend struct {
	root   string
	suffix uint32 // of its temporary files
}

func start(root string) (func(int) replay.Engine, error) {
	if err := replay.MakeDirs(root + "/" + model); err != nil {
		return nil, err
	}
	return func(int) replay.Engine { return &backend{root, rand.Uint32()} }, nil
}

func (e *backend) path(b replay.Block) string {
	return fmt.Sprintf("%s/%s_r0/%s/%s_g%d/%s.bin", e.root, model, b.Hash[:3], b.Hash[3:5], b.Group, b.Hash)
}

// Lookup implements replay.Engine: os.path.exists.
func (e *backend) Lookup(b replay.Block) bool {
	_, err := replay.Stat(e.path(b))
	return err == nil
}

// Load implements replay.Engine. No error is a miss: a job that fails is
// reported as done, and the model goes on with what is in its memory.
func (e *backend) Load(b replay.Block, p []byte) error { return e.loadTail(b, p) }

// loadTail reads the end of the file, as much as p holds: of a file that has the
// blocks of several, a request may want the last ones only.
func (e *backend) loadTail(b replay.Block, p []byte) error {
	f, err := replay.Open(e.path(b), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, unix.SEEK_END)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, unix.SEEK_CUR); err != nil {
		return err
	}
	if size < int64(len(p)) {
		return io.ErrUnexpectedEOF
	}
	if _, err := f.Seek(size-int64(len(p)), unix.SEEK_SET); err != nil {
		return err
	}
	return f.Read(p)
}

// Store implements replay.Engine. If the file is there, it touches it. Otherwise it writes a temporary file with one
// writev, whose first part is empty, and renames it while it is still open. It ignores the result of close. If the
// write fails, the temporary file stays.
func (e *backend) Store(b replay.Block, p []byte) error {
	final := e.path(b)
	if f, err := replay.Open(final, unix.O_RDONLY, 0); err == nil {
		f.Close()
		return replay.Touch(final)
	}
	if err := replay.MakeDirs(filepath.Dir(final)); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s_%d.tmp", final, e.suffix)
	f, err := replay.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Writev(nil, p); err != nil {
		return errors.Join(fmt.Errorf("writev %s", tmp), err)
	}
	return replay.Rename(tmp, final)
}
