package tiers

import (
	"os"

	"github.com/kvfs/kvfs/tiers/driver"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// removeBlob removes the file of a blob and tells Options.Freed of it, with the file held
// open: until then its number is not given to another.
func (e *core) removeBlob(b driver.BlobID) {
	if e.opts.Freed != nil {
		// What cannot be opened is told of no more: who has registered it lets go by himself,
		// after a time.
		if file, err := e.primary.Open(b); err == nil {
			defer file.Close()
			defer e.tellFreed(file)
		}
	}
	if err := e.primary.Remove(b); err != nil {
		e.log.Warn("remove block file", zap.Uint64("blob", uint64(b)), zap.Error(err))
	}
}

// tellFreed tells Options.Freed of a file.
func (e *core) tellFreed(file *os.File) {
	if e.opts.Freed == nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(int(file.Fd()), &st) == nil {
		e.opts.Freed(st.Dev, st.Ino)
	}
}
