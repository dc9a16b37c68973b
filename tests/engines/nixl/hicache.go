package nixl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

const (
	model   = "meta-llama-Llama-3.1-8B-Instruct"
	storage = "hicache" // SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR, below the mount

	// Template is where the half of a page is below the mount; the group is k
	// or v. The directory is two digits that follow from the key; here they
	// are the first two of the hash.
	Template = storage + "/{hash:0:2}/{hash}_" + model + "_{rank}_1_{group}"
)

// hicache is SGLang's HiCache with the NIXL back-end and zero copy: each page is
// two files, written in place.
type hicache struct {
	dir string
	aio queue
}

var halves = [2]string{"k", "v"}

// startHicache makes the 256 directories that all files are in.
func startHicache(dir string) (func(int) replay.Engine, error) {
	for i := range 256 {
		if err := replay.MakeDirs(fmt.Sprintf("%s/%02x", dir, i)); err != nil {
			return nil, err
		}
	}
	return func(int) replay.Engine { return &hicache{dir: dir} }, nil
}

func (e *hicache) path(b replay.Block) string {
	return fmt.Sprintf("%s/%s/%s_%s_0_1_%s", e.dir, b.Hash[:2], b.Hash, model, halves[b.Group])
}

// Lookup implements replay.Engine: query_memory, which is a stat.
func (e *hicache) Lookup(b replay.Block) bool {
	_, err := replay.Stat(e.path(b))
	return err == nil
}

// Load implements replay.Engine. It opens for writing, too, as the plugin does
// with descriptors.
func (e *hicache) Load(b replay.Block, p []byte) error {
	f, err := replay.Open(e.path(b), unix.O_RDWR|unix.O_DIRECT, 0)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", replay.ErrMiss, err)
	}
	if err != nil {
		return err
	}
	return errors.Join(e.aio.do(split(f, false, p)), f.Close())
}

// Store implements replay.Engine: no temporary file, no O_TRUNC, no rename.
func (e *hicache) Store(b replay.Block, p []byte) error {
	f, err := replay.Open(e.path(b), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(e.aio.do(split(f, true, p)), f.Close())
}
