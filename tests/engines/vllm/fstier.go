package vllm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// The tree that the tier makes below its root_dir.
const (
	model  = "meta-llama_Llama-3.1-8B-Instruct_c78c9e79d404" // name and digest of the configuration
	runs   = `{"model_name":"meta-llama/Llama-3.1-8B-Instruct","tokens_per_hash":16,"blocks_per_file":1}`
	rootAt = "vllm" // below the mount

	// Template is where a block is below the mount, for kvfs lookup, prefetch
	// and events.
	Template = rootAt + "/" + model + "_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin"
)

// fsTier is one I/O thread of the tier. The suffix of its temporary files is its
// own for as long as it lives.
type fsTier struct {
	root   string
	suffix int64
	direct int // O_DIRECT, or 0
}

// startFS does what the tier does at start, and returns its threads.
func startFS(root string) (func(int) replay.Engine, error) {
	direct, err := begin(root)
	if err != nil {
		return nil, err
	}
	return func(int) replay.Engine {
		return &fsTier{root: root, suffix: rand.Int64(), direct: direct}
	}, nil
}

// begin makes the root and config.json, which another rank may do at the same
// time, and probes O_DIRECT: any error means buffered I/O for the whole run.
func begin(root string) (direct int, err error) {
	dir := filepath.Join(root, model)
	if err := replay.MakeDirs(dir); err != nil {
		return 0, err
	}
	config := filepath.Join(dir, "config.json")
	if !replay.Exists(config) {
		f, err := replay.Open(config, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(f.Write([]byte(runs)), f.Close()); err != nil {
			return 0, err
		}
	}
	probe := fmt.Sprintf("%s/.o_direct_probe_%d.tmp", dir, rand.Int64())
	f, err := replay.Open(probe, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC|unix.O_DIRECT, 0o644)
	if err != nil {
		return 0, nil
	}
	if errors.Join(f.Write(replay.Buffer(4096)), f.Close(), replay.Unlink(probe)) != nil {
		return 0, nil
	}
	return unix.O_DIRECT, nil
}

func (e *fsTier) path(b replay.Block) string {
	return fmt.Sprintf("%s/%s_r0/%s/%s_g%d/%s.bin", e.root, model, b.Hash[:3], b.Hash[3:5], b.Group, b.Hash)
}

// Lookup implements replay.Engine.
func (e *fsTier) Lookup(b replay.Block) bool { return replay.Exists(e.path(b)) }

// Load implements replay.Engine: one read. A file that cannot be opened fails
// the job, and its blocks are computed; one that is too short is removed.
func (e *fsTier) Load(b replay.Block, p []byte) error {
	f, err := replay.Open(e.path(b), unix.O_RDONLY|e.direct, 0)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", replay.ErrMiss, err)
	}
	if err != nil {
		return err
	}
	err = f.Read(p)
	f.Close()
	if err != nil {
		return errors.Join(err, replay.Unlink(e.path(b)))
	}
	return nil
}

// Store implements replay.Engine: nothing if the block is there; else a
// temporary file of this thread, one write, close, rename. After an error the
// temporary file is removed.
func (e *fsTier) Store(b replay.Block, p []byte) error {
	final := e.path(b)
	if replay.Exists(final) {
		return nil
	}
	if err := replay.MakeDirs(filepath.Dir(final)); err != nil {
		return err
	}
	tmp := e.temp(final)
	err := e.write(tmp, p)
	if err == nil {
		err = replay.Rename(tmp, final)
	}
	if err != nil {
		replay.Unlink(tmp)
	}
	return err
}

func (e *fsTier) temp(final string) string { return fmt.Sprintf("%s_%d.tmp", final, e.suffix) }

func (e *fsTier) write(tmp string, p []byte) error {
	f, err := replay.Open(tmp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_TRUNC|e.direct, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Write(p), f.Close())
}
