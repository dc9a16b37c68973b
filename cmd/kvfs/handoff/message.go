// Package handoff connects mounts and the owner of the memory: the unix socket of kvfs serve,
// the messages over it, and the descriptors that travel with them. It knows nothing of FUSE.
//
// # The socket
//
// The socket has mode 0600, in a directory of mode 0700 that belongs to the owner's user (see Listen). A connecting process
// must be of root or of that user, by SO_PEERCRED; the mount requires the same of the owner. An owner holds a lock on a file
// next to the socket, NAME.lock. The kernel releases the lock when the process ends. So the socket of a dead owner is
// replaced, and a second owner is refused while the first one lives.
//
// # The messages
//
// A message is JSON of at most 64 KiB, and arrives whole, with its descriptors (SOCK_SEQPACKET). Unknown fields are ignored,
// so that fields may be added. Only the answer to status is plain text, of at most 16 MiB, in as many messages as it takes.
//
//	owner  {"version":1, "pid":7, "release":"v1"}     the greeting, or {"error":"..."}
//	mount  {"version":1, "do":"attach", "descriptors":["dev","spin","proc"], "attach":{...}}
//	owner  {"attached":{...}}     or {"error":"..."}, and the end
//	       the life line: nothing is said as long as all is well
//	mount  {"do":"detach"}        please stop answering
//	owner  {"do":"detached"}      done, and the end
//
// A mount with "keep":true stays when its process ends without "detach". The next process asks for it by its directory,
// on a connection that is the life line from then on:
//
//	mount  {"version":1, "do":"resume", "dir":"/mnt/kv"}
//	owner  {"attached":{...}, "handed":{...}, "descriptors":["dev","spin"]}     or {"error":"..."}, and the end
//
// So such a mount outlives its process as long as the owner lives, and the owner as long as the process lives.
//
// With "do":"status" the answer is the owner's status document, and the end.
//
// The owner greets when it can serve, not when it begins to listen. So a mount that got a greeting may hand over its
// descriptors. The owner may use them until the connection ends, and not after that: a living owner closes a connection only
// after it has let go of the descriptors.
//
// # Takeover
//
// A daemon with a mount of its own has a socket of the same kind, named after the device number
// of the mount (TakeoverPath). It needs no lock: no other daemon has that number.
//
//	old  {"version":1, "pid":7, "release":"v1", "mount":{...}}   what cannot change
//	new  {"version":1, "do":"takeover"}                          or new closes: nothing has happened
//	old  {"handed":{...}, "descriptors":["dev","spin"]}          old has closed everything, and waits
//	new  {"do":"working"}                                        now and then, as long as it is not blocked
//	     {"do":"serving"}                                        old ends
//	     or {"do":"failed", "error":"..."}: old opens everything again
//	old  {"do":"taken back"}                                     or {"error":"..."}
//
// A connection that ends before "serving" counts as "failed".
//
// # Versions
//
// Version 1 is the only one. Sides of different versions refuse each other.
package handoff

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kvfs/kvfs/fs/device"
)

// Kinds of failure. Errors of this package wrap them.
var (
	ErrNoOwner   = errors.New("no owner is serving")
	ErrServing   = errors.New("another owner is serving")
	ErrPlace     = errors.New("not a safe place for a socket")
	ErrStranger  = errors.New("neither root nor the same user")
	ErrVersion   = errors.New("different version of the protocol")
	ErrMalformed = errors.New("malformed message")
	ErrRefused   = errors.New("the owner refused") // with the owner's reason
	ErrEnded     = errors.New("the connection ended")
)

// version is the version of the protocol that this package speaks.
const version = 1

// What a mount may request.
const (
	doAttach   = "attach"
	doResume   = "resume"
	doStatus   = "status"
	doDetach   = "detach"
	doDetached = "detached"

	doTakeover  = "takeover"
	doWorking   = "working"
	doServing   = "serving"
	doFailed    = "failed"
	doTakenBack = "taken back"
)

// Greeting is the first message of an owner.
type Greeting struct {
	Version int    `json:"version"`
	PID     int    `json:"pid"`
	Release string `json:"release"` // version of the program

	Mount *Offered `json:"mount,omitempty"` // of a daemon that can hand its mount over

	Error string `json:"error,omitempty"` // why the owner refuses to listen
}

// Request is the message with which a mount hands itself over.
type Request struct {
	Dir          string        `json:"dir"`     // mount point, as the mount process sees it
	FSName       string        `json:"fs_name"` // first column of its mount table
	Epoch        uint32        `json:"epoch"`   // number of this owner among the owners of the mount, from 1
	Init         []byte        `json:"init,omitempty"`
	AllowOther   bool          `json:"allow_other,omitempty"`
	EntryTimeout time.Duration `json:"entry_timeout_ns,omitempty"`
	AttrTimeout  time.Duration `json:"attr_timeout_ns,omitempty"`
	MaxWrite     int           `json:"max_write,omitempty"`
	Passthrough  string        `json:"passthrough,omitempty"`
	Release      string        `json:"release,omitempty"` // version of the program
	Keep         bool          `json:"keep,omitempty"`    // the owner keeps the mount when the process ends without Detach, for Resume

	Dev  *os.File `json:"-"` // required
	Spin *os.File `json:"-"` // a clone of Dev, or nil
	Proc *os.File `json:"-"` // the root of a procfs that has the mount's processes, or nil

	// Once received:
	PID int    `json:"-"` // of the mount process, as the owner sees it
	UID uint32 `json:"-"`
}

