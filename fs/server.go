package fs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
)

// Options configures a Server.
type Options struct {
	Dir    string // required: the mount point, an existing empty directory
	FSName string // first column of mount tables. Empty means kvfs.

	AllowOther   bool          // let other users in, checked by the kernel against modes and owners
	EntryTimeout time.Duration // how long the kernel keeps names. Zero means not at all.
	AttrTimeout  time.Duration // how long it keeps attributes. Zero means not at all.
	MaxWrite     int           // largest request in bytes. Zero means 1 MiB.

	// Passthrough says whether the kernel reads and writes primary files by itself. Auto tries
	// passthrough, On fails if it is impossible, Off does not try.
	Passthrough Switch

	// Status returns the text of the control file .kvfs/status. Required.
	Status func() []byte

	// Control lists further files of the control directory.
	Control []control.File

	// Users and Groups may read .kvfs/accesslog, beside root and the user of this process.
	Users, Groups []uint32

	// ListElsewhere makes listings show the names that only other nodes have. A listing waits
	// at most ListTimeout for those nodes. Zero means 5 s.
	ListElsewhere bool
	ListTimeout   time.Duration

	// Descriptors bounds the files that clients have open. Nil means no bound.
	Descriptors *Descriptors

	// Latencies counts how long the requests of the kernel take. Nil means one of this server alone.
	Latencies *device.Latencies

	// Audit gets a line for what operators do by control files. Nil means none. With AuditChanges it also gets one for
	// each name that a process removes or replaces, and each pin and time to live that one sets.
	Audit        *zap.Logger
	AuditChanges bool

	Logger *zap.Logger // nil means none
}

// Switch is auto, on or off.
type Switch string

// The values of Switch; the empty one is Auto.
const (
	Auto Switch = "auto"
	On   Switch = "on"
	Off  Switch = "off"
)

// Server is one mount. doc.go lists its promises.
type Server struct {
	opts   Options
	log    *zap.Logger
	files  *files
	conn   *device.Conn
	cancel context.CancelFunc // ends ctx of files
	wg     sync.WaitGroup
	reason string // why there is no passthrough, or empty
	tested bool   // selfTest has compared

	own    *device.Session // set by Mount and Resume; nil with Attach, and if fusermount3 made the mount
	mounts *Mounts         // set by Attach, else nil
	proc   *os.File        // /proc of the mount; nil if it is ours
	detach sync.Once
}

// ErrPassthrough reports that Options.Passthrough is On and passthrough is impossible here.
var ErrPassthrough = errors.New("FUSE passthrough is not possible")

// Mount mounts the engine at opts.Dir and serves it until it is unmounted. When Mount returns,
// the mount answers and has passed SelfTest. A mount made as root with passthrough has a
// session that another process can resume. Without root or passthrough, fusermount3 makes the
// mount and no process can resume it.
func Mount(engine *tiers.Engine, hooks *Hooks, opts Options) (*Server, error) {
	if os.Geteuid() != 0 || opts.Passthrough == Off {
		return mountSpliced(engine, hooks, opts)
	}
	x, err := device.OpenSession(device.MountOptions{Dir: opts.Dir, FSName: opts.FSName, AllowOther: opts.AllowOther, MaxWrite: opts.MaxWrite})
	if err != nil {
		return nil, err
	}
	if x.Proc != nil { // the users of the mount share our /proc
		x.Proc.Close()
		x.Proc = nil
	}
	s, err := Resume(engine, hooks, x, opts)
	if err != nil {
		return nil, errors.Join(err, x.Unmount(), x.Close())
	}
	RefusePoll(opts.Dir)
	return s, nil
}

// mountSpliced is Mount through go-fuse, which splices.
func mountSpliced(engine *tiers.Engine, hooks *Hooks, opts Options) (*Server, error) {
	s := newServer(engine, opts)
	s.files.splice = true
	if s.opts.AuditChanges {
		s.log.Warn("removals and replacements are not logged: this mount is made without root, or with memory.passthrough: off")
	}
	c, err := device.MountHelper(opts.Dir, s.files, s.connection())
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("mount %s: %w", opts.Dir, err)
	}
	s.conn, s.files.kernel = c, c
	if err := s.choosePath(); err != nil {
		s.cancel()
		err = errors.Join(err, c.Unmount())
		c.Discard()
		return nil, err
	}
	hooks.files.Store(s.files)
	c.Start()
	RefusePoll(opts.Dir)
	if err := s.selfTest(); err != nil {
		err = errors.Join(err, s.Unmount())
		s.Wait()
		return nil, err
	}
	return s, nil
}

