package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// rivalTopics are about stores that keep blocks in memory behind a socket.
func rivalTopics() []string { return []string{"rivals"} }

// wire is the protocol of a store as far as the bench speaks it.
type wire struct {
	name, program string
	args          func(socket string, mebibytes int) []string
	get           func(key string) []byte
	set           func(key string, size int) (head, end []byte)
	// value returns where the value of an answer to get begins, -1 while the answer is too short to tell, and
	// how many bytes follow the value. It fails if the store has no such value of that size.
	value  func(answer []byte, size int) (begin, after int, err error)
	stored string // the answer to set
}

var errNoValue = errors.New("the store has no such value")

func wires() []wire {
	number := func(n int) string { return strconv.Itoa(n) }
	return []wire{{
		name: "Redis", program: "redis-server",
		args: func(socket string, _ int) []string {
			return []string{"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", filepath.Dir(socket)}
		},
		get: func(key string) []byte {
			return []byte("*2\r\n$3\r\nGET\r\n$" + number(len(key)) + "\r\n" + key + "\r\n")
		},
		set: func(key string, size int) (head, end []byte) {
			return []byte("*3\r\n$3\r\nSET\r\n$" + number(len(key)) + "\r\n" + key + "\r\n$" + number(size) + "\r\n"), []byte("\r\n")
		},
		value: func(answer []byte, size int) (begin, after int, err error) {
			return afterLine(answer, "$"+number(size), len("\r\n"))
		},
		stored: "+OK\r\n",
	}, {
		name: "memcached", program: "memcached",
		args: func(socket string, mebibytes int) []string {
			return []string{"-s", socket, "-m", number(mebibytes), "-I", "64m", "-u", "root", "-t", "2"}
		},
		get: func(key string) []byte { return []byte("get " + key + "\r\n") },
		set: func(key string, size int) (head, end []byte) {
			return []byte("set " + key + " 0 0 " + number(size) + "\r\n"), []byte("\r\n")
		},
		value: func(answer []byte, size int) (begin, after int, err error) {
			return afterLine(answer, "VALUE", len("\r\nEND\r\n"))
		},
		stored: "STORED\r\n",
	}}
}

// afterLine is the value of an answer whose first line must begin with some text.
func afterLine(answer []byte, text string, after int) (int, int, error) {
	end := bytes.Index(answer, []byte("\r\n"))
	if end < 0 {
		return -1, 0, nil
	}
	if !bytes.HasPrefix(answer, []byte(text)) {
		return 0, 0, fmt.Errorf("%w: %q", errNoValue, answer[:end])
	}
	return end + len("\r\n"), after, nil
}

// rival is a running store, with a connection for each client of the pool.
type rival struct {
	wire
	cmd   *exec.Cmd
	conns map[*client]*rivalConn
}

// rivalConn is one connection. It uses bare blocking calls, as client does.
type rivalConn struct {
	wire
	fd  int
	buf []byte // of answers: a value, and what is around it
}

// startRival starts a store that listens on a Unix socket alone. stop ends it.
func (b *bench) startRival(ctx context.Context, w wire, valueBytes int) (*rival, error) {
	dir, err := b.mountPoint(w.program)
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "socket")
	r, err := w.start(dir, nil, w.args(socket, b.config.memoryMiB))
	if err != nil {
		return nil, err
	}
	return r, r.connectAll(ctx, &unix.SockaddrUnix{Name: socket}, b.pool.clients, valueBytes)
}

// start starts the store in a directory that stop removes. The words of before, if any, are before its command.
func (w wire) start(dir string, before, args []string) (*rival, error) {
	path, err := exec.LookPath(w.program)
	if err != nil {
		return nil, fmt.Errorf("%w (Debian, Ubuntu: apt-get install %s)", err, w.program)
	}
	argv := slices.Concat(before, []string{path}, args)
	r := &rival{wire: w, conns: map[*client]*rivalConn{}, cmd: exec.Command(argv[0], argv[1:]...)}
	r.cmd.Dir, r.cmd.Env = dir, plainEnv()
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return r, r.cmd.Start()
}

// connectAll makes a connection for each client. It stops the store if that fails.
func (r *rival) connectAll(ctx context.Context, addr unix.Sockaddr, clients []*client, valueBytes int) error {
	for _, c := range clients {
		conn, err := r.connect(ctx, addr, valueBytes)
		if err != nil {
			return errors.Join(err, r.stop())
		}
		r.conns[c] = conn
	}
	return nil
}

// rivalLimit is how long a store may take until it listens, and for each part of an answer: then the call fails.
const rivalLimit = 30 * time.Second

