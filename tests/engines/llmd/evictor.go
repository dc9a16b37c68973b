package llmd

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
)

// evictor is the pvc_evictor: it watches how full the file system is, and
// removes files without an access for a while.
type evictor struct {
	dir   string
	start float64 // share of the size in use at which it begins
	idle  time.Duration
}

// fill returns the share of the file system that is in use, by f_bfree.
func (e *evictor) fill() (float64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(e.dir, &st); err != nil {
		return 0, err
	}
	return 1 - float64(st.Bfree)/float64(st.Blocks), nil
}

// run crawls if the file system is too full, and returns how many files went.
func (e *evictor) run(now time.Time) (removed int, err error) {
	if used, err := e.fill(); err != nil || used < e.start {
		return 0, err
	}
	return e.crawl(now)
}

// crawl removes idle files, and the directories that are empty then.
func (e *evictor) crawl(now time.Time) (removed int, err error) {
	err = filepath.WalkDir(e.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".bin" {
			return err
		}
		st, err := replay.Stat(path)
		if err != nil || now.Sub(time.Unix(st.Atim.Unix())) < e.idle {
			return err
		}
		if err := replay.Unlink(path); err != nil {
			return err
		}
		removed++
		unix.Rmdir(filepath.Dir(path)) // fails while it has files
		return nil
	})
	return removed, err
}
