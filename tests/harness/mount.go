package harness

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// User is the user of a process.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary ones
}

// Options say how to start a daemon. The zero value is an embedded mount with
// 256 MiB of memory and no other tier.
type Options struct {
	MemorySize string   // --memory-size. Empty means 256MiB; "-" leaves the flag out.
	Flags      []string // more flags
	Env        []string // more environment, as "KEY=value"
	Config     string   // YAML, written to a file and given with --config
	Dir        string   // mount point; made and removed unless it exists. Empty means a new one.
	User       *User    // nil means the test's own
	ExpectFail bool     // the daemon should exit by itself before it is ready
	MayFail    bool     // the daemon may be ready or exit; see Running
	Disk       string   // size of a disk tier in DiskDir; empty means none
	DiskDir    string   // its directory. Empty means a new one, removed with the test.
	Launch     Launch   // restrictions of the process
	Binary     string   // kvfs to run. Empty means that of Binary.
}

// Daemon is a kvfs daemon and its mount.
type Daemon struct {
	Dir       string // mount point
	Socket    string // of an owner; see Serve
	MemoryDir string // value of --memory-dir
	DiskDir   string // directory of the disk tier, if there is one
	Pid       int    // of the daemon; changes with Restart
	ExitCode  int    // once the daemon has ended; -1 if by a signal
	Reference bool   // not kvfs but a plain file system

	tb      testing.TB
	opts    Options
	base    string
	cmd     *exec.Cmd
	exited  chan struct{} // closed when cmd has been waited for
	exiting sync.Mutex    // of ExitCode
	logs    string        // start of this start's log
	logFrom int           // where the log of this start begins

	trying bool // this start may end with a refusal
}

// Mount starts a daemon and waits until its mount is ready, or with ExpectFail until the daemon has
// exited. If the other happens, the test fails. Everything is gone when the test ends.
func Mount(tb testing.TB, opts Options) *Daemon {
	tb.Helper()
	d := &Daemon{tb: tb, opts: opts, Reference: Reference()}
	d.makeDirs()
	tb.Cleanup(d.cleanup)
	if d.Reference {
		d.startReference()
	} else {
		NeedFuse(tb)
		d.start()
	}
	return d
}

// NeedFuse skips the test if there is no /dev/fuse.
func NeedFuse(tb testing.TB) {
	tb.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) && os.Getuid() != 0 {
		return // fusermount3 may open it
	}
	if err != nil {
		Skip(tb, "/dev/fuse: %v", err)
	}
	unix.Close(fd)
}

func (d *Daemon) makeDirs() {
	d.tb.Helper()
	base, err := os.MkdirTemp(processDir(), "mount")
	if err != nil {
		d.tb.Fatal(err)
	}
	mem, err := os.MkdirTemp(memoryDir(), "memory")
	if err != nil {
		d.tb.Fatal(err)
	}
	d.base, d.MemoryDir = base, mem
	if d.DiskDir = d.opts.DiskDir; d.opts.Disk != "" && d.DiskDir == "" && !d.Reference {
		d.DiskDir = NewDiskDir(d.tb, d.opts.User)
	}
	d.logs = filepath.Join(base, "log")
	if d.Dir = d.opts.Dir; d.Dir == "" {
		d.Dir = filepath.Join(base, "mnt")
		if err := os.Mkdir(d.Dir, 0o755); err != nil {
			d.tb.Fatal(err)
		}
	}
	for _, dir := range []string{d.base, d.MemoryDir, d.Dir} {
		if d.opts.Dir != "" && dir == d.Dir {
			continue
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			d.tb.Fatal(err)
		}
		if u := d.opts.User; u != nil {
			if err := os.Chown(dir, int(u.UID), int(u.GID)); err != nil {
				d.tb.Fatal(err)
			}
		}
	}
}

// startReference mounts a tmpfs, or without the permission uses the plain directory.
func (d *Daemon) startReference() {
	d.tb.Helper()
	if d.opts.ExpectFail {
		Skip(d.tb, "reference mode: no daemon")
	}
	if os.Getuid() != 0 {
		return
	}
	if err := unix.Mount("reference", d.Dir, "tmpfs", 0, "size=1g,mode=755"); err != nil {
		d.tb.Fatalf("mount tmpfs: %v", err)
	}
}