// connect tries until the store listens.
func (w wire) connect(ctx context.Context, addr unix.Sockaddr, valueBytes int) (*rivalConn, error) {
	socket := tcpSocket
	if _, ok := addr.(*unix.SockaddrUnix); ok {
		socket = func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }
	}
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(int64(rivalLimit))
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
	}
	for begin := time.Now(); ; {
		err := unix.Connect(fd, addr)
		if err == nil {
			return &rivalConn{wire: w, fd: fd, buf: make([]byte, valueBytes+kib)}, nil
		}
		if time.Since(begin) > rivalLimit || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("connect to %s: %w", w.name, err), context.Cause(ctx), unix.Close(fd))
		}
		if err := pause(ctx, pollEvery); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
	}
}

func (r *rival) stop() error {
	var errs []error
	for _, c := range r.conns {
		errs = append(errs, unix.Close(c.fd))
	}
	r.cmd.Process.Kill() // it has nothing to save
	r.cmd.Wait()
	return errors.Join(append(errs, os.RemoveAll(r.cmd.Dir))...)
}

// send writes all parts.
func (c *rivalConn) send(parts ...[]byte) error {
	for len(parts) > 0 {
		n, err := unix.Writev(c.fd, parts)
		if err != nil && err != unix.EINTR {
			return err
		}
		for len(parts) > 0 && n >= len(parts[0]) {
			n -= len(parts[0])
			parts = parts[1:]
		}
		if len(parts) > 0 {
			parts[0] = parts[0][max(n, 0):]
		}
	}
	return nil
}

// receive appends to the first have bytes of an answer.
func (c *rivalConn) receive(have int) (int, error) {
	n, err := unix.Read(c.fd, c.buf[have:])
	if err == unix.EINTR {
		return have, nil
	}
	if n == 0 && err == nil {
		err = fmt.Errorf("%s closed the connection", c.name)
	}
	return have + max(n, 0), err
}

// read returns a value, in c.buf.
func (c *rivalConn) read(key string, size int) ([]byte, error) {
	if err := c.send(c.get(key)); err != nil {
		return nil, err
	}
	for have, begin, after := 0, -1, 0; ; {
		var err error
		if have, err = c.receive(have); err != nil {
			return nil, err
		}
		if begin < 0 {
			if begin, after, err = c.value(c.buf[:have], size); err != nil {
				return nil, err
			}
		}
		if begin >= 0 && have >= begin+size+after {
			return c.buf[begin : begin+size], nil
		}
	}
}

// write stores a value.
func (c *rivalConn) write(key string, value []byte) error {
	head, end := c.set(key, len(value))
	if err := c.send(head, value, end); err != nil {
		return err
	}
	for have := 0; have < len(c.stored); {
		var err error
		if have, err = c.receive(have); err != nil {
			return err
		}
		if !bytes.HasPrefix([]byte(c.stored), c.buf[:have]) {
			return fmt.Errorf("%s: %q", c.name, c.buf[:have])
		}
	}
	return nil
}

// rivalBench compares kvfs with the stores that are installed.
type rivalBench struct {
	*bench
	kvfs   *target
	rivals []*rival
	mounts []*rivalMount
	table  *table
}

