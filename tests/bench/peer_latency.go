package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// latencyGoal is how many times the bare loop a promotion of 1 MiB may take.
	latencyGoal = 1.5
	// manyBytes is the size of the blocks that many readers read, manyGoal the goal in GB/s.
	manyBytes = 64 * kib
	manyGoal  = 1.2

	readName     = kvfsName + ", and read"
	sendfileName = "sendfile"
)

func latencySizes() []int { return []int{manyBytes, mib, 4 * mib} }

// readGoal is the goal for the p50 of a cold remote block that is also read, in microseconds; 0: no goal.
func readGoal(size int) float64 { return map[int]float64{64 * kib: 120, mib: 400}[size] }

// remoteBlocks are blocks of one size on node 0, and the same sizes in other ways.
type remoteBlocks struct {
	*peers
	set      *blockSet
	bare     *bareLoop
	redis    *rival                     // nil: cannot be had
	noRedis  error                      // why
	times    map[string][]time.Duration // by name
	one, all *table
}

// latency measures how long one cold block takes, beside a bare loop of sendfile and recv on a connection that is open
// already, and beside Redis; and small blocks with many readers.
func (p *peerBench) latency(ctx context.Context) (err error) {
	total := 0
	for _, size := range latencySizes() {
		total += size * p.config.count(size)
	}
	c, err := p.join(ctx, peerOptions{nodes: 2, memoryBytes: total*5/4 + 256*mib, congestion: "cubic"})
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	one := p.report.table("peerlatency", "One cold block from another node's memory",
		"(one after another, congestion control cubic; "+kvfsName+": open and close, the block is in this node's memory when open returns; "+
			readName+": one read of it all in between; sendfile: a request of one byte, and the block from tmpfs over a connection that is open, "+
			"received into warm memory; Redis: GET over TCP)",
		"block", "what", "p50 us", "p99 us", "max us", "p50 to sendfile", "goal", "")
	all := p.report.table("peerlatency", fmt.Sprintf("Cold blocks of %s from another node's memory, %d readers", sizeText(manyBytes), peerReaders),
		fmt.Sprintf("(open, one read, close; Redis: GET with %d connections)", peerReaders),
		"block", "kvfs GB/s", "min-max", "goal", "", "Redis GB/s", "min-max", "to Redis")
	for _, size := range latencySizes() {
		if err := (&remoteBlocks{peers: c, one: one, all: all}).measure(ctx, size); err != nil {
			return fmt.Errorf("%s: %w", sizeText(size), err)
		}
	}
	return nil
}

func (l *remoteBlocks) measure(ctx context.Context, size int) (err error) {
	l.say("peerlatency: %s", sizeText(size))
	l.times = map[string][]time.Duration{}
	if l.set, err = l.lay(ctx, size, l.config.count(size)); err != nil {
		return err
	}
	if l.bare, err = l.startBare(size); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.bare.close()) }()
	redis, why := l.startRedis(ctx, size)
	if l.noRedis = why; why == nil {
		defer func() { err = errors.Join(err, redis.stop()) }()
		l.redis = redis
		if err := l.fillRedis(ctx); err != nil {
			return err
		}
	}
	for round := range l.config.rounds {
		if _, err := l.promote(ctx, l.set, 1, round, l.each); err != nil {
			return err
		}
	}
	l.rows()
	if size == manyBytes {
		return l.many(ctx)
	}
	return nil
}

// each fetches block i in each way. The first way changes, so that none always finds what the same one left. A block is
// cold once: every second one is also read.
func (l *remoteBlocks) each(cl *client, i int) error {
	timed := func(name string, op func() error) func() error {
		return func() error {
			begin := time.Now()
			err := op()
			l.times[name] = append(l.times[name], time.Since(begin))
			return err
		}
	}
	steps := []func() error{timed(sendfileName, func() error { return l.bare.fetch(cl.buf[:l.set.size]) })}
	if i%2 == 0 {
		steps = append(steps, timed(kvfsName, func() error { return l.set.open(cl, i) }))
	} else {
		steps = append(steps, timed(readName, func() error { return l.set.readMarked(cl, i) }))
	}
	if l.redis != nil {
		steps = append(steps, timed(l.redis.name, func() error { return l.get(cl, i) }))
	}
	for n := range steps {
		if err := steps[(i/2+n)%len(steps)](); err != nil {
			return err
		}
	}
	return nil
}

