package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/memory"
)

// Mount is the life of a mount process: it mounts at dir, and returns when ctx ends, the mount
// is gone, or another process answers it. In mode embedded this process is a daemon, and its
// mount ends with process endsWith if that is not 0. Errors have an exit code.
func (p Program) Mount(ctx context.Context, cfg *config.Config, dir string, endsWith int, ready *Readiness) (err error) {
	log, err := NewLogger(cfg)
	if err != nil {
		return err
	}
	defer hearHangup(log)()
	Warn(cfg, log)
	if dir == "" {
		return exit.With(exit.Config, errors.New("mount point: the name is empty"))
	}
	dir, err = mountPoint(dir, log)
	if err != nil {
		return exit.With(exit.Mount, err)
	}
	if err := checkApart(cfg, dir); err != nil {
		return exit.With(exit.Config, err)
	}
	if err := checkPlaces(cfg, dir); err != nil {
		return err
	}
	if cfg.Mode == config.ModeStandaloneStore {
		return p.attach(ctx, cfg, dir, ready, log)
	}
	defer serveDebug(log.Named("debug"))()
	root, err := rootOf(dir)
	if err != nil {
		return err
	}
	m := &embedded{program: p, cfg: cfg, at: site{path: dir, root: root}, ready: ready, log: log, with: &launcher{pid: endsWith}}
	defer m.guard.close()
	d, err := m.start(ctx)
	if err != nil {
		return err
	}
	ready.ready(dir)
	return m.run(ctx, d)
}

// embedded is a process with a mount of its own: it opens the engine, mounts, and closes both.
// The mount may come from another process, and may go to one.
type embedded struct {
	program Program
	cfg     *config.Config
	at      site
	ready   *Readiness
	log     *zap.Logger
	with    *launcher
	guard   guard
	steps   atomic.Int64 // of start, that have ended

	quotas  []memory.Quota  // that were set at run time, of the daemon before
	session *device.Session // an existing mount that no process answers; nil: the mount must be made, or is answered
}

// start opens the tiers and answers the mount, which it makes if there is none. It answers
// last: if start fails, the kernel has got no answer, and memory stays with an existing mount.
func (m *embedded) start(ctx context.Context) (*daemon, error) {
	web, err := openWeb(m.cfg.HTTP, m.cfg.HTTPTokenFile, m.log) // first, because it fails most often and costs nothing
	if err != nil {
		return nil, err
	}
	web.steps = &m.steps
	hooks := &fs.Hooks{}
	d, err := m.program.openDaemon(ctx, m.cfg, m.at, hooks, web, m.log)
	if err != nil {
		return nil, errors.Join(err, web.close())
	}
	d.endsWith = m.with.pid
	d.restoreQuotas(ctx, m.quotas)
	web.at("mount " + m.at.path + ": not serving yet")
	if err = d.peers.start(d.engine); err != nil {
		err = fmt.Errorf("peers: %w", err)
	} else if m.session != nil {
		d.server, err = fs.Resume(d.engine, hooks, m.session, serverOptions(m.cfg, d, m.log))
		if err = exit.With(exit.Mount, err); err == nil {
			m.guard.serving()
		}
	} else if err = exit.With(exit.Mount, mountOnce(ctx, m.at.path, func() (err error) {
		d.server, err = fs.Mount(d.engine, hooks, serverOptions(m.cfg, d, m.log))
		return err
	})); err == nil {
		m.guard.watch(m.at.path, handoff.NewMark, m.log)
	}
	if err != nil {
		return nil, errors.Join(err, web.close(), d.closeUnused(m.session != nil))
	}
	m.session, m.at.memory = nil, "" // the server owns them now
	d.serving.Store(d.server)
	d.keepAlive()
	web.works(d)
	d.makeOffer(m.at.root)
	m.log.Info("mounted", zap.String("dir", m.at.path), zap.String("read_path", d.server.ReadPath()), zap.Uint32("epoch", d.server.Epoch()),
		zap.String("memory", d.cfg.Memory.Size.String()), zap.String("memory_dir", d.memory.Dir()))
	return d, nil
}

