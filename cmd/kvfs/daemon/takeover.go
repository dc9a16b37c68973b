package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/moby/sys/mountinfo"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/mem"
	"github.com/kvfs/kvfs/tiers/memory"
)

// A takeover: the old process lets go of the mount, closes everything but the memory, and hands the descriptors over. The
// new process opens everything and answers. The old process waits, without any part of the mount. It ends when the new one
// reports that it serves, and opens everything again if the new one fails.

// letGoTime is the longest time in which a process lets go of its mount, beyond the answers to writes that wait for room.
// Only an operation of a hanging tier takes longer; the new process then gives up.
const letGoTime = 3 * CloseGrace

// serveTime is the longest time in which the next process must answer the mount. Within silentTime it must have got on.
const (
	serveTime  = 2 * time.Minute
	silentTime = 4 * time.Second
)

// makeOffer offers the mount to the next process, if that is possible. A mount without an offer works as well.
func (d *daemon) makeOffer(root rootDir) {
	path, err := d.offerPath()
	var offer *handoff.Offer
	var dir string
	if err == nil {
		dir, err = memoryDir(d.cfg)
	}
	if err == nil {
		offer, err = handoff.NewOffer(path, d.program.Version, handoff.Offered{
			Dir: d.dir, FSName: d.cfg.Mount.FSName, AllowOther: allowOther(d.cfg), MaxWrite: int(d.cfg.Mount.MaxWrite),
			MemoryDir: dir, MemoryAt: d.memory.Dir(), RootMode: root.mode, RootUID: root.uid, RootGID: root.gid,
			Epoch: d.server.Epoch(), EndsWith: d.endsWith, Patience: letGoTime + time.Duration(d.cfg.Mount.WriteTimeout),
		}, d.log.Named("takeover"))
	}
	d.offer.Store(offer)
	if err != nil {
		reason := err.Error()
		d.noOffer.Store(&reason)
		d.log.Info("no other process can take this mount over", zap.Error(err))
	}
}

func (d *daemon) offerPath() (string, error) {
	if err := d.server.Lasting(); err != nil {
		return "", err
	}
	if !d.memory.Status().Adoptable {
		return "", fmt.Errorf("%w: blocks in %s do not outlive this process", fs.ErrNoHandOver, d.memory.Dir())
	}
	m, err := device.TopMount(d.dir)
	switch {
	case err != nil:
		return "", err
	case !mounts.IsOurs(m):
		return "", fmt.Errorf("%w: it is not in the mount table", fs.ErrNoHandOver)
	}
	return takeoverPath(m), nil
}

// takeoverPath returns the socket at which the daemon of m offers it.
func takeoverPath(m *mountinfo.Info) string {
	return handoff.TakeoverPath(handoff.DefaultPath(os.Getenv("XDG_RUNTIME_DIR")), strconv.Itoa(m.Minor))
}

// takeover returns the socket at which the mount is offered, or the reason why it is not.
func (d *daemon) takeover() (path, reason string) {
	if offer := d.offer.Load(); offer != nil {
		return offer.Path(), ""
	}
	if why := d.noOffer.Load(); why != nil {
		reason = *why
	}
	return "", reason
}

// handOver gives the mount to heir. If that fails it returns a daemon, with which this process
// goes on, or an error if it cannot go on.
func (m *embedded) handOver(ctx context.Context, d *daemon, heir *handoff.Heir) (*daemon, error) {
	m.log.Named("audit").Info("takeover", append(control.AuditProcess(uint32(heir.PID), "kvfs"), zap.String("version", heir.Release))...)
	m.log.Info("handing the mount over", zap.Int("pid", heir.PID), zap.String("version", heir.Release))
	m.quotas = d.quotasSet()
	offered := d.offer.Load().Close()
	var err error
	m.session, err = d.server.HandOver()
	if err != nil { // it was possible when it was offered
		heir.Refuse(err)
		return nil, errors.Join(err, offered, d.web.close(), d.stop(true))
	}
	if err := errors.Join(offered, d.web.close(), d.closeTiers(true)); err != nil {
		m.log.Warn("stop for a takeover", zap.Error(err))
	}
	x := m.session
	m.at.memory = d.memory.Dir()
	err = heir.HandOver(&handoff.Handed{Init: x.Init, Epoch: x.Epoch, Stale: x.Stale, Dev: x.Dev, Spin: x.Spin, Settings: encodeSettings(m.quotas, m.log)})
	if err == nil {
		err = m.outcome(ctx, heir)
	}
	if err == nil {
		m.log.Info("another process has the mount", zap.Int("pid", heir.PID))
		heir.Close()
		m.guard.leave()
		return nil, x.Close()
	}
	return m.takeBack(ctx, heir, err)
}

