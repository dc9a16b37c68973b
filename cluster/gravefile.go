package cluster

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/tiers/block"
)

// The file of graves begins with graveMagic. Records follow: the length of a wire.Grave and
// its CRC-32C, each 4 bytes, little endian, then the wire.Grave. The last whole record ends
// the file.
const (
	graveMagic    = "kvfs-graves 1\n"
	graveHead     = 8
	maxGraveFrame = block.MaxPath + 64 // bytes of a record without length and CRC

	// graveSlack is how many bytes the file may grow beyond the needed ones before it is
	// rewritten.
	graveSlack = 4 << 20
	// graveSync is the shortest time between two syncs of the file.
	graveSync = time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// graveFile keeps the graves of a node for its next process. Open uses it first, then the
// goroutine of keepGraves, then Close. All of them use wake.
type graveFile struct {
	n       *Node
	path    string
	file    *os.File
	wake    chan struct{} // capacity 1: the file lacks a grave
	mark    int64         // graves learned before this time are in the file
	written int64         // bytes in the file
	needed  int64         // bytes in the file after the last rewrite
	dirty   bool          // has bytes that are not synced
}

// openGraves enters the graves of the file into the index and opens the file for new ones.
// Without a file the node still works, but its next process does not know the removals.
func (n *Node) openGraves() {
	if n.o.GraveFile == "" {
		return
	}
	if err := n.graveFile.open(); err != nil {
		n.log.Warn("file of removals cannot be used: a restart of this node forgets them", zap.String("file", n.o.GraveFile), zap.Error(err))
	}
}

// told reports a new grave. It does not block.
func (g *graveFile) told() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *graveFile) open() error {
	f, err := os.OpenFile(g.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	whole, err := g.read(bufio.NewReaderSize(f, 1<<16))
	if err == nil && whole == 0 {
		_, err = f.WriteAt([]byte(graveMagic), 0)
		whole = int64(len(graveMagic))
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
	g.n.index.Graves(0, func(l location.Grave) bool { g.mark = max(g.mark, l.Learned); return true })
	return nil
}

// read enters the graves of the file into the index. It returns how many bytes of the file are
// whole records; 0 for a new file.
func (g *graveFile) read(r io.Reader) (whole int64, err error) {
	magic := make([]byte, len(graveMagic))
	switch _, err := io.ReadFull(r, magic); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil
	case err != nil:
		return 0, err
	case string(magic) != graveMagic:
		return 0, fmt.Errorf("%s: not a file of removals, or one of another version", g.path)
	}
	whole = int64(len(graveMagic))
	head, frame := make([]byte, graveHead), make([]byte, maxGraveFrame)
	for {
		if _, err := io.ReadFull(r, head); err != nil {
			break
		}
		size := binary.LittleEndian.Uint32(head)
		if size > maxGraveFrame {
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
		whole += graveHead + int64(size)
	}
	return whole, nil
}

func (g *graveFile) enter(w *wire.Grave) {
	path := string(w.GetPath())
	if _, err := block.ParseKey(path); err == nil && w.GetSeq() <= LatestVersion(time.Now()) {
		g.n.index.Bury(location.HashPath(path), w.GetSeq(), w.GetDir(), path, w.GetAt())
	}
}

// buryAgain has the backend drop what the graves of the file make void: its devices may have
// brought it back.
func (n *Node) buryAgain() {
	n.index.Graves(0, func(g location.Grave) bool {
		n.observe(g.Seq)
		n.bury(g.Path, g.Dir, g.Seq)
		return true
	})
}

// keepGraves writes new graves to the file until the node closes.
func (n *Node) keepGraves() {
	g := n.graveFile
	if g.file == nil {
		return
	}
	tick := time.NewTicker(graveSync)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case <-g.wake:
			err = g.append()
		case <-tick.C:
			err = g.sync()
		case <-n.ctx.Done():
			return // close writes the rest
		}
	}
	n.log.Error("file of removals cannot be written any more: a restart of this node forgets them", zap.String("file", g.path),
		zap.Error(errors.Join(err, g.file.Close())))
	g.file = nil
}

// close writes the graves that the file lacks. Nothing may use the file after it.
func (g *graveFile) close() error {
	if g.file == nil {
		return nil
	}
	return errors.Join(g.append(), g.sync(), g.file.Close())
}

func (g *graveFile) sync() error {
	if !g.dirty {
		return nil
	}
	g.dirty = false
	return g.file.Sync()
}

// append writes the graves that the file lacks. It rewrites the file if that has become much
// longer than needed.
func (g *graveFile) append() error {
	if g.written > 2*g.needed+graveSlack {
		return g.rewrite()
	}
	return g.write(g.file, g.mark)
}

// rewrite replaces the file by one with only the graves that still count.
func (g *graveFile) rewrite() (err error) {
	tmp := g.path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(graveMagic)
	g.written = int64(len(graveMagic))
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
func (g *graveFile) write(f *os.File, since int64) error {
	w := bufio.NewWriterSize(f, 1<<16)
	var err error
	g.n.index.Graves(since, func(l location.Grave) bool {
		var frame []byte
		if frame, err = proto.Marshal(&wire.Grave{Path: []byte(l.Path), Dir: l.Dir, Seq: l.Seq, At: l.At}); err != nil {
			return false
		}
		var head [graveHead]byte
		binary.LittleEndian.PutUint32(head[:], uint32(len(frame)))
		binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(frame, castagnoli))
		w.Write(head[:]) // Flush returns its error
		w.Write(frame)
		g.written += graveHead + int64(len(frame))
		g.mark, g.dirty = max(g.mark, l.Learned), true
		return true
	})
	return errors.Join(err, w.Flush())
}
