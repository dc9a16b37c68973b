package mem

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
)

const (
	minSizeBytes = 1 << 20
	minHeadroom  = 64 << 20
	maxID        = 128
	maxLabel     = 900 // quoted at worst 3600: kvfs-memory stays below a page
)

// Options says where a Store is and how large.
type Options struct {
	// ID names the store: letters, digits, '.', '_', '-'; no leading '.'; up
	// to 128 bytes. Two mounts must not share one. Empty means "default".
	ID string

	// Label tells people what the store belongs to, usually the mount point. List returns its first
	// 900 bytes. The process that made the store sets it.
	Label string

	// Dir is the directory of the store. Its last component is made if absent, and Close without
	// keep removes it. Empty means the place that the package comment names.
	Dir string

	// SizeBytes is how many bytes the caller wants to keep in the store. At least 1 MiB. Zero means
	// half of the machine's memory.
	SizeBytes int64

	// HeadroomBytes is added to SizeBytes for the limit of the tmpfs: files
	// being written, and removed ones that are still open. It is a limit and
	// reserves nothing. Zero means SizeBytes/8, but at least 64 MiB.
	HeadroomBytes int64

	// Huge is the tmpfs option huge=: never, always, within_size or advise.
	// Empty means within_size.
	Huge string

	// NUMA is the tmpfs option mpol=: bind:NODES, prefer:NODE, interleave, interleave:NODES or
	// local. It needs a tmpfs of the store's own. Empty means none, or that of the adopted tmpfs.
	NUMA string

	// NoMount uses the directory as it is, even as root. The surrounding file system then decides
	// instead of SizeBytes, HeadroomBytes and Huge.
	NoMount bool

	// Logger gets every decision of Open and Adopt. Nil means none.
	Logger *zap.Logger
}

// withDefaults returns o filled in, or all violations.
func (o Options) withDefaults() (Options, error) {
	o.ID, o.Huge = cmp.Or(o.ID, "default"), cmp.Or(o.Huge, "within_size")
	o.SizeBytes = cmp.Or(o.SizeBytes, memoryBytes()/2)
	o.HeadroomBytes = cmp.Or(o.HeadroomBytes, max(o.SizeBytes/8, minHeadroom))
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("mem: %s %v: want %s: %w", field, value, want, block.ErrInvalid))
	}
	if !validID(o.ID) {
		bad("ID", fmt.Sprintf("%q", o.ID), "1 to 128 letters, digits, '.', '_', '-', no leading '.'")
	}
	if o.SizeBytes < minSizeBytes || o.SizeBytes > 1<<60 {
		bad("SizeBytes", o.SizeBytes, "1 MiB to 1 EiB")
	}
	if o.HeadroomBytes < 0 || o.HeadroomBytes > 1<<60 {
		bad("HeadroomBytes", o.HeadroomBytes, "0 to 1 EiB")
	}
	switch o.Huge {
	case "never", "always", "within_size", "advise":
	default:
		bad("Huge", fmt.Sprintf("%q", o.Huge), "never, always, within_size or advise")
	}
	if o.Dir != "" {
		dir, err := filepath.Abs(o.Dir)
		if err != nil || dir == "/" || strings.IndexByte(dir, 0) >= 0 {
			bad("Dir", fmt.Sprintf("%q", o.Dir), "a directory below another")
		}
		o.Dir = dir
	}
	return o, errors.Join(errs...)
}

func validID(id string) bool {
	if id == "" || len(id) > maxID || id[0] == '.' {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// memoryBytes returns the size of the machine's memory, 0 if unknown.
func memoryBytes() int64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}

// place is one directory that a store may be in.
type place struct {
	parent string // holds the setup lock
	name   string // of the store in parent
	own    bool   // made by us with mode 0700; must belong to us
	mount  bool   // needs a tmpfs of its own
}

func (p place) dir() string { return filepath.Join(p.parent, p.name) }

const runBase = "/run/kvfs"

const shmPrefix = "/dev/shm/kvfs-" // before a uid

func shmBase(uid int) string { return shmPrefix + strconv.Itoa(uid) }

// places returns where to try, best first. Open goes on to the next place if the kernel refuses a
// mount.
func (o Options) places() []place {
	uid := os.Geteuid()
	mount := uid == 0 && !o.NoMount
	var ps []place
	if o.Dir != "" {
		p := place{parent: filepath.Dir(o.Dir), name: filepath.Base(o.Dir)}
		if mount {
			ps = append(ps, place{parent: p.parent, name: p.name, mount: true})
		}
		return append(ps, p)
	}
	if mount {
		ps = append(ps, place{parent: runBase, name: o.ID, own: true, mount: true})
	}
	return append(ps, place{parent: shmBase(uid), name: o.ID, own: true})
}
