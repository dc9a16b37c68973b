package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
)

// TestMountOnce shows that of several processes that come to mount at one place at the same
// time one does.
func TestMountOnce(t *testing.T) {
	needMount(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	sessions := make(chan *device.Session, 8)
	for range cap(sessions) {
		wg.Go(func() {
			err := mountOnce(t.Context(), dir, func() error {
				session, err := device.OpenSession(device.MountOptions{Dir: dir, FSName: "kvfs", MaxWrite: 1 << 20})
				if err == nil {
					sessions <- session
				}
				return err
			})
			if err != nil && !strings.Contains(err.Error(), "serves it already") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(sessions)
	if len(sessions) != 1 {
		t.Errorf("%d mounts", len(sessions))
	}
	for session := range sessions {
		check(t, session.Unmount())
		check(t, session.Close())
	}
}

// TestMountLocked shows that a lock of somebody else on the mount point does not keep a mount
// from ending, nor for long from mounting.
func TestMountLocked(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_SH); err != nil {
		t.Skipf("flock: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	called := false
	mount := func() error { called = true; return nil }
	if err := mountOnce(ended, dir, mount); !errors.Is(err, context.Canceled) || called {
		t.Errorf("a mount that is to end: got %v, mounted %t", err, called)
	}
	if err := mountOnce(t.Context(), dir, mount); err != nil || !called {
		t.Errorf("got %v, mounted %t", err, called)
	}
}
