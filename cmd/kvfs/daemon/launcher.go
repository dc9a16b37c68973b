package daemon

import (
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// launcher is the kvfs run that a mount is to end with. The daemon that it has started hears of its
// end by a signal, and asks for no more than its number. Those that take the mount over are not its
// children, and watch it.
type launcher struct {
	pid   int           // 0: the mount ends with nobody
	ended chan struct{} // closed when it has ended; nil: that is not watched
	file  *os.File      // a pidfd; nil if nothing is watched
}

// watchLauncher watches process pid, which is 0 for a mount that ends with nobody.
func watchLauncher(pid int, log *zap.Logger) (*launcher, error) {
	if pid == 0 {
		return &launcher{}, nil
	}
	file, ended, err := mounts.WatchProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("the kvfs run that made it, and with which it ends: %w", err)
	}
	log.Info("this mount ends with the kvfs run that made it", zap.Int("pid", pid))
	return &launcher{pid, ended, file}, nil
}

// close ends the watch.
func (l *launcher) close() {
	if l.file != nil {
		l.file.Close()
	}
}
