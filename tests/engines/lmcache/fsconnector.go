package lmcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

const (
	model  = "meta-llama-SEP-Llama-3.1-8B-Instruct"
	remote = "lmcache" // base_path of the fs back-end, below the mount

	// Template is where a chunk of the remote back-end is below the mount, of
	// one worker. The hash is the first 16 digits of what the replay has.
	Template = remote + "/" + model + "@1@{rank}@{hash}@bfloat16.data"
)

// headerBytes is what stands before a chunk with save_chunk_meta, the default.
// It makes the size of a file no multiple of the page size.
const headerBytes = 28

// firstRead is what Python's buffered reader asks for before the rest, the least
// st_blksize that it accepts.
const firstRead = 4096

// fsConnector is the remote back-end on a directory. It needs nothing in memory.
type fsConnector struct {
	base, tmp string
	buf       []byte
}

// startFS returns a maker of back-ends; relativeTmp is
// fs_connector_relative_tmp_dir.
func startFS(relativeTmp string) replay.Maker {
	return func(base string) (func(int) replay.Engine, error) {
		tmp := base
		if relativeTmp != "" {
			tmp = base + "/" + relativeTmp
		}
		if err := replay.MakeDirs(tmp); err != nil {
			return nil, err
		}
		return func(int) replay.Engine { return &fsConnector{base: base, tmp: tmp} }, nil
	}
}

func chunk(b replay.Block) string { return fmt.Sprintf("%s@1@0@%s@bfloat16", model, b.Hash[:16]) }

// Lookup implements replay.Engine: os.path.exists.
func (e *fsConnector) Lookup(b replay.Block) bool {
	_, err := replay.Stat(e.base + "/" + chunk(b) + ".data")
	return err == nil
}

func (e *fsConnector) buffer(n int) []byte {
	if len(e.buf) < n {
		e.buf = make([]byte, n)
	}
	return e.buf[:n]
}

// Load implements replay.Engine: the first 4096 bytes, then the rest.
func (e *fsConnector) Load(b replay.Block, p []byte) error {
	f, err := replay.Open(e.base+"/"+chunk(b)+".data", unix.O_RDONLY, 0)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", replay.ErrMiss, err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Size(); err != nil || f.Terminal() {
		return errors.Join(err, errors.New("no regular file"))
	}
	f.Seek(0, unix.SEEK_CUR)
	buf := e.buffer(headerBytes + len(p))
	if err := f.Read(buf[:firstRead]); err != nil {
		return err
	}
	if err := f.Read(buf[firstRead:]); err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(buf); n != uint64(len(p)) {
		return fmt.Errorf("the header says %d bytes, want %d", n, len(p))
	}
	copy(p, buf[headerBytes:])
	return nil
}

// putting has the chunks that this process is storing: RemoteBackend keeps put_tasks, and
// leaves out what is among them.
var putting sync.Map

// Store implements replay.Engine. It does not check whether the chunk is there. Its temporary
// name is the same in all processes: the second of two to rename finds nothing to rename.
func (e *fsConnector) Store(b replay.Block, p []byte) error {
	name := chunk(b)
	if _, busy := putting.LoadOrStore(name, nil); busy {
		return nil
	}
	defer putting.Delete(name)
	tmp := e.tmp + "/" + name + ".data"
	if e.tmp == e.base {
		tmp = e.base + "/" + name + ".tmp"
	}
	if err := e.write(tmp, p); err != nil {
		replay.Unlink(tmp)
		return err
	}
	err := replay.Rename(tmp, e.base+"/"+name+".data")
	if errors.Is(err, unix.ENOENT) {
		return nil // logged; the other process has stored the same
	}
	return err
}

func (e *fsConnector) write(tmp string, p []byte) error {
	f, err := replay.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	f.Terminal()
	var header [headerBytes]byte
	binary.LittleEndian.PutUint64(header[:], uint64(len(p)))
	err = f.Write(header[:])
	if err == nil {
		err = f.Write(p)
	}
	return errors.Join(err, f.Close())
}
