package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/device"
)

// Serve is the life of an owner: it opens its socket and the engine, answers the mounts of
// other processes, and closes all of it. It returns when ctx ends. Errors have an exit code.
func (p Program) Serve(ctx context.Context, cfg *config.Config, ready *Readiness) error {
	log, err := NewLogger(cfg)
	if err != nil {
		return err
	}
	defer hearHangup(log)()
	defer serveDebug(log.Named("debug"))()
	Warn(cfg, log)
	if err := checkPlaces(cfg, ""); err != nil {
		return err
	}
	// First, so that a second owner ends before it touches the tiers of the first. Connecting processes wait meanwhile.
	l, err := handoff.Listen(handoff.Options{Path: cfg.Store.Socket, Release: p.Version, Logger: log.Named("store")})
	if err != nil {
		return err
	}
	web, err := openWeb(cfg.HTTP, cfg.HTTPTokenFile, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	mounts := &fs.Mounts{}
	root := rootDir{0o755, uint32(os.Geteuid()), uint32(os.Getegid())} // of all mounts
	d, err := p.openDaemon(ctx, cfg, site{path: l.Path(), root: root, shared: true}, mounts, web, log)
	if err != nil {
		return errors.Join(err, web.close(), l.Close())
	}
	d.owner = newOwner(d, mounts)
	if err := d.peers.start(d.engine); err != nil {
		return errors.Join(fmt.Errorf("peers: %w", err), web.close(), l.Close(), d.close(d.adopted()))
	}
	web.works(d)
	go l.Serve(d.owner) // ends with l
	log.Info("serving", zap.String("socket", l.Path()), zap.String("memory", d.cfg.Memory.Size.String()), zap.String("memory_dir", d.memory.Dir()))
	ready.Serving(l.Path())
	d.keepAlive()

	select {
	case <-ctx.Done():
		log.Info("stopping")
		d.settle(l)
	case err = <-d.peers.fatal():
		log.Error("this node must leave its cluster: stopping", zap.Error(err))
	}
	ready.stopping()
	return errors.Join(err, l.Close(), web.close(), d.close(cfg.Memory.Keep))
}

// settle waits, at most for drain_timeout, until processes hold all mounts that would end with this owner. The process
// of a mount may be under way to its own next version.
func (d *daemon) settle(l *handoff.Listener) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(d.cfg.DrainTimeout))
	defer cancel()
	for tick := (Pace{}); l.Unheld() > 0; {
		if !tick.Wait(ctx) {
			d.log.Warn("mounts without a process end with this owner", zap.Int("mounts", l.Unheld()))
			return
		}
	}
}

// owner answers the mounts of other processes.
type owner struct {
	d      *daemon
	mounts *fs.Mounts
	mu     struct {
		sync.Mutex
		guests map[*guest]struct{}
	}
}

func newOwner(d *daemon, mounts *fs.Mounts) *owner {
	o := &owner{d: d, mounts: mounts}
	o.mu.guests = map[*guest]struct{}{}
	return o
}

// guest is a mount that another process made, answered by this one.
type guest struct {
	o       *owner
	dir     string
	pid     atomic.Int64 // 0 while no process holds the mount
	epoch   uint32
	server  *fs.Server
	serving atomic.Pointer[fs.Server] // server, for requests that come meanwhile
}

// Attach implements handoff.Handler.
func (o *owner) Attach(ctx context.Context, r *handoff.Request) (handoff.Mount, error) {
	defer r.Close() // fs has its own copies by then
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("this owner stops: %w", err)
	}
	if err := checkPlaces(o.d.cfg, ""); err != nil { // the mount is there already
		return nil, err
	}
	for _, f := range []*os.File{r.Dev, r.Spin} {
		if err := checkFuse(f); err != nil {
			return nil, err
		}
	}
	if r.Proc != nil {
		if err := handoff.CheckProc(r.Proc); err != nil {
			return nil, err
		}
	}
	g := &guest{o: o, dir: r.Dir, epoch: r.Epoch}
	g.pid.Store(int64(r.PID))
	session := &device.Session{Dir: r.Dir, Dev: r.Dev, Spin: r.Spin, Proc: r.Proc, Init: r.Init, Epoch: r.Epoch}
	var err error
	g.server, err = fs.Attach(o.d.engine, o.mounts, session, guestOptions(o.d, g, r))
	if err != nil {
		return nil, err
	}
	g.serving.Store(g.server)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.guests[g] = struct{}{}
	return g, nil
}

// checkFuse fails unless f is a descriptor of /dev/fuse: a read of another could take forever.
func checkFuse(f *os.File) error {
	if f == nil {
		return nil
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	const major, minor = 10, 229 // of Documentation/admin-guide/devices.txt
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.Mode()&os.ModeCharDevice == 0 || sys.Rdev != unix.Mkdev(major, minor) {
		return errors.New("a descriptor is not of /dev/fuse")
	}
	return nil
}

// guestOptions returns the options of this owner, lowered to those of the mount.
func guestOptions(d *daemon, g *guest, r *handoff.Request) fs.Options {
	o := serverOptions(d.cfg, d, d.log)
	o.Dir, o.FSName, o.AllowOther, o.Status = r.Dir, r.FSName, r.AllowOther, g.status
	// A name that the kernel keeps for longer than the engine assumes would outlive its lease.
	o.EntryTimeout, o.AttrTimeout = min(o.EntryTimeout, r.EntryTimeout), min(o.AttrTimeout, r.AttrTimeout)
	o.MaxWrite = r.MaxWrite // the mount process told the kernel the same
	switch {
	case o.Passthrough == fs.Off || r.Passthrough == config.Off:
		o.Passthrough = fs.Off
	case r.Passthrough == config.On:
		o.Passthrough = fs.On
	}
	return o
}

// Status implements handoff.Handler.
func (o *owner) Status() []byte {
	doc := o.d.document()
	doc.Store = &status.Store{Socket: o.d.dir, Mounts: []status.Mount{}}
	for _, g := range o.list() {
		doc.Store.Mounts = append(doc.Store.Mounts, g.mount())
	}
	return doc.Text()
}

func (o *owner) list() []*guest {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []*guest
	for g := range o.mu.guests {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *guest) int {
		return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.pid.Load(), b.pid.Load()))
	})
	return all
}

func (g *guest) status() []byte {
	doc := g.o.d.document()
	doc.Mount = g.mount()
	return doc.Text()
}

func (g *guest) mount() status.Mount {
	m := status.Mount{State: "attaching", OwnerPID: os.Getpid()}
	if s := g.serving.Load(); s != nil {
		m = status.Mounted(s)
	}
	m.Dir, m.Mode, m.PID, m.Epoch = g.dir, config.ModeStandaloneStore, int(g.pid.Load()), g.epoch
	return m
}

// Attached implements handoff.Mount.
func (g *guest) Attached() handoff.Attached {
	return handoff.Attached{
		Init: g.server.SessionInit(), ReadPath: g.server.ReadPath(), WritePath: g.server.WritePath(), MemoryDir: g.o.d.memory.Dir(),
	}
}

// Done implements handoff.Mount.
func (g *guest) Done() <-chan struct{} { return g.server.Served() }

// Holder implements handoff.Mount.
func (g *guest) Holder(pid int) { g.pid.Store(int64(pid)) }

// Detach implements handoff.Mount.
func (g *guest) Detach() {
	g.server.Detach()
	g.o.mu.Lock()
	defer g.o.mu.Unlock()
	delete(g.o.mu.guests, g)
}
