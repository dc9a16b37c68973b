package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Background starts kvfs mount with args, which mount dir, as a process in a new session, and returns when its mount
// answers. If that process ends before, Background ends this process with its exit code; the other process has logged the
// reason.
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
	if isPipe(log) || show.IsTerminal(log) {
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

// isPipe reports whether f is a pipe or a socket, as from a shell with | or from ssh.
func isPipe(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
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
