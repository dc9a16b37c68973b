package main

import (
	"strings"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/fs"
)

// TestMountOnce shows that of several processes that come to mount at one place at the same
// time one does (B1).
func TestMountOnce(t *testing.T) {
	needMount(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	sessions := make(chan *fs.Session, 8)
	for range cap(sessions) {
		wg.Go(func() {
			err := mountOnce(dir, func() error {
				session, err := fs.OpenSession(fs.MountOptions{Dir: dir, FSName: "kvfs", MaxWrite: 1 << 20})
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
		if err := session.Unmount(); err != nil {
			t.Error(err)
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
}
