package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// wire is the protocol of a store as far as the bench speaks it.
type wire struct {
	name, program string
	args          func(socket string, mebibytes int) []string
	get           func(key string) []byte
	set           func(key string, size int) []byte // without the value and the end of line after it
	// value begins the first line of an answer to get that has a value of that size; after is what follows the value.
	value  func(size int) string
	after  string
	stored string // the answer to set
}

var errNoValue = errors.New("the store has no such value")

func wires() []wire {
	return []wire{{
		name: redisName, program: "redis-server",
		args: func(socket string, _ int) []string {
			return []string{"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"}
		},
		get: func(key string) []byte { return fmt.Appendf(nil, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key) },
		set: func(key string, size int) []byte {
			return fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, size)
		},
		value: func(size int) string { return fmt.Sprintf("$%d\r", size) },
		after: "\r\n", stored: "+OK\r\n",
	}, {
		name: "memcached", program: "memcached",
		args: func(socket string, mebibytes int) []string {
			return []string{"-s", socket, "-m", strconv.Itoa(mebibytes), "-I", "64m", "-u", "root", "-t", "2"}
		},
		get:   func(key string) []byte { return []byte("get " + key + "\r\n") },
		set:   func(key string, size int) []byte { return fmt.Appendf(nil, "set %s 0 0 %d\r\n", key, size) },
		value: func(int) string { return "VALUE" },
		after: "\r\nEND\r\n", stored: "STORED\r\n",
	}}
}

// rival is a running store, with a connection for each client of the pool.
type rival struct {
	wire
	conns map[*client]*rivalConn
}

// rivalConn is one connection. It uses bare blocking calls, as client does.
type rivalConn struct {
	wire
	fd  int
	buf []byte // of answers: a value, and what is around it
}

// startRival starts a store that listens on a Unix socket alone, until the end of the job.
func (j *job) startRival(w wire, valueBytes int) *rival {
	socket := filepath.Join(j.dirIn(j.workDir), "socket")
	r := j.startStore(w, nil, w.args(socket, j.config.memoryMiB)...)
	r.connectAll(j.ctx, &unix.SockaddrUnix{Name: socket}, j.pool.clients, valueBytes)
	return r
}

// startStore starts the program. The words of before, if any, are before its command.
func (j *job) startStore(w wire, before []string, args ...string) *rival {
	path, err := exec.LookPath(w.program)
	if err != nil {
		must(fmt.Errorf("%w (Debian, Ubuntu: apt-get install %s)", err, w.program))
	}
	argv := slices.Concat(before, []string{path}, args)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = j.dirIn(j.workDir), plainEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	must(cmd.Start())
	r := &rival{wire: w, conns: map[*client]*rivalConn{}}
	j.later(func() {
		for _, c := range r.conns {
			unix.Close(c.fd) // nothing is lost
		}
		cmd.Process.Kill() // it has nothing to save
		cmd.Wait()
	})
	return r
}

// connectAll makes a connection for each client.
func (r *rival) connectAll(ctx context.Context, addr unix.Sockaddr, clients []*client, valueBytes int) {
	for _, c := range clients {
		r.conns[c] = r.connect(ctx, addr, valueBytes)
	}
}

// rivalLimit is how long a store may take until it listens, and for each part of an answer: then the call fails.
const rivalLimit = 30 * time.Second