// measureRivals measures reads and writes of blocks in memory through kvfs, Redis, memcached, JuiceFS and SeaweedFS, each
// on this machine. The first two stores are asked over Unix sockets, which are faster than TCP.
func (b *bench) measureRivals(ctx context.Context) (err error) {
	if !b.config.wants(rivalTopics()...) || !slices.Contains(b.config.targets, kvfsName) || ctx.Err() != nil {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("rivals: %w", err)
		}
	}()
	r := &rivalBench{bench: b, kvfs: &target{name: kvfsName}}
	var missing []string
	for _, w := range wires() {
		store, why := b.startRival(ctx, w, slices.Max(b.config.sizes))
		if why != nil {
			missing = append(missing, "no "+w.name+": "+why.Error())
			continue
		}
		defer func() { err = errors.Join(err, store.stop()) }()
		r.rivals = append(r.rivals, store)
	}
	for _, kind := range mountKinds() {
		m, why := b.startMount(ctx, kind)
		if why != nil {
			missing = append(missing, "no "+kind.name+": "+why.Error())
			continue
		}
		defer func() { err = errors.Join(err, m.stop()) }()
		r.mounts = append(r.mounts, m)
	}
	if len(r.rivals)+len(r.mounts) == 0 {
		b.report.skip("rivals", strings.Join(missing, "; "))
		return nil
	}
	if r.kvfs.server, err = b.kvfs("kvfs-rivals", b.config.memoryMiB); err != nil {
		return err
	}
	r.kvfs.dir = r.kvfs.server.mount
	if err := b.start(ctx, r.kvfs.server); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.kvfs.server.stop()) }()
	head := []string{"what", "block", "threads", "kvfs GB/s"}
	for _, name := range r.names()[1:] {
		head = append(head, name+" GB/s", "kvfs to it")
	}
	note := "reads: the whole block into one buffer, its marks are checked; writes: a temporary name and a rename, Redis " +
		"and memcached set; Unix sockets; all on this machine"
	r.table = b.report.table("rivals", "Blocks in memory, beside stores behind a socket",
		"("+strings.Join(append([]string{note}, missing...), "; ")+")", head...)
	for _, size := range b.config.sizes {
		if err := r.size(ctx, size); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

// size measures blocks of one size.
func (r *rivalBench) size(ctx context.Context, size int) error {
	r.say("rivals: %s", sizeText(size))
	count := r.config.count(size)
	key := func(i int) string { return fmt.Sprintf("r%d/%d", size, i) }
	reads, writes := map[string]func(*client, int) error{}, map[string]func(*client, int) error{}
	targets := []*target{r.kvfs}
	for _, m := range r.mounts {
		targets = append(targets, &m.target)
	}
	var sets []*blockSet
	for _, t := range targets {
		s, err := newBlockSet(t, fmt.Sprintf("r%d", size), size, 0, count)
		if err != nil {
			return err
		}
		sets = append(sets, s)
		reads[t.name], writes[t.name] = s.readVerified, s.store
	}
	for _, s := range r.rivals {
		reads[s.name] = func(c *client, i int) error {
			value, err := s.conns[c].read(key(i), size)
			if err != nil {
				return err
			}
			return checkMarks(value, i)
		}
		writes[s.name] = func(c *client, i int) error {
			c.stamp(i, size)
			return s.conns[c].write(key(i), c.buf[:size])
		}
	}
	for _, name := range r.names() { // all values are there before the first read
		if err := r.pool.once(ctx, newWork(1, count, writes[name])); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, what := range []struct {
		name string
		ops  map[string]func(*client, int) error
	}{{"read", reads}, {"write", writes}} {
		for _, threads := range r.config.threads {
			if err := r.row(ctx, what.name, what.ops, size, threads, count); err != nil {
				return err
			}
		}
	}
	var err error
	for _, s := range sets {
		err = errors.Join(err, s.remove())
	}
	return err
}

// names returns what is compared, kvfs first.
func (r *rivalBench) names() []string {
	out := []string{kvfsName}
	for _, s := range r.rivals {
		out = append(out, s.name)
	}
	for _, m := range r.mounts {
		out = append(out, m.name)
	}
	return out
}

// row measures one operation in turns.
func (r *rivalBench) row(ctx context.Context, what string, ops map[string]func(*client, int) error, size, threads, count int) error {
	figures, names := series{}, r.names()
	for _, m := range r.mounts {
		if m.reclaim == nil {
			continue
		}
		if err := m.reclaim(ctx); err != nil {
			return err
		}
	}
	for round := -1; round < r.config.rounds; round++ { // the first is a warm-up
		for i := range names {
			name := names[(max(round, 0)+i)%len(names)]
			result, err := r.pool.run(ctx, newWork(threads, count, ops[name]), r.config.passTime)
			if err == nil {
				err = r.kvfs.settle(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s %s: %w", what, name, err)
			}
			if round >= 0 {
				figures[name] = append(figures[name], result.perSec*float64(size)/1e9)
			}
		}
	}
	cells := []string{what, sizeText(size), fmt.Sprint(threads)}
	for _, name := range names {
		line := row{Topic: "rivals", Target: name, BlockBytes: size, Threads: threads, Unit: "GB/s of " + what + "s",
			Value: median(figures[name]), Samples: figures[name]}
		cells = append(cells, fmt.Sprintf("%.2f", line.Value))
		if name != kvfsName {
			line.Ratio = median(figures[kvfsName]) / line.Value
			cells = append(cells, fmt.Sprintf("%.2f", line.Ratio))
		}
		r.report.add(line)
	}
	r.table.add(cells...)
	return nil
}

// redisExists makes requests that ask Redis for all names of a set at once. Half of the names get a value first.
func (b *bench) redisExists(ctx context.Context, present []string, sets [][]string) (*rival, [][]byte, error) {
	r, err := b.startRival(ctx, wires()[0], kib)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range present {
		if err := r.conns[b.pool.clients[0]].write(name, []byte("x")); err != nil {
			return nil, nil, errors.Join(err, r.stop())
		}
	}
	var requests [][]byte
	for _, set := range sets {
		request := fmt.Appendf(nil, "*%d\r\n$6\r\nEXISTS\r\n", len(set)+1)
		for _, name := range set {
			request = fmt.Appendf(request, "$%d\r\n%s\r\n", len(name), name)
		}
		requests = append(requests, request)
	}
	return r, requests, nil
}

// count sends a request of redisExists and returns how many names exist.
func (c *rivalConn) count(request []byte) (n int, err error) {
	if err := c.send(request); err != nil {
		return 0, err
	}
	for have := 0; ; {
		if have, err = c.receive(have); err != nil {
			return 0, err
		}
		if answer, ok := bytes.CutSuffix(c.buf[:have], []byte("\r\n")); ok {
			return strconv.Atoi(strings.TrimPrefix(string(answer), ":"))
		}
	}
}
