package suite

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// newMemFile returns an empty tmpfs file without a name.
func newMemFile(t *testing.T) *os.File {
	fd, err := unix.MemfdCreate("tiertest", unix.MFD_CLOEXEC)
	if err != nil {
		// Not Fatal: parallel cases call this from their own goroutines.
		t.Errorf("memfd_create: %v", err)
		return nil
	}
	return os.NewFile(uintptr(fd), "tiertest")
}
