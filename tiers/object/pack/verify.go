package pack

import (
	"bufio"
	"errors"
	"io"

	"github.com/kvfs/kvfs/tiers/block"
)

// verifyBytes is how much Verify reads at a time: enough that a request of a bucket for each costs little.
const verifyBytes = 8 << 20

// Verify reads the pack n of this size and checks everything. It calls fn for each block, with an
// error that says what is wrong with it, or nil, until fn returns false.
//
// Verify fails with ErrCorrupt or a VersionError if footer or index are not good, before fn is
// called. It fails with an error of r, if r cannot be read.
func Verify(r io.ReaderAt, n Name, size int64, fn func(e *Entry, err error) bool) error {
	tailBytes, err := n.TailBytes(size)
	if err != nil {
		return err
	}
	tail := make([]byte, tailBytes)
	if _, err := r.ReadAt(tail, n.Index); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	frames := bufio.NewReaderSize(io.NewSectionReader(r, 0, n.Index), int(min(verifyBytes, n.Index)))
	var failed error
	err = ReadIndex(n, tail, func(e *Entry) bool {
		var bad error
		if bad, failed = verifyFrame(frames, e); failed != nil {
			return false
		}
		return fn(e, bad)
	})
	return errors.Join(err, failed)
}

// verifyFrame reads the frame of e, with the zeros after it. bad is what is wrong with the block.
func verifyFrame(r *bufio.Reader, e *Entry) (bad, failed error) {
	head := make([]byte, HeaderBytes+len(e.Path))
	if _, failed := io.ReadFull(r, head); failed != nil {
		return nil, failed
	}
	sum := block.NewChecksum()
	if _, failed := io.CopyN(sum, r, e.Size); failed != nil {
		return nil, failed
	}
	padding := make([]byte, PaddedBytes(len(e.Path), e.Size, e.Attrs.User)-FrameBytes(e.Path, e.Size))
	if _, failed := io.ReadFull(r, padding); failed != nil {
		return nil, failed
	}
	h, err := CheckFrame(head, e.Path)
	a := &e.Attrs
	want := Header{Seq: a.Seq, Size: e.Size, Sum: e.Sum, Mtime: a.Mtime, Mode: a.Mode, UID: a.UID, GID: a.GID, User: len(a.User)}
	switch {
	case err != nil:
		return err, nil
	case h != want:
		return corrupt("frame", "it differs from the index"), nil
	case sum.Sum64() != e.Sum.Sum:
		return corrupt("frame", "checksum of the data"), nil
	}
	user := UserBytes(len(a.User))
	if got, err := CheckUser(padding[:user]); user > 0 && (err != nil || got != a.User) {
		return corrupt("frame", "its attributes differ from the index"), nil
	}
	for _, c := range padding[user:] {
		if c != 0 {
			return corrupt("frame", "bytes after it"), nil
		}
	}
	return nil, nil
}
