package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mountKind is a file system in user space that kvfs is compared with.
type mountKind struct {
	name, program string // the program is in bin
	mount         func(*rivalMount, context.Context, *bench) error
}

func mountKinds() []mountKind {
	return []mountKind{{"JuiceFS", "juicefs", (*rivalMount).juicefs}, {"SeaweedFS", "weed", (*rivalMount).weed}}
}

// rivalMount is a mount of such a file system. Its kernel cache is that of any mount of it: files that were closed stay in
// the page cache.
type rivalMount struct {
	target
	program string
	data    string                      // a directory in /dev/shm with all that it stores
	meta    *rival                      // nil: it needs none
	cmds    []*exec.Cmd                 // servers before the mount
	sockets []string                    // those that it leaves elsewhere
	reclaim func(context.Context) error // frees the space of replaced blocks; nil: they leave none
	log     tail
}

// startMount mounts a file system. stop ends it.
func (b *bench) startMount(ctx context.Context, kind mountKind) (m *rivalMount, err error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	m = &rivalMount{program: filepath.Join(root, "bin", kind.program), data: filepath.Join(b.shmDir, kind.program)}
	m.name, m.log.echo = kind.name, b.config.verbose
	if _, err := os.Stat(m.program); err != nil {
		return nil, fmt.Errorf("%w (.ci/deps rivals builds it)", err)
	}
	if m.dir, err = b.mountPoint(kind.program); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.stop())
		}
	}()
	if err := os.Mkdir(m.data, 0o700); err != nil {
		return nil, err
	}
	if err := kind.mount(m, ctx, b); err != nil {
		return nil, err
	}
	for begin := time.Now(); !isFuse(m.dir); {
		if time.Since(begin) > rivalLimit {
			return nil, fmt.Errorf("%s has not mounted after %v%s", kind.program, rivalLimit, m.log.quote())
		}
		if err := pause(ctx, pollEvery); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// run starts a process that gets a signal when the bench dies.
func (m *rivalMount) run(signal syscall.Signal, args ...string) error {
	cmd := exec.Command(m.program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &m.log, &m.log, plainEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: signal}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.cmds = append(m.cmds, cmd)
	return nil
}

// juicefs mounts a JuiceFS with its metadata in a Redis of its own.
func (m *rivalMount) juicefs(ctx context.Context, b *bench) error {
	redis, err := b.startRival(ctx, wires()[0], kib)
	if err != nil {
		return err
	}
	m.meta = redis
	meta := "unix://" + filepath.Join(redis.cmd.Dir, "socket") + "?db=1"
	format := exec.CommandContext(ctx, m.program, "format", "--quiet", "--storage", "file", "--bucket", m.data+"/", "--trash-days", "0", meta, "bench")
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("juicefs format: %w: %s", err, out)
	}
	return m.run(syscall.SIGTERM, "mount", "--quiet", "--no-usage-report", "--no-syslog", "--backup-meta", "0", "--cache-dir", "memory",
		"--cache-size", fmt.Sprint(b.config.memoryMiB), "--metrics", "127.0.0.1:0", meta, m.dir)
}

// weed mounts a SeaweedFS whose master, volume server and filer are one process. It reserves the space of its cache at
// once, and writes may wait some seconds after its start.
func (m *rivalMount) weed(_ context.Context, b *bench) error {
	args := []string{"-logtostderr", "server", "-ip", "127.0.0.1", "-dir", m.data, "-master.telemetry=false", "-filer",
		"-filer.localSocket", filepath.Join(m.data, "filer.sock")}
	parts := []string{"filer", "master", "volume"}
	ports, err := freePorts(2 * len(parts)) // of each part for HTTP and for gRPC
	if err != nil {
		return err
	}
	for i, part := range parts {
		args = append(args, "-"+part+".port", ports[2*i], "-"+part+".port.grpc", ports[2*i+1])
		m.sockets = append(m.sockets, "/tmp/seaweedfs-"+part+"-grpc-"+ports[2*i+1]+".sock")
	}
	m.reclaim = func(ctx context.Context) error {
		ask, err := http.NewRequestWithContext(ctx, "GET", "http://127.0.0.1:"+ports[2]+"/vol/vacuum", nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(ask)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("vacuum: %s", answer.Status)
		}
		if answer != nil {
			answer.Body.Close()
		}
		return err
	}
	if err := m.run(syscall.SIGKILL, args...); err != nil {
		return err
	}
	return m.run(syscall.SIGTERM, "-logtostderr", "mount", "-filer", "127.0.0.1:"+ports[0]+"."+ports[1], "-dir", m.dir,
		"-cacheDir", filepath.Join(m.data, "cache"), "-cacheCapacityMB", fmt.Sprint(b.config.memoryMiB),
		"-localSocket", filepath.Join(m.data, "mount.sock"))
}

// freePorts returns TCP ports that nobody listens on.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // not earlier: no port twice
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

// isFuse reports whether a file system in user space is mounted on a directory.
func isFuse(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
}

// stop unmounts, ends the processes and removes what they stored.
func (m *rivalMount) stop() error {
	detach(m.dir)
	for _, cmd := range slices.Backward(m.cmds) {
		cmd.Process.Signal(cmd.SysProcAttr.Pdeathsig)
		cmd.Wait() // what it says of being ended is no failure
	}
	var err error
	if m.meta != nil {
		err = m.meta.stop()
	}
	for _, path := range m.sockets {
		os.Remove(path)
	}
	return errors.Join(err, os.RemoveAll(m.data))
}

// repositoryRoot returns the directory of this module.
func repositoryRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	return strings.TrimSpace(string(out)), err
}
