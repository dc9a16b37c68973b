package recovery

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// Place is the file system that a directory is on.
type Place struct {
	MountPoint string `json:"mount_point"`
	Type       string `json:"type"`
	// ID stays the same over restarts of the machine, whatever number its device gets. It is empty if
	// the file system has no such name.
	ID string `json:"id,omitempty"`
}

// ownMount reports whether the file system is not that of the root directory.
func (p Place) ownMount() bool { return p.MountPoint != "/" }

// same reports whether p is the file system that was remembered.
func (p Place) same(was Place) bool {
	if p.ID != "" && was.ID != "" {
		return p.ID == was.ID
	}
	return p.MountPoint == was.MountPoint && p.Type == was.Type
}

// What RequireMount may be.
const (
	RequireAuto  = "auto"  // once a directory was on a mount of its own, it must be on that one
	RequireTrue  = "true"  // also the first time it must be on a mount of its own
	RequireFalse = "false" // it may be anywhere, and what is remembered is replaced
)

// CheckPlace fails with a DirError if a directory, which need not exist, is not on the file system that
// it must be on. It changes nothing.
func CheckPlace(path string, o Options) error {
	path, err := filepath.Abs(path)
	if err != nil || o.RequireMount == RequireFalse {
		return err
	}
	now, err := PlaceOf(path)
	if err != nil {
		return nil // Open says what is wrong with the directory
	}
	for _, file := range o.placeFiles(path) {
		was, ok := readPlace(file)
		if ok && !now.same(was) {
			return &DirError{path, movedText(now, was), block.ErrInvalid}
		}
	}
	if o.RequireMount == RequireTrue && !now.ownMount() {
		return &DirError{path, fmt.Sprintf("is on the file system of the root directory (%s), and disk.require_mount is true: "+
			"mount its file system, or set disk.require_mount to auto", now.Type), block.ErrInvalid}
	}
	return nil
}

// movedText says that a directory is not where it was, and what to do.
func movedText(now, was Place) string {
	const accept = "If the directory is to be here from now on, start once with --disk-require-mount=false"
	if now.MountPoint == was.MountPoint {
		return fmt.Sprintf("is on another file system (%s) than before (%s), and both were mounted at %s. Mount the one that has its blocks. %s",
			now.Type, was.Type, was.MountPoint, accept)
	}
	return fmt.Sprintf("is on the file system of %s (%s). Before, it was on another one (%s), mounted at %s, which has its blocks. Mount it: mount %s. %s",
		now.MountPoint, now.Type, was.Type, was.MountPoint, was.MountPoint, accept)
}

// placeFiles returns the files that may remember the place of a directory: one beside the superblock, and
// one that is also there while the file system of the directory is not mounted.
func (o *Options) placeFiles(path string) []string {
	files := []string{filepath.Join(path, format.PlaceName)}
	if o.StateDir != "" {
		sum := sha256.Sum256([]byte(path))
		files = append(files, filepath.Join(o.StateDir, "disk-"+hex.EncodeToString(sum[:8])+".json"))
	}
	return files
}

// placeRecord is the content of such a file.
type placeRecord struct {
	Path string `json:"path"` // of the directory, for those who read the file
	Place
}

// readPlace reads a file of placeFiles. A file that cannot be read remembers nothing.
func readPlace(file string) (p Place, ok bool) {
	text, err := os.ReadFile(file)
	var r placeRecord
	if err != nil || json.Unmarshal(text, &r) != nil || r.MountPoint == "" {
		return Place{}, false
	}
	return r.Place, true
}

// remember writes where a directory is, if that is a mount of its own and not known yet. If it is not, it
// forgets. A file that cannot be written is no error: the next start then knows less.
func (d *Dir) remember(o Options) {
	now, err := PlaceOf(d.path)
	if err != nil {
		d.log.Warn("file system of the SSD directory not remembered", zap.String("dir", d.path), zap.Error(err))
		return
	}
	for _, file := range o.placeFiles(d.path) {
		was, ok := readPlace(file)
		switch {
		case !now.ownMount():
			err = os.Remove(file)
		case !ok || was != now:
			err = writePlace(file, placeRecord{d.path, now})
		default:
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Info("file system of the SSD directory not remembered", zap.String("dir", d.path), zap.Error(err))
		}
	}
}

// writePlace replaces a file as a whole.
func writePlace(file string, r placeRecord) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// PlaceOf returns the file system of a directory, or of the one above it if that does not exist.
func PlaceOf(path string) (Place, error) {
	real, err := filepath.EvalSymlinks(path)
	for errors.Is(err, fs.ErrNotExist) && path != "/" {
		path = filepath.Dir(path)
		real, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return Place{}, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(real, &st); err != nil {
		return Place{}, &os.PathError{Op: "statfs", Path: real, Err: err}
	}
	p := Place{MountPoint: "/"}
	for dir := real; dir != "/"; dir = filepath.Dir(dir) {
		root, err := isMountPoint(dir)
		if err != nil {
			return Place{}, err
		}
		if root {
			p.MountPoint = dir
			break
		}
	}
	p.Type, p.ID = fileSystemID(real, &st)
	return p, nil
}

// isMountPoint reports whether a file system is mounted at a directory other than the root.
func isMountPoint(dir string) (bool, error) {
	var x unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &x); err != nil {
		return false, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	if x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	var here, above unix.Stat_t // before Linux 5.8: sees no bind mounts
	if err := errors.Join(unix.Lstat(dir, &here), unix.Lstat(filepath.Dir(dir), &above)); err != nil {
		return false, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return here.Dev != above.Dev, nil
}

// fileSystemID returns the type of a file system and a name that lasts. statfs makes f_fsid from the uuid
// in ext4 and btrfs, but in xfs, and in most others, from the number of the device, which can change with
// each start of the machine.
func fileSystemID(path string, st *unix.Statfs_t) (name, id string) {
	switch int64(st.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", fmt.Sprintf("%08x%08x", uint32(st.Fsid.Val[0]), uint32(st.Fsid.Val[1]))
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", fmt.Sprintf("%08x%08x", uint32(st.Fsid.Val[0]), uint32(st.Fsid.Val[1]))
	case unix.XFS_SUPER_MAGIC:
		return "xfs", xfsUUID(path)
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay", ""
	}
	return fmt.Sprintf("type %#x", st.Type), ""
}

// xfsGeometry is struct xfs_fsop_geom_v1. Source: Linux fs/xfs/libxfs/xfs_fs.h.
type xfsGeometry struct {
	_    [64]byte
	UUID [16]byte
	_    [32]byte
}

// xfsUUID returns the uuid of an xfs, empty if it does not tell.
func xfsUUID(path string) string {
	const fsGeometryV1 = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var g xfsGeometry
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsGeometryV1, uintptr(unsafe.Pointer(&g))); errno != 0 {
		return ""
	}
	return hex.EncodeToString(g.UUID[:])
}
