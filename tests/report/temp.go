package main

import (
	"bufio"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// scratch is the TMPDIR of the runs. What a killed test or the go command leaves in it goes with it.
type scratch struct {
	dir  string
	lock *os.File
}

// newScratch makes the directory. Its name is the same in each run of a checkout, because the go command does not use
// the cached result of a test that saw another TMPDIR. A second run at the same time gets a name of its own.
func newScratch() (*scratch, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	sum := fnv.New32a()
	fmt.Fprint(sum, os.Getuid(), cwd)
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("kvfs-%08x", sum.Sum32()))
	s, err := lockScratch(dir)
	if errors.Is(err, unix.EWOULDBLOCK) {
		if dir, err = os.MkdirTemp("", "kvfs-"); err == nil {
			s, err = lockScratch(dir)
		}
	}
	if err != nil {
		return nil, err
	}
	return s, os.Setenv("TMPDIR", s.dir)
}

// lockScratch makes dir and locks it. Tests that run as another user make files in it, too.
func lockScratch(dir string) (*scratch, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := f.Chmod(0o777 | os.ModeSticky); err != nil {
		f.Close()
		return nil, err
	}
	return &scratch{dir: dir, lock: f}, nil
}

// remove unmounts what is mounted below the directory, deepest first, and removes it.
func (s *scratch) remove() error {
	defer s.lock.Close()
	for _, at := range slices.Backward(mountsBelow(s.dir)) {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return os.RemoveAll(s.dir)
}

// mountsBelow returns the mount points below dir, in the order in which they were mounted.
func mountsBelow(dir string) []string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	var found []string
	for scan := bufio.NewScanner(f); scan.Scan(); {
		if fields := strings.Fields(scan.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found
}
