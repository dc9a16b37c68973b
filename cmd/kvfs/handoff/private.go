package handoff

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Private is a socket of one process, for its own user and root alone. Nobody else may reach its directory, and it
// has the mode 0600.
type Private struct {
	net.Listener
	dir *socketDir
}

// ListenPrivate makes the socket name.sock beside that of DefaultPath, which must not be empty. It makes the
// directory if it is absent; the directory must be ours alone. It removes the sockets of dead processes whose
// names begin with prefix.
func ListenPrivate(defaultPath, prefix, name string) (*Private, error) {
	p, err := openSocketDir(filepath.Join(filepath.Dir(defaultPath), name+".sock"))
	if err != nil {
		return nil, err
	}
	p.sweep(prefix)
	l, err := p.listen()
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return &Private{l, p}, nil
}

// Path returns the path of the socket.
func (p *Private) Path() string { return p.dir.path }

// Remove removes the socket, after Close.
func (p *Private) Remove() error { return errors.Join(p.dir.remove(), p.dir.close()) }

// sweep removes the sockets of dead processes whose names begin with prefix. What it cannot remove stays.
func (p *socketDir) sweep(prefix string) {
	entries, err := os.ReadDir(filepath.Dir(p.path))
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Type() != os.ModeSocket || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		of := *p
		of.name = e.Name()
		c, err := net.Dial("unix", of.address())
		if err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = unix.Unlinkat(p.dir, of.name, 0) // another process may have done it
		}
	}
}
