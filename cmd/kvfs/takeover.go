package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/store"
	"github.com/kvfs/kvfs/fs"
)

// A takeover: the old process lets go of the mount, closes all it has, keeping the memory, and hands
// the descriptors over. The new one opens all of it, and answers. The old one waits for that without
// anything of the mount, and opens all again if the new one fails: it ends when that says that
// it serves.

// letGoTime is the longest time that a process takes to let go of its mount.
const letGoTime = 3 * closeGrace

// makeOffer offers the mount to the next process, if that is possible. A mount without is as good
// as any other.
func (d *daemon) makeOffer(root rootDir) {
	path, err := d.offerPath()
	var offer *store.Offer
	if err == nil {
		offer, err = store.NewOffer(path, versionString(), store.Offered{
			Dir: d.dir, FSName: d.cfg.Mount.FSName, AllowOther: allowOther(d.cfg), MaxWrite: int(d.cfg.Mount.MaxWrite),
			MemoryDir: d.cfg.Memory.Dir, RootMode: root.mode, RootUID: root.uid, RootGID: root.gid,
			Epoch: d.server.Epoch(), Patience: letGoTime,
		}, d.log.Named("takeover"))
	}
	d.offer.Store(offer)
	if err != nil {
		reason := err.Error()
		d.noOffer.Store(&reason)
		d.log.Info("no other process can take this mount over", zap.Error(err))
	}
}

// offerPath is where the mount is offered.
func (d *daemon) offerPath() (string, error) {
	if err := d.server.Lasting(); err != nil {
		return "", err
	}
	if !d.memory.Status().Adoptable {
		return "", fmt.Errorf("%w: blocks in %s do not outlive this process", fs.ErrNoHandOver, d.memory.Dir())
	}
	m, found, err := mountAt(d.dir)
	switch {
	case err != nil:
		return "", err
	case !found || m.fsType != fsType:
		return "", fmt.Errorf("%w: it is not in the mount table", fs.ErrNoHandOver)
	}
	return takeoverPath(m), nil
}

// takeoverPath is where the daemon of m offers it.
func takeoverPath(m mountInfo) string {
	_, minor, _ := strings.Cut(m.device, ":")
	return store.TakeoverPath(store.DefaultPath(os.Getenv("XDG_RUNTIME_DIR")), minor)
}

// takeover says where the mount is offered, or why it is not.
func (d *daemon) takeover() (path, reason string) {
	if offer := d.offer.Load(); offer != nil {
		return offer.Path(), ""
	}
	if why := d.noOffer.Load(); why != nil {
		reason = *why
	}
	return "", reason
}

// handOver gives the mount to heir. It returns a daemon if that fails, so that this process goes on,
// and an error if it cannot.
func (m *embedded) handOver(ctx context.Context, d *daemon, heir *store.Heir) (*daemon, error) {
	m.log.Info("handing the mount over", zap.Int("pid", heir.PID), zap.String("version", heir.Release))
	offered := d.offer.Load().Close()
	var err error
	m.session, err = d.server.HandOver()
	if err != nil { // it was possible when it was offered
		heir.Refuse(err)
		return nil, errors.Join(err, offered, d.stopHTTP(), d.stop(true))
	}
	if err := errors.Join(offered, d.stopHTTP(), d.closeTiers(true)); err != nil {
		m.log.Warn("stop for a takeover", zap.Error(err))
	}
	x := m.session
	err = heir.HandOver(&store.Handed{Init: x.Init, Epoch: x.Epoch, Stale: x.Stale, Dev: x.Dev, Spin: x.Spin})
	if err == nil {
		err = heir.Outcome(ctx)
	}
	if err == nil || ctx.Err() != nil {
		m.log.Info("another process has the mount", zap.Int("pid", heir.PID))
		heir.Close()
		return nil, x.Close()
	}
	m.log.Error("the takeover failed: taking the mount back", zap.Error(err))
	x.Epoch++ // the other one may have used it
	if d, err = m.restart(ctx); err == nil {
		heir.TakenBack()
		return d, nil
	}
	err = errors.Join(fmt.Errorf("take the mount back: %w", err), m.session.Unmount(), m.session.Close())
	heir.Refuse(err)
	return nil, err
}