func (d *Daemon) args() []string {
	command, last := "mount", []string{d.Dir}
	if d.Socket != "" {
		command, last = "serve", []string{"--store-socket", d.Socket}
	}
	args := []string{command, "--ready-fd", "3", "--memory-dir", d.MemoryDir}
	switch d.opts.MemorySize {
	case "":
		args = append(args, "--memory-size", "256MiB")
	case "-":
	default:
		args = append(args, "--memory-size", d.opts.MemorySize)
	}
	if d.opts.Disk != "" {
		args = append(args, "--disk", "path="+d.DiskDir+",size="+d.opts.Disk)
	}
	if d.opts.Config != "" {
		args = append(args, "--config", d.writeConfig())
	}
	return append(append(args, d.opts.Flags...), last...)
}

func (d *Daemon) writeConfig() string {
	d.tb.Helper()
	path := filepath.Join(d.base, "config.yaml")
	if err := os.WriteFile(path, []byte(d.opts.Config), 0o644); err != nil {
		d.tb.Fatal(err)
	}
	return path
}

func (d *Daemon) start() {
	d.tb.Helper()
	bin := d.opts.Binary
	if bin == "" {
		bin = Binary(d.tb)
	}
	r, w, err := os.Pipe()
	if err != nil {
		d.tb.Fatal(err)
	}
	defer r.Close()
	logFile, err := os.OpenFile(d.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		d.tb.Fatal(err)
	}
	d.logFrom = len(d.Log())
	args := append([]string{bin}, d.args()...)
	command := d.opts.Launch.command(args)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{w}
	cmd.Env = append(append(os.Environ(), "STATE_DIRECTORY="+filepath.Join(d.base, "state")), d.opts.Env...)
	if len(command) != len(args) {
		cmd.Env = append(cmd.Env, helperEnv+"="+launchHelper)
	}
	// The daemon must not outlive a test process that dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	setUser(cmd, d.opts.User)
	fmt.Fprintf(logFile, "+ kvfs %s\n", strings.Join(args[1:], " "))
	err = cmd.Start()
	w.Close()
	logFile.Close()
	if err != nil {
		d.tb.Fatalf("start %v: %v", cmd.Args, err)
	}
	exited := make(chan struct{})
	d.cmd, d.Pid, d.exited = cmd, cmd.Process.Pid, exited
	go func() { // ends with the daemon; cleanup ends the daemon
		cmd.Wait()
		d.exiting.Lock() // the daemon before a takeover has one, too
		d.ExitCode = cmd.ProcessState.ExitCode()
		d.exiting.Unlock()
		close(exited)
	}()
	d.waitReady(r)
}

func setUser(cmd *exec.Cmd, u *User) {
	if u != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
		cmd.Dir = "/"
	}
}

func (d *Daemon) waitReady(r *os.File) {
	d.tb.Helper()
	r.SetReadDeadline(time.Now().Add(Deadline))
	line, err := bufio.NewReader(r).ReadString('\n')
	switch ready := err == nil; {
	case ready && (d.mayFail() || !d.opts.ExpectFail):
		return
	case ready:
		d.tb.Fatalf("daemon got ready (%q), want it to fail\n%s", line, d.Log())
	case errors.Is(err, os.ErrDeadlineExceeded):
		unix.Kill(d.Pid, unix.SIGQUIT) // for the goroutines in the log
		d.waitExit(d.tb.Errorf)
		d.tb.Fatalf("daemon not ready after %v\n%s", Deadline, d.Log())
	}
	if !d.waitExit(d.tb.Fatalf) {
		return
	}
	if !d.mayFail() && !d.opts.ExpectFail {
		d.tb.Fatalf("daemon exited with %d before it was ready\n%s", d.ExitCode, d.Log())
	}
}

func (d *Daemon) mayFail() bool { return d.trying || d.opts.MayFail }

