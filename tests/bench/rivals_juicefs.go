package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const juiceName = "JuiceFS"

// juiceMount is a JuiceFS with its metadata in a Redis of its own and its objects in /dev/shm. Its kernel cache is that of
// any JuiceFS mount: files that were closed stay in the page cache.
type juiceMount struct {
	target
	meta    *rival
	cmd     *exec.Cmd
	objects string
}

// startJuice mounts a JuiceFS.
func (b *bench) startJuice(ctx context.Context) (m *juiceMount, err error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(root, "bin", "juicefs")
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("%w (.ci/deps bench builds it)", err)
	}
	m = &juiceMount{objects: filepath.Join(b.shmDir, "juicefs")}
	m.name = juiceName
	if m.dir, err = b.mountPoint("juicefs"); err != nil {
		return nil, err
	}
	if m.meta, err = b.startRival(ctx, wires()[0], kib); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.stop())
		}
	}()
	meta := "unix://" + filepath.Join(m.meta.cmd.Dir, "socket") + "?db=1"
	format := exec.CommandContext(ctx, program, "format", "--quiet", "--storage", "file", "--bucket", m.objects+"/", "--trash-days", "0", meta, "bench")
	if out, err := format.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("juicefs format: %w: %s", err, out)
	}
	var log tail
	m.cmd = exec.Command(program, "mount", "--quiet", "--no-usage-report", "--no-syslog", "--backup-meta", "0", "--cache-dir", "memory",
		"--cache-size", fmt.Sprint(b.config.memoryMiB), "--metrics", "127.0.0.1:0", meta, m.dir)
	m.cmd.Stdout, m.cmd.Stderr, m.cmd.Env = &log, &log, plainEnv()
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := m.cmd.Start(); err != nil {
		m.cmd = nil
		return nil, err
	}
	for begin := time.Now(); !isFuse(m.dir); {
		if time.Since(begin) > rivalLimit {
			return nil, fmt.Errorf("juicefs has not mounted after %v%s", rivalLimit, log.quote())
		}
		if err := pause(ctx, pollEvery); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// isFuse reports whether a file system in user space is mounted on a directory.
func isFuse(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
}

// stop unmounts, and removes all objects.
func (m *juiceMount) stop() error {
	detach(m.dir)
	if m.cmd != nil {
		m.cmd.Process.Signal(syscall.SIGTERM)
		m.cmd.Wait() // what it says of being ended is no failure
	}
	return errors.Join(m.meta.stop(), os.RemoveAll(m.objects))
}

// repositoryRoot returns the directory of this module.
func repositoryRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	return strings.TrimSpace(string(out)), err
}