// restart is start for a mount that another process has tried to answer. What that one had locked
// may be so for a moment longer; there is no event for its end.
func (m *embedded) restart(ctx context.Context) (*daemon, error) {
	until := time.Now().Add(closeGrace)
	for tick := (&pace{}); ; {
		d, err := m.start(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(until) {
			return d, err
		}
		m.log.Warn("take the mount back", zap.Error(err))
		tick.wait(ctx)
	}
}

// takeOver is mount for a mount that a daemon serves: it is replaced.
func takeOver(ctx context.Context, cfg *config.Config, dir string, ready *readiness) error {
	log, err := newLogger(cfg)
	if err != nil {
		return err
	}
	warn(cfg, log)
	conn, err := findDaemon(ctx, cfg, dir)
	if err != nil {
		return err
	}
	old := conn.Greeting()
	log.Info("taking the mount over", zap.String("dir", old.Mount.Dir), zap.Int("pid", old.PID), zap.String("version", old.Release))
	from, handed, err := conn.TakeOver(ctx, versionString())
	if err != nil {
		return withCode(exitMount, fmt.Errorf("takeover of %s: %w", dir, err))
	}
	o := old.Mount
	m := &embedded{
		cfg: cfg, at: place{path: o.Dir, root: rootDir{o.RootMode, o.RootUID, o.RootGID}}, ready: ready, log: log,
		session: &fs.Session{Dir: o.Dir, Dev: handed.Dev, Spin: handed.Spin, Init: handed.Init, Epoch: handed.Epoch, Stale: handed.Stale},
	}
	d, err := m.startHanded(ctx)
	if err != nil {
		return errors.Join(err, m.giveUp(from, err))
	}
	ready.tookOver(o.Dir) // first, so that systemd does not take the end of the old one for the end of all
	if err := from.Serving(); err != nil {
		log.Warn("the process that had the mount", zap.Int("pid", old.PID), zap.Error(err))
	}
	return m.run(ctx, d)
}

// startHanded is start for what another process has sent.
func (m *embedded) startHanded(ctx context.Context) (*daemon, error) {
	for _, f := range []*os.File{m.session.Dev, m.session.Spin} {
		if err := checkFuse(f); err != nil {
			return nil, err
		}
	}
	return m.start(ctx)
}

// giveUp has the old process take the mount back. If that has ended the mount is taken away, so
// that nobody waits for answers.
func (m *embedded) giveUp(from *store.Predecessor, why error) error {
	err := m.session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), letGoTime)
	defer cancel()
	failed := from.Failed(ctx, why)
	switch {
	case failed == nil:
		m.log.Warn("the process that had the mount answers it again")
		return err
	case ctx.Err() != nil:
		return errors.Join(err, fmt.Errorf("the process that had the mount does not say that it answers it again: %w", failed))
	}
	return errors.Join(err, fmt.Errorf("the process that had the mount does not take it back, so it is unmounted: %w", failed),
		m.session.Unmount())
}