// waitExit waits for the daemon to end. If it does not, waitExit kills it and calls fail.
func (d *Daemon) waitExit(fail func(string, ...any)) bool {
	d.tb.Helper()
	select {
	case <-d.exited:
		return true
	case <-time.After(Deadline):
	}
	unix.Kill(d.Pid, unix.SIGKILL)
	<-d.exited
	fail("daemon did not exit within %v\n%s", Deadline, d.Log())
	return false
}

// Running reports whether the daemon has not ended yet.
func (d *Daemon) Running() bool {
	if d.cmd == nil {
		return false
	}
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// Exited is closed when the daemon has ended.
func (d *Daemon) Exited() <-chan struct{} { return d.exited }

// Kill kills the daemon, as in a crash. Its dead mount stays.
func (d *Daemon) Kill() {
	d.tb.Helper()
	KvfsOnly(d.tb, "no daemon to kill")
	unix.Kill(d.Pid, unix.SIGKILL)
	<-d.exited
}

// Stop asks the daemon to end with SIGTERM and returns its exit code.
func (d *Daemon) Stop() int {
	d.tb.Helper()
	KvfsOnly(d.tb, "no daemon to stop")
	unix.Kill(d.Pid, unix.SIGTERM)
	d.waitExit(d.tb.Errorf)
	return d.ExitCode
}

// Restart starts the daemon again with the same arguments. It stops the daemon first if it runs.
func (d *Daemon) Restart() {
	d.tb.Helper()
	KvfsOnly(d.tb, "no daemon to restart")
	if d.Running() {
		d.Stop()
	}
	d.start()
}

// TakeOver starts a daemon with the same arguments that takes the mount over, and waits until the one before has ended.
func (d *Daemon) TakeOver() {
	d.tb.Helper()
	KvfsOnly(d.tb, "no daemon to replace")
	old := d.exited
	d.opts.Flags = append([]string{"--takeover"}, d.opts.Flags...)
	d.start()
	d.opts.Flags = d.opts.Flags[1:]
	select {
	case <-old:
	case <-time.After(Deadline):
		d.tb.Errorf("the daemon before did not exit within %v\n%s", Deadline, d.Log())
	}
}

// TryRestart is Restart, but the daemon may also refuse and end by itself. It reports whether the
// daemon serves. LastLog has the output.
func (d *Daemon) TryRestart() bool {
	d.tb.Helper()
	d.trying = true
	defer func() { d.trying = false }()
	d.Restart()
	return d.Running()
}

// RestartWith is Restart with other options. Options for directories or the user have no effect.
func (d *Daemon) RestartWith(opts Options) {
	d.tb.Helper()
	opts.Dir, opts.User, opts.DiskDir = d.opts.Dir, d.opts.User, d.opts.DiskDir
	d.opts = opts
	d.Restart()
}

// Log returns the output of the daemon so far, of all starts together.
func (d *Daemon) Log() string {
	b, _ := os.ReadFile(d.logs)
	return string(b)
}

// LastLog returns the output of the daemon since its last start.
func (d *Daemon) LastLog() string { return d.Log()[d.logFrom:] }

// Path joins elems to the mount point.
func (d *Daemon) Path(elems ...string) string {
	return filepath.Join(append([]string{d.Dir}, elems...)...)
}

var trouble = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE|unexpected fault)`)

func (d *Daemon) cleanup() {
	if d.Running() {
		unix.Kill(d.Pid, unix.SIGTERM)
		d.waitExit(d.tb.Errorf)
	}
	log := d.Log()
	if at := trouble.FindStringIndex(log); at != nil {
		d.tb.Errorf("daemon log has %q:\n%.8000s", strings.TrimSpace(log[at[0]:at[1]]), log[at[0]:])
	}
	if d.tb.Failed() && log != "" {
		d.tb.Logf("daemon log:\n%s", tail(log, 16<<10))
	}
	for range MountPoints(d.Dir) {
		unmount(d.Dir)
	}
	removeTree(d.MemoryDir)
	removeTree(d.base)
}

func tail(s string, n int) string {
	if len(s) > n {
		s = "[...]" + s[len(s)-n:]
	}
	return s
}