// outcome waits until heir answers the mount. It kills an heir that takes serveTime, or does not get on for silentTime, because
// clients wait. It keeps waiting while this process is asked to stop: one of the two must unmount.
func (m *embedded) outcome(ctx context.Context, heir *handoff.Heir) error {
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { // ends with wait
		t := time.NewTimer(letGoTime)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-wait.Done():
		}
	})()
	err := heir.Outcome(wait, silentTime)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, handoff.ErrBlocked):
	case wait.Err() == nil:
		return err
	default:
		err = errors.New("it did not answer in time")
	}
	m.log.Error("the new daemon does not answer the takeover in time: killing it", zap.Int("pid", heir.PID), zap.Error(err))
	return errors.Join(err, heir.Kill())
}

// report tells the process before, until stop, that this one gets on: a step of the start has ended since it told so last,
// or the processor has worked for it.
func (m *embedded) report(from *handoff.Predecessor) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		tick := time.NewTicker(silentTime / 8)
		defer tick.Stop()
		for steps, worked := m.steps.Load(), processorTime(); ; {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			s, w := m.steps.Load(), processorTime()
			if s == steps && w-worked < leastWork {
				continue
			}
			steps, worked = s, w
			if from.Working() != nil {
				return // the main line sees that, too
			}
		}
	}()
	return func() { close(end); <-ended }
}

// leastWork is more than an idle process works in silentTime.
const leastWork = 20 * time.Millisecond

// processorTime returns for how long processors have worked for this process.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// takeBack opens everything again and answers the mount, because heir has failed. It does so
// even if this process must stop: then the stop follows as usual.
func (m *embedded) takeBack(ctx context.Context, heir *handoff.Heir, why error) (*daemon, error) {
	m.log.Error("the takeover failed: taking the mount back", zap.Error(why))
	m.session.Epoch++ // the heir may have used the number
	d, err := m.restart(context.WithoutCancel(ctx))
	if err == nil {
		heir.TakenBack()
		return d, nil
	}
	err = fmt.Errorf("take the mount back: %w", err)
	if busy := (*mem.BusyError)(nil); errors.As(err, &busy) && busy.PID == heir.PID {
		// It lives in spite of its message, and may answer the mount.
		heir.Close()
		return nil, errors.Join(err, m.session.Close())
	}
	err = errors.Join(err, m.session.Unmount(), m.session.Close())
	heir.Refuse(err)
	return nil, err
}

// restart is start for a mount that another process tried to answer. It waits for the locks of
// that process by polling, since no event tells its end.
func (m *embedded) restart(ctx context.Context) (*daemon, error) {
	until := time.Now().Add(CloseGrace)
	for tick := (&Pace{}); ; {
		d, err := m.start(ctx)
		if err == nil || ctx.Err() != nil || time.Now().After(until) {
			return d, err
		}
		if why := fmt.Sprint(err); why != tick.said {
			tick.said = why
			m.log.Warn("take the mount back", zap.Error(err))
		}
		tick.Wait(ctx)
	}
}

// TakeOver is Mount for a mount that another daemon serves: it replaces that daemon.
func (p Program) TakeOver(ctx context.Context, cfg *config.Config, dir string, ready *Readiness) error {
	log, err := NewLogger(cfg)
	if err != nil {
		return err
	}
	defer hearHangup(log)()
	defer serveDebug(log.Named("debug"))()
	Warn(cfg, log)
	conn, err := p.findDaemon(ctx, cfg, dir)
	if err != nil {
		return err
	}
	old := conn.Greeting()
	log.Info("taking the mount over", zap.String("dir", old.Mount.Dir), zap.Int("pid", old.PID), zap.String("version", old.Release))
	with, err := watchLauncher(old.Mount.EndsWith, log)
	if err != nil {
		return exit.With(exit.Mount, errors.Join(fmt.Errorf("takeover of %s: %w", dir, err), conn.Close()))
	}
	defer with.close()
	o := old.Mount
	m := &embedded{
		program: p, cfg: cfg, at: site{path: o.Dir, root: rootDir{o.RootMode, o.RootUID, o.RootGID}, memory: o.MemoryAt}, ready: ready, log: log, with: with,
	}
	m.guard.watch(o.Dir, handoff.JoinMark, log) // before the old process, or its watcher, can leave
	defer m.guard.close()
	if m.guard.mark == nil {
		return exit.With(exit.Mount, errors.Join(fmt.Errorf("takeover of %s: the mount cannot be marked", dir), conn.Close()))
	}
	from, handed, err := conn.TakeOver(ctx, p.Version)
	if err != nil {
		m.guard.leave()
		return exit.With(exit.Mount, fmt.Errorf("takeover of %s: %w", dir, err))
	}
	defer from.Close()
	m.session = &device.Session{Dir: o.Dir, Dev: handed.Dev, Spin: handed.Spin, Init: handed.Init, Epoch: handed.Epoch, Stale: handed.Stale}
	if m.quotas, err = decodeSettings(handed.Settings); err != nil {
		log.Warn("the earlier process has sent settings that are not understood: quotas that were set are gone", zap.Error(err))
	}
	told := m.report(from)
	d, err := m.startHanded(ctx)
	told()
	if err != nil {
		err = errors.Join(err, m.giveUp(from, err))
		m.guard.leave()
		return err
	}
	ready.say(o.Dir, "mounted on "+o.Dir+"\nMAINPID="+strconv.Itoa(os.Getpid())) // before the old process ends, so that systemd sees no failure
	if err := from.Serving(); err != nil {
		log.Warn("the earlier process did not end cleanly", zap.Int("pid", old.PID), zap.Error(err))
	}
	return m.run(ctx, d)
}