// run serves until it must stop, the mount is gone, or another process answers it.
func (m *embedded) run(ctx context.Context, d *daemon) error {
	for {
		var err error
		keep := m.cfg.Memory.Keep
		select {
		case <-ctx.Done():
			m.log.Info("stopping")
		case <-d.server.Served():
			if !m.guard.aborted() {
				m.log.Info("unmounted")
				break
			}
			err, keep = errAborted, true // systemd starts the next process, which adopts the memory
			m.log.Error("the connection was aborted and the mount is still there: stopping; blocks in memory stay for the next start", zap.String("dir", m.at.path))
		case <-m.with.ended:
			m.log.Info("the kvfs run that made this mount has ended: stopping", zap.Int("pid", m.with.pid))
		case err = <-d.peers.fatal():
			m.log.Error("this node must leave its cluster: stopping", zap.Error(err))
		case heir := <-d.offer.Load().Heir():
			if d, err = m.handOver(ctx, d, heir); d != nil {
				continue
			}
			return err
		}
		m.ready.stopping()
		return errors.Join(err, d.offer.Load().Close(), d.web.close(), d.stop(keep))
	}
}

// stop unmounts, waits until all requests are answered, and closes the tiers. Open handles keep
// their bytes until they are closed.
func (d *daemon) stop(keep bool) error {
	var err error
	select {
	case <-d.server.Served(): // ours is gone; the mount at the directory now, if any, is another's
	default:
		err = d.server.Unmount()
	}
	gone := make(chan struct{})
	go func() { d.server.Wait(); close(gone) }() // ends with the mount
	// A client with open files keeps the detached mount alive, but not this process.
	t := time.NewTimer(min(time.Duration(d.cfg.DrainTimeout), time.Second))
	defer t.Stop()
	select {
	case <-gone:
	case <-t.C:
		d.server.Close()
	}
	return errors.Join(err, d.close(keep))
}

// lockWait bounds how long mountOnce waits for another kvfs that mounts there: a mount takes less.
const lockWait = 5 * time.Second

// mountOnce calls mount, which mounts at dir, while no other kvfs does. It fails if another has
// mounted since mountPoint looked: an attached mount may wait long for its owner before it
// mounts. A second mount would hide the first, which could then not be unmounted.
func mountOnce(ctx context.Context, dir string, mount func() error) error {
	if err := notMounted(dir); err != nil {
		return err
	}
	fd, err := openUnmounted(dir)
	if err != nil {
		return fmt.Errorf("mount point %s: %w", dir, err)
	}
	defer unix.Close(fd)
	tryLock(ctx, fd)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := notMounted(dir); err != nil {
		return err
	}
	return mount()
}

// openUnmounted opens dir, but not a mount on it, which perhaps no process answers yet.
func openUnmounted(dir string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	fd, err := unix.Openat2(parent, filepath.Base(dir), &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_XDEV})
	if err != unix.EXDEV && err != unix.ENOSYS {
		return fd, err
	}
	// Another mount is there, or openat2(2) is missing (Linux before 5.6).
	if err := notMounted(dir); err != nil {
		return -1, err
	}
	return unix.Open(dir, flags, 0)
}

// tryLock locks the directory of fd. If that fails, because the file system has no locks or another program
// holds one, the check for a mount must suffice. It polls: the only call that waits for a lock cannot be ended.
func tryLock(ctx context.Context, fd int) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// notMounted fails if the mount table has a kvfs mount at dir, an absolute path without links. It may not answer yet.
func notMounted(dir string) error {
	m, err := device.TopMount(dir)
	switch {
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case mounts.IsOurs(m):
		return servedAlready(dir)
	}
	return nil
}

// clearDead unmounts what killed daemons left at dir. It fails if a daemon serves dir, or seems to.
func clearDead(dir string, log *zap.Logger) error {
	for {
		m, err := mounts.Find(dir)
		switch {
		case errors.Is(err, iofs.ErrNotExist):
			return fmt.Errorf("mount point %s does not exist: to make it, run: mkdir -p %[1]s", dir)
		case err != nil:
			return fmt.Errorf("mount point: %w", err)
		case !mounts.IsOurs(m):
			return nil
		case !mounts.Abandoned(m):
			err = mounts.Answers(m.Mountpoint)
			if err == nil {
				return servedAlready(dir)
			}
			if errors.Is(err, mounts.ErrSilent) && !mounts.Abandoned(m) { // its process may have ended meanwhile
				return fmt.Errorf("mount point %w (process %d; 0 is unknown)", err, mounts.Server(m))
			}
		}
		log.Warn("unmounting the mount of a dead daemon", zap.String("dir", m.Mountpoint))
		if err := mounts.GiveUp(context.Background(), m); err != nil {
			return fmt.Errorf("mount point %s: stale mount: %w", dir, err)
		}
	}
}