func (l *remoteBlocks) rows() {
	names := []string{sendfileName, kvfsName, readName}
	if l.redis != nil {
		names = append(names, l.redis.name)
	}
	base := 0.0
	for _, name := range names {
		t := tailsOf(l.times[name])
		rows := t.rows(row{Topic: "peerlatency", Target: name, BlockBytes: l.set.size, Threads: 1}, "us")
		p50 := &rows[p50Row]
		if name == sendfileName {
			base = t.p50
		}
		ratio := t.p50 / base
		p50.RatioTo = map[string]float64{sendfileName: ratio}
		verdict := []string{"", ""}
		switch goal := readGoal(l.set.size); {
		case name == kvfsName && l.set.size == mib:
			verdict = []string{fmt.Sprintf("%.1f times", latencyGoal), l.report.judge(p50, latencyGoal, ratio <= latencyGoal)}
		case name == readName && goal > 0:
			verdict = []string{fmt.Sprintf("%.0f us", goal), l.report.judge(p50, goal, t.p50 <= goal)}
		}
		l.report.add(rows...)
		l.one.add(append([]string{sizeText(l.set.size), name, microsText(t.p50), microsText(t.p99), microsText(t.max),
			fmt.Sprintf("%.2f", ratio)}, verdict...)...)
	}
	if l.noRedis != nil {
		l.one.add(sizeText(l.set.size), "no Redis: "+l.noRedis.Error(), "", "", "", "", "", "")
	}
}

// many measures many readers at once.
func (l *remoteBlocks) many(ctx context.Context) error {
	contenders := []contender{{kvfsName, func(ctx context.Context, round int) (float64, error) {
		return l.promote(ctx, l.set, peerReaders, round, l.set.readMarked)
	}}}
	if l.redis != nil {
		contenders = append(contenders, contender{l.redis.name, func(ctx context.Context, round int) (float64, error) {
			result, err := l.readers.run(ctx, sequence(peerReaders, shuffled(l.set, round), l.get), time.Hour)
			return float64(l.set.count*l.set.size) / result.elapsed.Seconds(), err
		}})
	}
	perSec, err := l.rotate(ctx, contenders)
	if err != nil {
		return err
	}
	var cells []string
	for i, c := range contenders {
		r := row{Topic: "peerlatency", Target: c.name, BlockBytes: l.set.size, Threads: peerReaders, Unit: "GB/s", Samples: gigabytes(perSec[c.name])}
		r.Value = median(r.Samples)
		cells = append(cells, fmt.Sprintf("%.2f", r.Value), spread(r.Samples))
		if i == 0 {
			cells = append(cells, fmt.Sprintf("%.1f", manyGoal), l.report.judge(&r, manyGoal, r.Value >= manyGoal))
		}
		l.report.add(r)
	}
	if l.redis == nil {
		cells = append(cells, "no Redis", "", "")
	} else {
		cells = append(cells, fmt.Sprintf("%.2f", median(perSec[kvfsName])/median(perSec[l.redis.name])))
	}
	l.all.add(append([]string{sizeText(l.set.size)}, cells...)...)
	return nil
}

// redisPort is Redis's own: nothing else is in the namespace.
const redisPort = 6379

// startRedis starts a Redis on node 0, which keeps nothing on a disk, with a connection from node 1 for each reader.
func (c *peers) startRedis(ctx context.Context, valueBytes int) (r *rival, err error) {
	addr, err := inet4(c.net.Addr(0), redisPort)
	if err != nil {
		return nil, err
	}
	dir, err := c.mountPoint("redis")
	if err != nil {
		return nil, err
	}
	// It cannot choose its congestion control, so the route does.
	if _, err := c.net.Run(0, "ip", "route", "replace", c.net.Addr(1), "dev", "eth0", "congctl", "cubic"); err != nil {
		return nil, err
	}
	r, err = wires()[0].start(dir, []string{"nsenter", "--net=" + c.net.Path(0)}, []string{"--bind", c.net.Addr(0), "--port", fmt.Sprint(redisPort),
		"--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir", dir})
	if err != nil {
		return nil, err
	}
	return r, c.net.Do(1, func() error { return r.connectAll(ctx, addr, c.readers.clients, valueBytes) })
}