// startHanded is start with what another process has sent.
func (m *embedded) startHanded(ctx context.Context) (*daemon, error) {
	if err := m.session.Find(); err != nil {
		return nil, err
	}
	for _, f := range []*os.File{m.session.Dev, m.session.Spin} {
		if err := checkFuse(f); err != nil {
			return nil, err
		}
	}
	return m.start(ctx)
}

// giveUp makes the old process take the mount back. If the old process has ended without that,
// giveUp unmounts, so that no client waits. A living old process unmounts by itself.
func (m *embedded) giveUp(from *handoff.Predecessor, why error) error {
	err := m.session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), letGoTime)
	defer cancel()
	failed := from.Failed(ctx, why)
	switch {
	case failed == nil:
		m.log.Warn("the earlier process answers the mount again")
		return err
	case errors.Is(failed, handoff.ErrRefused):
		return errors.Join(err, fmt.Errorf("the earlier process could not take the mount back, and has unmounted it: %w", failed))
	case ctx.Err() != nil || !from.Ended():
		return errors.Join(err, fmt.Errorf("the earlier process does not confirm that it answers the mount again: %w", failed))
	}
	return errors.Join(err, fmt.Errorf("the earlier process has ended, so the mount is unmounted: %w", failed),
		m.session.Unmount())
}

