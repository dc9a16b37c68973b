package fs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// held is what a client keeps open.
var held *os.File

// clientHeldOp is clientOp of what changes names, and of what a client keeps open.
func clientHeldOp(op, path string) (err error) {
	first, rest, _ := strings.Cut(path, " ")
	switch op {
	case "unlink":
		return unix.Unlink(path)
	case "rename":
		return unix.Rename(first, rest)
	case "chmod":
		return os.Chmod(path, 0o600)
	case "is-private":
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Mode&0o777 != 0o600 {
			return fmt.Errorf("mode %o, %v", st.Mode, err)
		}
		return nil
	case "put":
		return os.WriteFile(rest, []byte(first), 0o644)
	case "get":
		got, err := os.ReadFile(rest)
		if err == nil && string(got) != first {
			err = fmt.Errorf("read %.20q", got)
		}
		return err
	case "open":
		held, err = os.Open(path)
		return err
	case "create":
		held, err = os.Create(path)
		return err
	case "read-held":
		buf := make([]byte, len(clientBytes))
		if n, err := held.ReadAt(buf, 0); err != nil || !bytes.Equal(buf[:n], clientBytes) {
			return fmt.Errorf("%d bytes, %v", n, err)
		}
		return nil
	case "write-held":
		_, err = held.Write(clientBytes)
		return err
	case "close-held":
		return held.Close()
	case "list-held":
		_, err = held.Readdirnames(-1)
		return err
	case "list":
		_, err = os.ReadDir(path)
		return err
	case "in-place":
		return inPlace(path)
	}
	return unix.ENOSYS
}

// inPlace has a block open in each way that does not empty it, changes and extends it, and fails if any of
// them sees other bytes than the others.
func inPlace(path string) error {
	var files []*os.File
	for _, flags := range []int{os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDONLY} {
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	if _, err := files[1].WriteAt([]byte("KVFS"), 4); err != nil {
		return err
	}
	if _, err := files[2].WriteString("more"); err != nil {
		return err
	}
	if _, err := files[1].WriteAt([]byte("M"), int64(len(clientBytes))); err != nil {
		return err
	}
	want := bytes.Clone(clientBytes)
	copy(want[4:], "KVFS")
	want = append(want, "More"...)
	for i, f := range files {
		got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
		if st, serr := f.Stat(); err != nil || serr != nil || !bytes.Equal(got, want) || st.Size() != int64(len(want)) {
			return fmt.Errorf("descriptor %d: %d bytes, %v; %v", i, len(got), err, serr)
		}
	}
	return nil
}
