package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestStatusOfSilentDaemon shows that a daemon that never answers costs no more
// than the timeout. A FIFO without a writer never answers either.
func TestStatusOfSilentDaemon(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, ".kvfs"), 0o700))
	fifo := filepath.Join(dir, ".kvfs", "status")
	must(t, unix.Mkfifo(fifo, 0o600))
	_, err := Status(dir, time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "has not answered for 1ms") || exit.Code(err) != exit.Runtime {
		t.Errorf("got %v", err)
	}
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0) // lets the reader go
	must(t, err)
	w.Close()
}

// TestStatusOfDeadDaemon shows what the errors of a dead mount become.
func TestStatusOfDeadDaemon(t *testing.T) {
	err := Explain("/m", &os.PathError{Op: "open", Path: "/m/.kvfs/status", Err: unix.ENOTCONN})
	if exit.Code(err) != exit.NotMount || err.Error() != "the daemon of /m is dead. kvfs mount /m, with the settings it had, starts it again with its blocks. kvfs umount /m gives them up" {
		t.Errorf("got %v, code %d", err, exit.Code(err))
	}
	if err := Explain("/m", unix.EACCES); !errors.Is(err, unix.EACCES) || exit.Code(err) != exit.Runtime {
		t.Errorf("got %v, code %d", err, exit.Code(err))
	}
}