// Close closes the descriptors.
func (r *Request) Close() {
	for _, f := range []*os.File{r.Dev, r.Spin, r.Proc} {
		if f != nil {
			f.Close()
		}
	}
}

// Attached is the owner's answer to a mount that it serves from now on.
type Attached struct {
	Init      []byte `json:"init,omitempty"` // for the next owner
	ReadPath  string `json:"read_path"`
	WritePath string `json:"write_path"`
	MemoryDir string `json:"memory_dir"`
}

// question is a frame from a mount.
type question struct {
	Version     int      `json:"version"`
	Do          string   `json:"do"`
	Descriptors []string `json:"descriptors,omitempty"` // the names of the descriptors that came along, in order
	Attach      *Request `json:"attach,omitempty"`
	Dir         string   `json:"dir,omitempty"` // with doResume: the mount

	Release string `json:"release,omitempty"` // with doTakeover: version of the program
	Error   string `json:"error,omitempty"`   // with doFailed
}

// answer is a frame from an owner, after the greeting.
type answer struct {
	Do       string    `json:"do,omitempty"`
	Attached *Attached `json:"attached,omitempty"`
	Error    string    `json:"error,omitempty"`

	Handed      *Handed  `json:"handed,omitempty"`
	Descriptors []string `json:"descriptors,omitempty"` // the names of the descriptors that came along, in order
}

// Names of descriptors.
const (
	nameDev  = "dev"
	nameSpin = "spin"
	nameProc = "proc"
)

// descriptors returns the descriptors that r hands over, and their names.
func (r *Request) descriptors() (files []*os.File, names []string) {
	for _, d := range []struct {
		file *os.File
		name string
	}{{r.Dev, nameDev}, {r.Spin, nameSpin}, {r.Proc, nameProc}} {
		if d.file != nil {
			files, names = append(files, d.file), append(names, d.name)
		}
	}
	return files, names
}

// take gives r the descriptors that came with it. r owns them then, or they are closed.
func (r *Request) take(fds []int, names []string) (err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			r.Close()
		}
	}()
	if len(fds) != len(names) {
		return fmt.Errorf("%w: %d descriptors, %d names for them", ErrMalformed, len(fds), len(names))
	}
	for _, name := range names {
		slot, err := r.slot(name)
		if err != nil {
			return err
		}
		if *slot, err = newFile(fds[0], name); err != nil {
			return err
		}
		fds = fds[1:]
	}
	if r.Dev == nil {
		return fmt.Errorf("%w: no descriptor %q", ErrMalformed, nameDev)
	}
	return nil
}

func (r *Request) slot(name string) (**os.File, error) {
	slot, ok := map[string]**os.File{nameDev: &r.Dev, nameSpin: &r.Spin, nameProc: &r.Proc}[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: a descriptor %.64q", ErrMalformed, name)
	case *slot != nil:
		return nil, fmt.Errorf("%w: two descriptors %q", ErrMalformed, name)
	}
	return slot, nil
}

// Limits of the fields of a request.
const (
	maxPath = 4096
	maxName = 255
	maxInit = 4096
)

// check fails for a request that no mount would make.
func (r *Request) check() error {
	var bad error
	switch {
	case !filepath.IsAbs(r.Dir) || len(r.Dir) > maxPath:
		bad = errors.New("dir is no absolute path")
	case len(r.FSName) > maxName:
		bad = fmt.Errorf("fs_name is longer than %d", maxName)
	case r.Epoch == 0 || r.Epoch > device.MaxEpoch:
		bad = fmt.Errorf("epoch %d is out of range", r.Epoch)
	case len(r.Init) > maxInit:
		bad = fmt.Errorf("init is longer than %d", maxInit)
	case r.EntryTimeout < 0 || r.AttrTimeout < 0 || r.MaxWrite < 0 || r.MaxWrite > 1<<30:
		bad = errors.New("a time or size is out of range")
	case len(r.Passthrough) > maxName || len(r.Release) > maxName:
		bad = fmt.Errorf("a word is longer than %d", maxName)
	}
	if bad != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, bad)
	}
	return nil
}

// sameVersion fails if the other side speaks another version of the protocol.
func sameVersion(theirs int) error {
	if theirs != version {
		return fmt.Errorf("%w: %d here, %d there", ErrVersion, version, theirs)
	}
	return nil
}