// connect tries until the store listens.
func (w wire) connect(ctx context.Context, addr unix.Sockaddr, valueBytes int) *rivalConn {
	fd := 0
	if _, ok := addr.(*unix.SockaddrUnix); ok {
		fd = get(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	} else {
		fd = tcpSocket()
	}
	limit := unix.NsecToTimeval(int64(rivalLimit))
	must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	for begin := time.Now(); ; must(pause(ctx, pollEvery)) {
		err := unix.Connect(fd, addr)
		if err == nil {
			return &rivalConn{wire: w, fd: fd, buf: make([]byte, valueBytes+kib)}
		}
		if time.Since(begin) > rivalLimit {
			must(fmt.Errorf("connect to %s: %w", w.name, err))
		}
	}
}

func (c *rivalConn) send(parts ...[]byte) {
	for len(parts) > 0 {
		n, err := unix.Writev(c.fd, parts)
		if err != unix.EINTR {
			must(err)
		}
		for len(parts) > 0 && n >= len(parts[0]) {
			n -= len(parts[0])
			parts = parts[1:]
		}
		if len(parts) > 0 {
			parts[0] = parts[0][max(n, 0):]
		}
	}
}

// receive appends to the first have bytes of an answer.
func (c *rivalConn) receive(have int) int {
	n, err := unix.Read(c.fd, c.buf[have:])
	if err == unix.EINTR {
		return have
	}
	must(err)
	if n == 0 {
		must(fmt.Errorf("%s closed the connection", c.name))
	}
	return have + n
}

// read returns a value, in c.buf.
func (c *rivalConn) read(key string, size int) []byte {
	c.send(c.get(key))
	for have, begin := 0, 0; ; {
		have = c.receive(have)
		if end := bytes.Index(c.buf[:have], []byte("\r\n")); begin == 0 && end >= 0 {
			if begin = end + len("\r\n"); !bytes.HasPrefix(c.buf[:have], []byte(c.value(size))) {
				must(fmt.Errorf("%w: %q", errNoValue, c.buf[:end]))
			}
		}
		if begin > 0 && have >= begin+size+len(c.after) {
			return c.buf[begin : begin+size]
		}
	}
}

func (c *rivalConn) write(key string, value []byte) {
	c.send(c.set(key, len(value)), value, []byte("\r\n"))
	for have := 0; have < len(c.stored); {
		if have = c.receive(have); !bytes.HasPrefix([]byte(c.stored), c.buf[:have]) {
			must(fmt.Errorf("%s: %q", c.name, c.buf[:have]))
		}
	}
}

// rivals measures reads and writes of blocks in memory through kvfs, Redis and memcached, which are asked over Unix
// sockets, faster than TCP.
func (j *job) rivals() {
	var stores []*rival
	var missing []string
	for _, w := range wires() {
		if err := try(func() { stores = append(stores, j.startRival(w, slices.Max(j.config.sizes))) }); err != nil {
			missing = append(missing, fmt.Sprintf("no %s: %v", w.name, errors.Unwrap(err)))
		}
	}
	if len(stores) == 0 {
		j.skip(strings.Join(missing, "; "))
	}
	at := j.mount(mountOptions{name: "kvfs-rivals", memory: j.config.memoryMiB * mib})
	head := []string{"what", "block", "threads", "kvfs GB/s"}
	for _, s := range stores {
		head = append(head, s.name+" GB/s", "kvfs to it")
	}
	note := "reads: the whole block into one buffer, its marks are checked; writes: a temporary name and a rename, Redis " +
		"and memcached set; Unix sockets; all on this machine"
	table := j.table("Blocks in memory, beside stores behind a socket", "("+strings.Join(append([]string{note}, missing...), "; ")+")", head...)
	for _, size := range j.config.sizes {
		j.say("rivals: %s", sizeText(size))
		j.scope(func(j *job) {
			count := j.config.count(size)
			set := newBlockSet(at, fmt.Sprintf("r%d", size), size, 0, count)
			j.later(set.remove)
			names := []string{kvfsName}
			ops := map[string]map[string]func(*client, int){"read": {kvfsName: set.readVerified}, "write": {kvfsName: set.store}}
			for _, s := range stores {
				names = append(names, s.name)
				ops["read"][s.name], ops["write"][s.name] = s.blocks(size)
			}
			for _, name := range names {
				j.once(1, count, ops["write"][name])
			}
			for _, what := range []string{"read", "write"} {
				for _, threads := range j.config.threads {
					table.row(j.rivalCells(what, at, names, ops[what], size, threads)...)
				}
			}
		})
	}
}

func (r *rival) blocks(size int) (read, write func(*client, int)) {
	key := func(i int) string { return fmt.Sprintf("r%d/%d", size, i) }
	read = func(c *client, i int) { checkMarks(r.conns[c].read(key(i), size), i) }
	return read, func(c *client, i int) {
		c.stamp(i, size)
		r.conns[c].write(key(i), c.buf[:size])
	}
}

// rivalCells measures kvfs, the first of the names, and the others.
func (j *job) rivalCells(what string, at *target, names []string, ops map[string]func(*client, int), size, threads int) []any {
	var sides []side
	for _, name := range names {
		sides = append(sides, side{name, func(int) float64 {
			speed := j.pass(newWork(threads, j.config.count(size), ops[name]), j.passTime).perSec * float64(size) / 1e9
			j.settle(at)
			return speed
		}})
	}
	figs := j.rotate(1, j.rounds, sides)
	cells := []any{what, sizeText(size), threads, figs[kvfsName]}
	for _, name := range names[1:] {
		cells = append(cells, figs[name], figs.over(kvfsName, name))
	}
	return cells
}
