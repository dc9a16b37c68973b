package grave

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/tiers/block"
)

// The file begins with magic. Records follow: the length of a wire.Grave and
// its CRC-32C, each 4 bytes, little endian, then the wire.Grave. The last whole record ends
// the file.
const (
	magic     = "kvfs-graves 1\n"
	headBytes = 8
	maxFrame  = block.MaxPath + 64 // bytes of a record without length and CRC

	// slack is how many bytes the file may grow beyond the needed ones before it is
	// rewritten.
	slack = 4 << 20
	// syncEvery is the shortest time between two syncs of the file.
	syncEvery = time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// File keeps the graves of a node for its next process. Its methods are called one after the other,
// other than Told.
type File struct {
	index   *location.Index
	path    string
	file    *os.File
	wake    chan struct{} // capacity 1: the file lacks a grave
	mark    int64         // graves learned before this time are in the file
	written int64         // bytes in the file
	needed  int64         // bytes in the file after the last rewrite
	dirty   bool          // has bytes that are not synced
}

// NewFile returns the file at path, which is not opened yet.
func NewFile(path string) *File { return &File{path: path, wake: make(chan struct{}, 1)} }

// Told reports a new grave in the index. It does not block, and may be called in parallel with
// everything.
func (g *File) Told() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Open enters the graves of the file into index and opens the file for new ones. It makes a file
// that is not there. After an error the File does nothing.
func (g *File) Open(index *location.Index) error {
	g.index = index
	f, err := os.OpenFile(g.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	whole, err := g.read(bufio.NewReaderSize(f, 1<<16))
	if err == nil && whole == 0 {
		_, err = f.WriteAt([]byte(magic), 0)
		whole = int64(len(magic))
	}
	if err == nil {
		err = f.Truncate(whole) // a process ended while it was writing the rest
	}
	if err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	g.file, g.written, g.needed = f, whole, whole
	g.index.Graves(0, func(l location.Grave) bool { g.mark = max(g.mark, l.Learned); return true })
	return nil
}

// read enters the graves of the file into the index. It returns how many bytes of the file are
// whole records; 0 for a new file.
func (g *File) read(r io.Reader) (whole int64, err error) {
	begin := make([]byte, len(magic))
	switch _, err := io.ReadFull(r, begin); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil
	case err != nil:
		return 0, err
	case string(begin) != magic:
		return 0, fmt.Errorf("%s: not a file of removals, or one of another version", g.path)
	}
	whole = int64(len(magic))
	head, frame := make([]byte, headBytes), make([]byte, maxFrame)
	for {
		if _, err := io.ReadFull(r, head); err != nil {
			break
		}
		size := binary.LittleEndian.Uint32(head)
		if size > maxFrame {
			break
		}
		if _, err := io.ReadFull(r, frame[:size]); err != nil {
			break
		}
		if crc32.Checksum(frame[:size], castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
			break
		}
		var w wire.Grave
		if proto.Unmarshal(frame[:size], &w) == nil {
			g.enter(&w)
		}
		whole += headBytes + int64(size)
	}
	return whole, nil
}

func (g *File) enter(w *wire.Grave) {
	path := string(w.GetPath())
	if _, err := block.ParseKey(path); err == nil && w.GetSeq() <= block.MaxSeq {
		g.index.Bury(location.HashPath(path), w.GetSeq(), w.GetDir(), path, w.GetAt())
	}
}

// Keep writes new graves to the file until ctx ends. It fails if the file cannot be written; then
// the File does nothing any more.
func (g *File) Keep(ctx context.Context) error {
	if g.file == nil {
		return nil
	}
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case <-g.wake:
			err = g.append()
		case <-tick.C:
			err = g.sync()
		case <-ctx.Done():
			return nil // Close writes the rest
		}
	}
	err = errors.Join(err, g.file.Close())
	g.file = nil
	return err
}

// Close writes the graves that the file lacks. Nothing may use the File after it.
func (g *File) Close() error {
	if g.file == nil {
		return nil
	}
	return errors.Join(g.append(), g.sync(), g.file.Close())
}

func (g *File) sync() error {
	if !g.dirty {
		return nil
	}
	g.dirty = false
	return g.file.Sync()
}

// append writes the graves that the file lacks. It rewrites the file if that has become much
// longer than needed.
func (g *File) append() error {
	if g.written > 2*g.needed+slack {
		return g.rewrite()
	}
	return g.write(g.file, g.mark)
}

// rewrite replaces the file by one with only the graves that still count.
func (g *File) rewrite() (err error) {
	tmp := g.path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(magic)
	g.written = int64(len(magic))
	if err == nil {
		err = g.write(f, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(tmp, g.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(tmp))
	}
	old := g.file
	g.file, g.needed = f, g.written
	return old.Close()
}

// write writes the graves learned at or after the time since.
func (g *File) write(f *os.File, since int64) error {
	w := bufio.NewWriterSize(f, 1<<16)
	var err error
	g.index.Graves(since, func(l location.Grave) bool {
		var frame []byte
		if frame, err = proto.Marshal(&wire.Grave{Path: []byte(l.Path), Dir: l.Dir, Seq: l.Seq, At: l.At}); err != nil {
			return false
		}
		var head [headBytes]byte
		binary.LittleEndian.PutUint32(head[:], uint32(len(frame)))
		binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(frame, castagnoli))
		w.Write(head[:]) // Flush returns its error
		w.Write(frame)
		g.written += headBytes + int64(len(frame))
		g.mark, g.dirty = max(g.mark, l.Learned), true
		return true
	})
	return errors.Join(err, w.Flush())
}
