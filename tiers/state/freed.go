package state

import (
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/driver"
)

// removeBlob removes the file of a blob and calls Options.Freed for it. It holds the file open
// until then, so that no other file gets its inode number.
func (st *State) removeBlob(b driver.BlobID) {
	if st.Opts.Freed != nil {
		// A file that cannot be opened is not reported. The code that has registered it lets go
		// of it by itself, after a time.
		if file, err := st.Primary.Open(b); err == nil {
			defer file.Close()
			defer st.TellFreed(file)
		}
	}
	if err := st.Primary.Remove(b); err != nil {
		st.Log.Warn("remove block file", zap.Uint64("blob", uint64(b)), zap.Error(err))
	}
}

// TellFreed calls Options.Freed for a file.
func (st *State) TellFreed(file *os.File) {
	if st.Opts.Freed == nil {
		return
	}
	var stat unix.Stat_t
	if unix.Fstat(int(file.Fd()), &stat) == nil {
		st.Opts.Freed(stat.Dev, stat.Ino)
	}
}