// mountPoint returns dir as a clean absolute path, after clearDead. It fails if dir is not an empty directory.
func mountPoint(dir string, log *zap.Logger) (string, error) {
	if err := clearDead(dir, log); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	entries, err := os.ReadDir(abs)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return "", fmt.Errorf("mount point %s: not a directory: name an empty one", dir)
	case err != nil:
		return "", fmt.Errorf("mount point: %w", err)
	case len(entries) > 0:
		return "", fmt.Errorf("mount point %s: not empty (%s): name an empty directory, because a mount hides what is in it", dir, entries[0].Name())
	}
	if err := unix.Access("/dev/fuse", unix.F_OK); err != nil {
		return "", &os.PathError{Op: "mount: open", Path: "/dev/fuse", Err: err}
	}
	return abs, nil
}

func servedAlready(dir string) error {
	return fmt.Errorf("mount point %s: a kvfs daemon serves it already. To replace it without a pause, run kvfs mount --takeover %[1]s; to end it, kvfs umount %[1]s", dir)
}

// checkApart fails if the mount point is a directory of the SSD tier, or in one: the mount
// would hide files of the tier, and the tier refuses directories with foreign files.
func checkApart(cfg *config.Config, dir string) error {
	for _, d := range cfg.Disk.Dirs {
		ssd, err := filepath.Abs(d.Path)
		if err == nil {
			if real, err := filepath.EvalSymlinks(ssd); err == nil { // else the directory does not exist yet
				ssd = real
			}
		}
		if err == nil && (dir == ssd || strings.HasPrefix(dir, ssd+"/")) {
			return fmt.Errorf("mount point %s: it is in the directory of the SSD tier, %s (disk.dirs)", dir, d.Path)
		}
	}
	return nil
}

// launcher is the kvfs run whose end unmounts the mount. The daemon that it started learns of its end by a signal, and needs
// only its number. Daemons that take the mount over are not its children, so they watch it.
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

func (l *launcher) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// Background starts kvfs mount with args, which mount dir, as a process in a new session, and returns when its mount answers.
// If that process ends before, Background ends this process with its exit code; the other process has logged the reason.
//
// The log goes to standard error if that is a file or a device, and else to a file that Background names: a terminal is for
// other things, and the reader of a pipe waits until no process has it open.
func Background(ctx context.Context, args []string, dir string) error {
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return arg == "-d" || arg == "--background" || arg == "--background=true"
	})
	args = slices.Insert(args, 1, "--ready-fd=3")
	log, from := os.Stderr, int64(0)
	to, err := log.Stat() // a pipe or a socket is from a shell with |, or from ssh
	if err == nil && to.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 || show.IsTerminal(log) {
		if log, from, err = logFile(dir); err != nil {
			return errors.Join(fmt.Errorf("no file for the log: %w. To name one, redirect standard error: 2>>FILE", err), theirs.Close())
		}
		defer log.Close()
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "kvfs"
	cmd.Stderr, cmd.ExtraFiles = log, []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) })() // the process may have ended
	if _, err := bufio.NewReader(ready).ReadString('\n'); err == nil {
		tellLog(log, from)
		if log != os.Stderr {
			fmt.Fprintln(os.Stderr, "kvfs: the daemon logs to "+log.Name())
		}
		return cmd.Process.Release()
	}
	err = cmd.Wait()
	tellLog(log, from)
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.Exited() {
		os.Exit(failed.ExitCode())
	}
	return errors.Join(errors.New("the daemon ended before its mount answered"), err)
}

// maxLog is the size from which on the log of earlier daemons makes room for a new one.
const maxLog = 8 << 20

// logFile opens the file for the log of a daemon that mounts dir. The log begins at from.
func logFile(dir string) (log *os.File, from int64, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, 0, err
	}
	logs, err := logDir()
	if err != nil {
		return nil, 0, err
	}
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, 0, err
	}
	name := filepath.Join(logs, strings.ReplaceAll(strings.Trim(abs, "/"), "/", "-")+".log")
	if info, err := os.Stat(name); err == nil && info.Size() > maxLog {
		if err := os.Rename(name, name+".old"); err != nil {
			return nil, 0, err
		}
	}
	if log, err = os.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		return nil, 0, err
	}
	info, err := log.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, log.Close())
	}
	return log, info.Size(), nil
}

// logDir returns the directory for logs: that of systemd if it gives one, else that of the machine for root, and of the user
// for others.
func logDir() (string, error) {
	if dir := os.Getenv("LOGS_DIRECTORY"); filepath.IsAbs(dir) {
		return dir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/log/kvfs", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "kvfs"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local/state/kvfs"), err
}

// tellLog writes the content of log after an offset, unless log is standard error.
func tellLog(log *os.File, from int64) {
	if log != os.Stderr {
		_, _ = io.Copy(os.Stderr, io.NewSectionReader(log, from, math.MaxInt64-from)) // the reader may be gone
	}
}