// findDaemon returns a connection to the daemon of the mount at dir, which offers to be replaced,
// and is content with cfg.
func findDaemon(ctx context.Context, cfg *config.Config, dir string) (*store.Conn, error) {
	if cfg.Mode != config.ModeEmbedded {
		return nil, withCode(exitConfig, fmt.Errorf("takeover: mode %s has no memory to take over; its owner, kvfs serve, is restarted instead", cfg.Mode))
	}
	if err := checkMemory(cfg); err != nil {
		return nil, err
	}
	m, found, err := findMount(dir)
	switch {
	case err != nil:
		err = fmt.Errorf("takeover: %w", err)
	case !found:
		err = fmt.Errorf("takeover: nothing is mounted at %s; without --takeover it is", dir)
	case m.fsType != fsType:
		err = fmt.Errorf("takeover: %s is not a kvfs mount: its type is %s", dir, m.fsType)
	case os.Geteuid() != 0:
		err = fmt.Errorf("takeover of %s: only root can take a mount over", dir)
	}
	if err != nil {
		return nil, withCode(exitMount, err)
	}
	short, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	conn, err := store.Dial(short, takeoverPath(m))
	if err != nil {
		return nil, withCode(exitMount, fmt.Errorf("takeover of %s: %w", dir, whyNoDaemon(m, err)))
	}
	if err := suits(conn, cfg, m); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// whyNoDaemon says more about a mount whose daemon does not greet.
func whyNoDaemon(m mountInfo, err error) error {
	if !errors.Is(err, store.ErrNoOwner) {
		return fmt.Errorf("its daemon does not answer: %w", err)
	}
	if !alive(m.point) {
		return errors.New("its daemon is dead; without --takeover the next one adopts what is in memory")
	}
	var now struct{ Mount statusMount }
	if text, err := readStatus(m.point, statusTimeout); err == nil {
		_ = json.Unmarshal(text, &now) // then it says nothing
	}
	switch {
	case now.Mount.Mode == config.ModeStandaloneStore:
		return fmt.Errorf("its mode is %s; its owner, kvfs serve, is restarted instead", now.Mount.Mode)
	case now.Mount.TakeoverReason != "":
		return errors.New(now.Mount.TakeoverReason)
	}
	return fmt.Errorf("its daemon does not offer that: %w", err)
}

// suits fails if this process cannot be what the one at the other end is.
func suits(c *store.Conn, cfg *config.Config, m mountInfo) error {
	old, o := c.Greeting(), c.Greeting().Mount
	if o == nil {
		return withCode(exitMount, errors.New("takeover: who answers offers no mount"))
	}
	if old.PID != c.PID() || !sameNamespace(old.PID, "mnt") {
		return withCode(exitMount, fmt.Errorf("takeover: the daemon of %s runs in another pid or mount name space", m.point))
	}
	if o.Dir != m.point {
		return withCode(exitMount, fmt.Errorf("takeover: %s is the mount that its daemon has at %s", m.point, o.Dir))
	}
	if isOlder(versionString(), old.Release) {
		return withCode(exitMount, fmt.Errorf("takeover: this is %s, older than the daemon's %s", versionString(), old.Release))
	}
	var errs []error
	differ := func(name string, now, was any) {
		if now != was {
			errs = append(errs, fmt.Errorf("%s: got %v, the daemon has %v, and a takeover cannot change it", name, now, was))
		}
	}
	differ("memory.dir", cfg.Memory.Dir, o.MemoryDir)
	differ("mount.fs_name", cfg.Mount.FSName, o.FSName)
	differ("mount.allow_other", onOff(allowOther(cfg)), onOff(o.AllowOther))
	differ("mount.max_write", cfg.Mount.MaxWrite, config.Size(o.MaxWrite))
	if cfg.Memory.Passthrough == config.Off {
		errs = append(errs, fmt.Errorf("memory.passthrough: got %s, and a takeover cannot change it to that", config.Off))
	}
	return withCode(exitConfig, errors.Join(errs...))
}

func onOff(on bool) string {
	if on {
		return config.On
	}
	return config.Off
}

// sameNamespace reports whether a process is in our name space of that kind, as far as can be seen.
func sameNamespace(pid int, kind string) bool {
	ours, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return true
	}
	theirs, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(pid), "ns", kind))
	return err != nil || ours == theirs
}

// isOlder reports whether version a is before b. What is no version that was released is neither
// before nor after any.
func isOlder(a, b string) bool {
	var x, y [3]int
	for _, v := range []struct {
		text string
		to   *[3]int
	}{{a, &x}, {b, &y}} {
		if n, _ := fmt.Sscanf(v.text, "v%d.%d.%d", &v.to[0], &v.to[1], &v.to[2]); n != 3 {
			return false
		}
	}
	for i := range x {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return false
}