// newServer makes a Server without a connection.
func newServer(engine *tiers.Engine, opts Options) *Server {
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	if opts.ListTimeout == 0 {
		opts.ListTimeout = 5 * time.Second
	}
	opts.Latencies = cmp.Or(opts.Latencies, &device.Latencies{})
	s := &Server{opts: opts, log: opts.Logger}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.files = cancel, newFiles(ctx, engine, &s.opts)
	return s
}

// connection returns the options of the connection.
func (s *Server) connection() device.Options {
	o := &s.opts
	return device.Options{FSName: o.FSName, AllowOther: o.AllowOther, MaxWrite: o.MaxWrite, Own: s.mounts == nil, Latencies: o.Latencies, Watch: &s.files.access.watch, Logger: s.log}
}

// choosePath tries whether passthrough works here. It needs Linux 6.9, CAP_SYS_ADMIN, and a
// primary tier on a file system that is not stacked.
func (s *Server) choosePath() error {
	if s.opts.Passthrough == Off {
		s.reason = "switched off"
		return nil
	}
	first, err := s.tryPassthrough()
	if err == nil {
		s.files.backings = newBackings(s.conn, first, s.files.engine.OpenBlob, s.log)
		s.files.direct.Store(true)
		return nil
	}
	s.reason = err.Error()
	if s.opts.Passthrough == On {
		return fmt.Errorf("%w: %w", ErrPassthrough, err)
	}
	s.log.Info("no passthrough: reads are spliced, writes go through the daemon", zap.Error(err))
	return nil
}

// tryPassthrough registers a file for a moment and returns the number that it got.
func (s *Server) tryPassthrough() (id int32, err error) {
	if !s.conn.Passthrough() {
		return 0, errors.New("the kernel does not offer it")
	}
	_, file, done, err := s.files.engine.Probe()
	if err != nil {
		return 0, err
	}
	defer done()
	id, errno := s.conn.Register(int(file.Fd()))
	if errno != 0 {
		return 0, os.NewSyscallError("register backing file", errno)
	}
	if errno := s.conn.Unregister(id); errno != 0 {
		return 0, os.NewSyscallError("unregister backing file", errno)
	}
	return id, nil
}

// ReadPath returns how the bytes of hot reads travel: "passthrough", "splice", or "copy" if
// passthrough was expected but is impossible.
func (s *Server) ReadPath() string { return s.files.readPath() }

func (f *files) readPath() string {
	switch {
	case f.direct.Load():
		return "passthrough"
	case f.splice:
		return "splice"
	}
	return "copy"
}

// WritePath returns how the bytes of writes travel once a group's block size is known:
// "passthrough" or "daemon".
func (s *Server) WritePath() string {
	if s.files.direct.Load() {
		return "passthrough"
	}
	return "daemon"
}

// PathReason returns why ReadPath is not passthrough, or "".
func (s *Server) PathReason() string { return s.reason }

// Epoch returns the number of this process among those that have answered the mount, from 1 on.
// It is 0 if no other process can.
func (s *Server) Epoch() uint32 { return s.conn.Epoch().Number() }

// Ops returns how often the kernel sent each FUSE operation.
func (s *Server) Ops() map[string]uint64 { return s.files.ops.snapshot() }

// Backings returns how many primary files are registered with the kernel.
func (s *Server) Backings() int {
	if s.files.backings == nil {
		return 0
	}
	return s.files.backings.len()
}

// Unmount unmounts, lazily if the mount is busy: open handles go on until they are closed or the
// process ends. It does not wait for the serving loops. A mount from Attach is not unmounted: use
// Detach. Another mount at the directory, in place of ours or on top of it, stays.
func (s *Server) Unmount() error {
	if s.mounts != nil {
		s.Detach()
		return nil
	}
	err := s.conn.Unmount()
	s.cancel()
	return err
}

// Wait returns when the mount is gone and all requests are answered.
func (s *Server) Wait() {
	<-s.conn.Served()
	if s.mounts != nil {
		s.Detach()
		return
	}
	s.cancel()
	s.conn.Wait()
	s.wg.Wait()
	s.files.control.dir.Wait()
	s.conn.Close()
	s.closeOwn()
}

// Served returns a channel that is closed when the mount is gone, or Detach has ended the answers.
func (s *Server) Served() <-chan struct{} { return s.conn.Served() }

// Close gives up on a mount that was detached but that open files keep alive. The kernel goes
// on with what it serves by itself; everything else fails.
func (s *Server) Close() {
	if s.mounts != nil {
		s.Detach()
		return
	}
	s.conn.Close()
	s.closeOwn()
}

// closeOwn closes the files of a mount of this process.
func (s *Server) closeOwn() {
	if s.own == nil {
		return
	}
	if err := s.own.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		s.log.Warn("close the mount", zap.Error(err))
	}
}
