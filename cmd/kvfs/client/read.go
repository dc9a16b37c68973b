package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/tiers/block"
)

// Status reads the status document of the mount at dir, for at most timeout. It explains its errors.
func Status(dir string, timeout time.Duration) ([]byte, error) {
	text, err := Read(dir, "status", timeout)
	return text, Explain(dir, err)
}

// staleTries bounds the opens of a control file while another daemon takes the mount over.
const staleTries = 5

// Read reads a control file of the mount at dir. It fails with mounts.ErrSilent if the daemon
// does not answer within timeout.
func Read(dir, name string, timeout time.Duration) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	// Ends with the read; if the daemon never answers, with the process.
	go func() {
		var r result
		for range staleTries {
			r.text, r.err = os.ReadFile(filepath.Join(dir, block.Reserved, name))
			if !errors.Is(r.err, unix.ESTALE) {
				break
			}
		}
		done <- r
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-time.After(timeout):
		return nil, fmt.Errorf("%s: %w for %v", dir, mounts.ErrSilent, timeout)
	}
}

// Explain turns an error of reading the status file into one about dir.
func Explain(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case mounts.Dead(err):
		return exit.With(exit.NotMount, errors.New(mounts.DeadText(dir)))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		if _, statErr := os.Stat(dir); statErr != nil {
			return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount: %w", dir, errors.Unwrap(statErr)))
		}
		return exit.With(exit.NotMount, fmt.Errorf("%s is not a kvfs mount", dir))
	}
	return err
}

// OwnerStatus asks the owner at a socket for its status document.
func OwnerStatus(ctx context.Context, socket string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := handoff.Dial(ctx, socket)
	if err != nil {
		if errors.Is(err, handoff.ErrNoOwner) {
			err = exit.With(exit.NotMount, err)
		}
		return nil, err
	}
	return c.Status(ctx)
}
