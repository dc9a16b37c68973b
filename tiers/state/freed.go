package state

import (
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/driver"
)

// removeBlob removes the file of a blob and calls Options.Freed for it. It holds the file open
// until then, so that no other file gets its inode number.
func (e *State) removeBlob(b driver.BlobID) {
	if e.Opts.Freed != nil {
		// A file that cannot be opened is not reported. The code that has registered it lets go
		// of it by itself, after a time.
		if file, err := e.Primary.Open(b); err == nil {
			defer file.Close()
			defer e.TellFreed(file)
		}
	}
	if err := e.Primary.Remove(b); err != nil {
		e.Log.Warn("remove block file", zap.Uint64("blob", uint64(b)), zap.Error(err))
	}
}

// TellFreed calls Options.Freed for a file.
func (e *State) TellFreed(file *os.File) {
	if e.Opts.Freed == nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(int(file.Fd()), &st) == nil {
		e.Opts.Freed(st.Dev, st.Ino)
	}
}
