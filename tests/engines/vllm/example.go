package vllm

import (
	"crypto/md5"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// exampleConnector keeps a directory for each prompt, with a file for each
// layer. It looks for the directory only, and does not survive a file that is
// missing in it.
type exampleConnector struct {
	root   string // shared_storage_path
	layers int
	bytes  int // of a layer
}

func (e exampleConnector) dir(prompt int) string {
	return filepath.Join(e.root, fmt.Sprintf("%x", md5.Sum(fmt.Append(nil, prompt))))
}

func (e exampleConnector) file(prompt, layer int) string {
	return fmt.Sprintf("%s/model.layers.%d.self_attn.attn.safetensors", e.dir(prompt), layer)
}

func (e exampleConnector) exists(prompt int) bool { return replay.Exists(e.dir(prompt)) }

// save makes the directory and writes each layer as safetensors does: a
// temporary file of mode 0600, its size, pieces of 1 MiB, rename.
func (e exampleConnector) save(prompt int) error {
	if err := replay.MakeDirs(e.dir(prompt)); err != nil {
		return err
	}
	p := make([]byte, e.bytes)
	for layer := range e.layers {
		file := e.file(prompt, layer)
		replay.Fill(p, filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file)))
		if err := saveTensors(file, p); err != nil {
			return err
		}
	}
	return nil
}

func saveTensors(final string, p []byte) error {
	tmp := fmt.Sprintf("%s/.tmp%06x", filepath.Dir(final), rand.Uint32()&0xffffff)
	f, err := replay.Open(tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(int64(len(p)))
	for rest := p; err == nil && len(rest) > 0; {
		n := min(len(rest), 1<<20)
		err = f.Write(rest[:n])
		rest = rest[n:]
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = replay.Rename(tmp, final)
	}
	if err != nil {
		replay.Unlink(tmp)
	}
	return err
}

// load maps each layer privately and looks at all of it.
func (e exampleConnector) load(prompt int) error {
	for layer := range e.layers {
		file := e.file(prompt, layer)
		if err := loadTensors(file, e.bytes); err != nil {
			return fmt.Errorf("prompt %d, layer %d: %w", prompt, layer, err)
		}
	}
	return nil
}

func loadTensors(file string, want int) error {
	f, err := replay.Open(file, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := f.Size(); err != nil || n != int64(want) {
		return fmt.Errorf("size %d, %v; want %d", n, err, want)
	}
	m, err := f.Map(want, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer replay.Unmap(m)
	return replay.Check(m, filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file)))
}
