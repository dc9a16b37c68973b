package guest

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// Types of files, as in st_mode.
const (
	typeDir     = 0o040000
	typeRegular = 0o100000
	typeLink    = 0o120000
)

// archive writes the format of initial RAM disks: cpio, "newc". The kernel takes several,
// one after the other, as one. Not for parallel use.
type archive struct {
	w       io.Writer
	inode   int
	written map[string]bool // names of directories
}

func newArchive(w io.Writer) *archive { return &archive{w: w, written: map[string]bool{}} }

// add writes an entry with the directories that it is in. name has no slash in front.
func (a *archive) add(name string, mode uint32, size int64, content io.Reader) error {
	if dir := path.Dir(name); dir != "." {
		if err := a.dir(dir); err != nil {
			return err
		}
	}
	return a.entry(name, mode, size, content)
}

// dir writes a directory, once.
func (a *archive) dir(name string) error {
	if a.written[name] {
		return nil
	}
	a.written[name] = true
	return a.add(name, typeDir|0o755, 0, nil)
}

// entry writes a header, the name and size bytes of content, the last two padded.
func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) error {
	if size > 1<<32-1 {
		return fmt.Errorf("%s: %d bytes are too many for a RAM disk", name, size)
	}
	a.inode++
	// Inode, mode, user, group, links, time, size, four of devices, length of name, sum.
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	if err := a.padded(header + name + "\x00"); err != nil {
		return err
	}
	if size == 0 {
		return nil
	}
	if n, err := io.Copy(a.w, io.LimitReader(content, size)); err != nil {
		return err
	} else if n != size {
		return fmt.Errorf("%s: %d bytes of %d", name, n, size)
	}
	_, err := a.w.Write(make([]byte, -size&3))
	return err
}

func (a *archive) padded(s string) error {
	_, err := io.WriteString(a.w, s+"\x00\x00\x00"[:-len(s)&3])
	return err
}

// link writes a symbolic link.
func (a *archive) link(name, target string) error {
	return a.add(name, typeLink|0o777, int64(len(target)), strings.NewReader(target))
}

// close ends the archive.
func (a *archive) close() error { return a.entry("TRAILER!!!", 0, 0, nil) }