// fillRedis stores the same blocks as node 0 has.
func (l *remoteBlocks) fillRedis(ctx context.Context) error {
	value := slices.Clone(l.pattern[:l.set.size])
	return l.readers.once(ctx, newWork(1, l.set.count, func(cl *client, i int) error {
		stampPages(value, i)
		return l.redis.conns[cl].write(blockName(i), value)
	}))
}

// get receives block i from Redis and checks its first page.
func (l *remoteBlocks) get(cl *client, i int) error {
	value, err := l.redis.conns[cl].read(blockName(i), l.set.size)
	if err != nil {
		return err
	}
	return verifyPage(value[:pageBytes], i, 0)
}

// bareLoop is the least cost of a block over TCP: a connection from node 1 to node 0 that answers
// each byte with a file.
type bareLoop struct {
	file   *os.File
	client int
	done   chan error
}

func (c *peers) startBare(size int) (*bareLoop, error) {
	f, err := os.CreateTemp(c.shmDir, "bare")
	if err != nil {
		return nil, err
	}
	b := &bareLoop{file: f, client: -1, done: make(chan error, 1)}
	if _, err := f.Write(c.pattern[:size]); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	server, err := b.connect(c)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	go func() { b.done <- b.serve(server, size) }() // Ends when close ends the connection.
	return b, nil
}

// connect returns the server's end, and stores the client's.
func (b *bareLoop) connect(c *peers) (int, error) {
	addr, err := inet4(c.net.Addr(0), 0)
	if err != nil {
		return 0, err
	}
	listener := -1
	err = c.net.Do(0, func() (err error) {
		if listener, err = tcpSocket(); err != nil {
			return err
		}
		return errors.Join(unix.Bind(listener, addr), unix.Listen(listener, 1))
	})
	if err != nil {
		return 0, err
	}
	defer unix.Close(listener)
	bound, err := unix.Getsockname(listener)
	if err != nil {
		return 0, err
	}
	err = c.net.Do(1, func() (err error) {
		if b.client, err = tcpSocket(); err != nil {
			return err
		}
		return unix.Connect(b.client, bound)
	})
	if err != nil {
		return 0, err
	}
	server, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return 0, err
	}
	return server, unix.SetsockoptInt(server, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// inet4 is an IPv4 address for system calls.
func inet4(text string, port int) (*unix.SockaddrInet4, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return nil, err
	}
	return &unix.SockaddrInet4{Port: port, Addr: addr.As4()}, nil
}

// tcpSocket makes a socket with the congestion control of the comparison. Accepted sockets inherit
// it.
func tcpSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, errors.Join(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic"),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
}

func (b *bareLoop) serve(fd, size int) error {
	defer unix.Close(fd)
	request := make([]byte, 1)
	for {
		if n, err := unix.Read(fd, request); n == 0 || err != nil {
			return err
		}
		for off := int64(0); off < int64(size); {
			if _, err := unix.Sendfile(fd, int(b.file.Fd()), &off, size-int(off)); err != nil {
				return fmt.Errorf("sendfile: %w", err)
			}
		}
	}
}

// fetch asks for the file and receives all of it.
func (b *bareLoop) fetch(buf []byte) error {
	if _, err := unix.Write(b.client, []byte{1}); err != nil {
		return err
	}
	for len(buf) > 0 {
		n, err := unix.Read(b.client, buf)
		if err == nil && n == 0 {
			err = errors.New("bare loop: connection ended")
		}
		if err != nil {
			return err
		}
		buf = buf[n:]
	}
	return nil
}

func (b *bareLoop) close() error {
	err := errors.Join(unix.Shutdown(b.client, unix.SHUT_RDWR), <-b.done, unix.Close(b.client))
	return errors.Join(err, b.file.Close(), os.Remove(b.file.Name()))
}
