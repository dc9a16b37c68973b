package daemon

import (
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// launcher is the kvfs run whose end unmounts the mount. The daemon that it started learns of
// its end by a signal, and needs only its number. Daemons that take the mount over are not its
// children, so they watch it.
type launcher struct {
	pid   int           // 0: no kvfs run
	ended chan struct{} // closed when it has ended; nil if it is not watched
	file  *os.File      // pidfd; nil if it is not watched
}

// watchLauncher watches process pid; 0 means no kvfs run.
func watchLauncher(pid int, log *zap.Logger) (*launcher, error) {
	if pid == 0 {
		return &launcher{}, nil
	}
	file, ended, err := mounts.WatchProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("watch the kvfs run that made this mount: %w", err)
	}
	log.Info("this mount ends when the kvfs run that made it ends", zap.Int("pid", pid))
	return &launcher{pid, ended, file}, nil
}

// close ends the watch.
func (l *launcher) close() {
	if l.file != nil {
		l.file.Close()
	}
}
