package mem

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
)

// setupWait bounds how long Close, List and Discard wait for a process that attaches, lists or removes a store.
const setupWait = 30 * time.Second

// Info describes a store of this machine.
type Info struct {
	ID      string
	Dir     string
	Label   string // Options.Label of the process that made it
	UID     int    // of the directory
	PID     int    // that opened it last; 0 if unknown
	Alive   bool   // a process has it open, so it cannot be discarded
	Mounted bool   // a tmpfs of its own
	Bytes   int64  // memory that its files take
	Problem string // damage of its kvfs-memory; Open would discard it
}

// List returns the stores in the usual places, those of Options with an empty Dir. It covers every
// user whose stores we may read. If it cannot read some, it returns their errors and the others.
func List() ([]Info, error) {
	found, err := filepath.Glob(shmPrefix + "[0-9]*")
	if err != nil {
		return nil, err
	}
	parents := []string{runBase}
	for _, path := range found {
		if uid, err := strconv.Atoi(strings.TrimPrefix(path, shmPrefix)); err == nil && path == shmBase(uid) {
			parents = append(parents, path) // other entries of /dev/shm are not ours
		}
	}
	return list(parents)
}

func list(parents []string) ([]Info, error) {
	var infos []Info
	var errs []error
	for _, path := range parents {
		some, err := listParent(path)
		if err != nil && !errors.Is(err, iofs.ErrNotExist) && !errors.Is(err, iofs.ErrPermission) {
			errs = append(errs, err)
		}
		infos = append(infos, some...)
	}
	return infos, errors.Join(errs...)
}

func listParent(path string) ([]Info, error) {
	ctx, cancel := context.WithTimeout(context.Background(), setupWait)
	defer cancel()
	parent, err := openParent(ctx, place{parent: path, own: true}, false, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	names, err := parent.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var infos []Info
	var errs []error
	for _, name := range names {
		info, err := inspect(parent, name)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, iofs.ErrNotExist) {
			continue // not a store, such as a socket; a store cannot go under the setup lock
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		infos = append(infos, info)
	}
	return infos, errors.Join(errs...)
}

// inspect describes the store name below parent. The caller holds the setup lock of parent, so no
// Open finds the store's own lock taken by inspect.
func inspect(parent *os.File, name string) (Info, error) {
	in := Info{ID: name, Dir: filepath.Join(parent.Name(), name)}
	root, err := openDirAt(parent, name, in.Dir)
	if err != nil {
		return in, err
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return in, &os.PathError{Op: "stat", Path: in.Dir, Err: err}
	}
	in.UID = int(st.Uid)
	in.Mounted = ownMount(root)
	if f, err := readFormat(root); err == nil {
		in.ID, in.Label = f.id, f.label
	} else {
		in.Problem = err.Error()
	}
	lock, err := openLock(root, unix.O_RDONLY)
	var busy *BusyError
	switch {
	case err == nil:
		in.PID = lockPID(lock)
		lock.Close()
	case errors.As(err, &busy):
		in.PID, in.Alive = busy.PID, true
	case !errors.Is(err, iofs.ErrNotExist):
		return in, err
	}
	in.Bytes, err = usedBytes(root, in.Mounted)
	return in, err
}

// usedBytes returns the memory of a store. It walks the store if that has no file system of its
// own.
func usedBytes(root *os.File, mounted bool) (int64, error) {
	if mounted {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
			return 0, &os.PathError{Op: "statfs", Path: root.Name(), Err: err}
		}
		return int64(st.Blocks-st.Bfree) * st.Bsize, nil
	}
	dir, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", root.Fd()))
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var sum int64
	err = iofs.WalkDir(dir.FS(), ".", func(path string, d iofs.DirEntry, err error) error {
		if errors.Is(err, iofs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if errors.Is(err, iofs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		sum += fi.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	return sum, err
}

// Discard removes the store at dir, with its mount. It fails with *BusyError if a process has it
// open, ErrInvalid if dir is not a store, and ErrNotFound if dir is absent.
func Discard(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil || dir == "/" {
		return kindOf("discard", fmt.Errorf("%q: %w", dir, block.ErrInvalid))
	}
	return kindOf("discard", discard(place{parent: filepath.Dir(dir), name: filepath.Base(dir)}))
}

func discard(p place) error {
	ctx, cancel := context.WithTimeout(context.Background(), setupWait)
	defer cancel()
	parent, err := openParent(ctx, p, false, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer parent.Close()
	root, err := openDirAt(parent, p.name, p.dir())
	if err != nil {
		return err
	}
	mounted := ownMount(root)
	if err := checkDead(root, mounted); err != nil {
		root.Close()
		return err
	}
	rest, err := detach(parent, p, root, mounted)
	parent.Close()
	rest.Close()
	return err
}

// checkDead fails with *BusyError or ErrInvalid, unless root is a store that no process has open.
// The setup lock keeps it so.
func checkDead(root *os.File, mounted bool) error {
	lock, err := openLock(root, unix.O_RDONLY)
	if err == nil {
		lock.Close()
	} else if !errors.Is(err, iofs.ErrNotExist) {
		return err
	}
	if mounted {
		return nil
	}
	dir, err := openDirAt(root, ".", root.Name())
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err == nil && !looksOurs(names) {
		err = fmt.Errorf("%s: not a store: %w", root.Name(), block.ErrInvalid)
	}
	return err
}
