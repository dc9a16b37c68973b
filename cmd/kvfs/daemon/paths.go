package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// place is a path that a daemon uses, and what names it.
type place struct{ of, path string }

// places returns all paths that a process with cfg uses while it serves: those of the configuration, and others.
func places(cfg *config.Config) []place {
	runtime := filepath.Dir(handoff.DefaultPath(os.Getenv("XDG_RUNTIME_DIR")))
	if cfg.Mode == config.ModeStandaloneStore {
		return []place{{"the program", "/proc/self/exe"}, {"the directory of sockets", runtime}, {"store.socket", cfg.Store.Socket}}
	}
	list := []place{{"the program", "/proc/self/exe"}, {"the directory of sockets", runtime}}
	for _, p := range cfg.Paths() {
		list = append(list, place{p.Setting, p.File()})
	}
	if len(cfg.Tiers) > 0 {
		list = append(list, place{"the credentials of AWS", cmp.Or(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), filepath.Join(os.Getenv("HOME"), ".aws/credentials"))})
	}
	for _, name := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if path := os.Getenv(name); path != "" {
			list = append(list, place{name, path})
		}
	}
	return list
}

// checkPlaces fails if a path of this process is in a kvfs mount, or below dir, at which one will be. A daemon that
// needs a file of its own mount waits for itself, and two daemons can wait for each other. An empty dir is none. It asks no mount.
func checkPlaces(cfg *config.Config, dir string) error {
	var errs []error
	for _, p := range places(cfg) {
		at, err := hidden(p.path, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", p.of, p.path, err))
		} else if at != "" {
			errs = append(errs, fmt.Errorf("%s: %q is in the mount at %s, and a daemon that needs a file of a kvfs mount may wait for itself: move it to another file system", p.of, p.path, at))
		}
	}
	return exit.With(exit.Config, errors.Join(errs...))
}

// hidden returns where the kvfs mount is, or dir if one there would be it, that path leads into; "" if there is none.
func hidden(path, dir string) (at string, err error) {
	m, err := mounts.Inside(path)
	if m != nil || err != nil || dir == "" {
		if m != nil {
			at = m.Mountpoint
		}
		return at, err
	}
	below, err := mounts.Below(path, dir)
	if !below {
		return "", err
	}
	return dir, err
}

// warnOutput warns if standard output or standard error is a file of a kvfs mount.
func warnOutput(log *zap.Logger) {
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if m, err := mounts.Holds(int(f.Fd())); err == nil && m != nil {
			log.Warn("a file of a kvfs mount is open for output: the mount stays busy, and log lines may be lost. Redirect the output to another file system",
				zap.String("output", f.Name()), zap.String("dir", m.Mountpoint))
		}
	}
}