// findDaemon returns a connection to the daemon of the mount at dir. That daemon offers a takeover and accepts cfg.
func (p Program) findDaemon(ctx context.Context, cfg *config.Config, dir string) (*handoff.Conn, error) {
	if cfg.Mode != config.ModeEmbedded {
		return nil, exit.With(exit.Config, fmt.Errorf("takeover: mode %s has no memory to take over; its owner, kvfs serve, is restarted instead", cfg.Mode))
	}
	if err := errors.Join(checkMemory(cfg, zap.NewNop()), checkPlaces(cfg, "")); err != nil {
		return nil, err
	}
	m, err := mounts.Find(dir)
	switch {
	case err != nil:
		err = fmt.Errorf("takeover: %w", err)
	case m == nil:
		err = fmt.Errorf("takeover: nothing is mounted at %s. To mount it, run: kvfs mount %s", dir, dir)
	case m.FSType != mounts.Type:
		err = fmt.Errorf("takeover: %s is not a kvfs mount: its type is %s", dir, m.FSType)
	case os.Geteuid() != 0:
		err = fmt.Errorf("takeover of %s: only root can take a mount over", dir)
	}
	if err != nil {
		return nil, exit.With(exit.Mount, err)
	}
	short, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	conn, err := handoff.Dial(short, takeoverPath(m))
	if err != nil {
		return nil, exit.With(exit.Mount, fmt.Errorf("takeover of %s: %w", dir, whyNoDaemon(m, err)))
	}
	if err := p.suits(conn, cfg, m); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// whyNoDaemon explains why the daemon of a mount does not greet.
func whyNoDaemon(m *mountinfo.Info, err error) error {
	if !errors.Is(err, handoff.ErrNoOwner) {
		return fmt.Errorf("its daemon does not answer: %w", err)
	}
	if mounts.Abandoned(m) || mounts.Dead(mounts.Answers(m.Mountpoint)) {
		return errors.New("its daemon is dead. Run kvfs mount without --takeover: it adopts the blocks in memory")
	}
	text, _ := client.Status(m.Mountpoint, mounts.Timeout)
	now, _ := status.Parse(text) // if it is unreadable, no reason is known
	switch {
	case now.Mount.Mode == config.ModeStandaloneStore:
		return fmt.Errorf("its mode is %s; its owner, kvfs serve, is restarted instead", now.Mount.Mode)
	case now.Mount.TakeoverReason != "":
		return errors.New(now.Mount.TakeoverReason)
	}
	return fmt.Errorf("its daemon offers no takeover: %w", err)
}

// suits fails if this process cannot replace the daemon at the other end.
func (p Program) suits(c *handoff.Conn, cfg *config.Config, m *mountinfo.Info) error {
	old, o := c.Greeting(), c.Greeting().Mount
	if o == nil {
		return exit.With(exit.Mount, errors.New("takeover: the answering process offers no mount"))
	}
	if old.PID != c.PID() || !sameNamespace(old.PID, "mnt") {
		return exit.With(exit.Mount, fmt.Errorf("takeover: the daemon of %s runs in another pid or mount name space", m.Mountpoint))
	}
	if o.Dir != m.Mountpoint {
		return exit.With(exit.Mount, fmt.Errorf("takeover: the daemon has %s mounted as %s: use that path", m.Mountpoint, o.Dir))
	}
	if isOlder(p.Version, old.Release) {
		return exit.With(exit.Mount, fmt.Errorf("takeover: this is %s, older than the daemon's %s", p.Version, old.Release))
	}
	var errs []error
	differ := func(name string, now, was any) {
		if now != was {
			errs = append(errs, fmt.Errorf("%s: got %v, the daemon has %v, and a takeover cannot change it", name, now, was))
		}
	}
	dir, err := memoryDir(cfg)
	if err != nil {
		return exit.With(exit.Config, fmt.Errorf("memory.dir: %w", err))
	}
	differ("memory.dir", cmp.Or(dir, "none"), cmp.Or(o.MemoryDir, "none"))
	differ("mount.fs_name", cfg.Mount.FSName, o.FSName)
	differ("mount.allow_other", onOff(allowOther(cfg)), onOff(o.AllowOther))
	differ("mount.max_write", cfg.Mount.MaxWrite, scalar.Size(o.MaxWrite))
	if cfg.Memory.Passthrough == config.Off {
		errs = append(errs, fmt.Errorf("memory.passthrough: got %s, and a takeover cannot change it to that", config.Off))
	}
	return exit.With(exit.Config, errors.Join(errs...))
}

func onOff(on bool) string {
	if on {
		return config.On
	}
	return config.Off
}

// sameNamespace reports whether a process is in our name space of that kind, as far as we can see.
func sameNamespace(pid int, kind string) bool {
	ours, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return true
	}
	theirs, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(pid), "ns", kind))
	return err != nil || ours == theirs
}

// isOlder reports whether version a is before b. A version that was not released is neither before nor after any.
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

// settings are what commands have set in a daemon, as it tells the next one.
type settings struct {
	Quotas []memory.Quota `json:"quotas,omitempty"`
	Pins   []memory.Quota `json:"pin_quotas,omitempty"` // those with Pinned; earlier versions do not know them
}

// maxSettings bounds them, in bytes: they travel in a frame of 64 KiB.
const maxSettings = 32 << 10

// encodeSettings returns nothing for settings that are too long.
func encodeSettings(quotas []memory.Quota, log *zap.Logger) []byte {
	var s settings
	for _, q := range quotas {
		if q.Pinned {
			s.Pins = append(s.Pins, q)
		} else {
			s.Quotas = append(s.Quotas, q)
		}
	}
	text, err := json.Marshal(s)
	if err != nil || len(text) > maxSettings {
		log.Warn("the next process does not get the quotas that were set", zap.Int("bytes", len(text)), zap.Error(err))
		return nil
	}
	return text
}

// decodeSettings reads what another daemon, perhaps of another version, has sent. It may have sent nothing.
func decodeSettings(text []byte) ([]memory.Quota, error) {
	var s settings
	if len(text) == 0 {
		return nil, nil
	}
	err := json.Unmarshal(text, &s)
	for _, q := range s.Pins {
		q.Pinned = true
		s.Quotas = append(s.Quotas, q)
	}
	return s.Quotas, err
}

func (d *daemon) quotasSet() (list []memory.Quota) {
	for _, q := range d.engine.Accounts().Quotas() {
		if q.Bytes > 0 && !q.Configured {
			list = append(list, q.Quota)
		}
		if q.PinQuotaBytes > 0 {
			list = append(list, memory.Quota{Kind: q.Kind, Name: q.Name, Bytes: q.PinQuotaBytes, Pinned: true})
		}
	}
	return list
}

func (d *daemon) restoreQuotas(ctx context.Context, list []memory.Quota) {
	for _, q := range list {
		if err := d.engine.Accounts().SetQuota(ctx, q); err != nil { // memory may be smaller now
			d.log.Warn("a quota that was set is lost", zap.Error(err))
		}
	}
}
