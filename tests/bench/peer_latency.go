package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	manyBytes    = 64 * kib // of the blocks that many readers read
	readName     = kvfsName + ", and read"
	sendfileName = "sendfile"
	redisName    = "Redis"
)

// remoteBlocks are blocks of one size on node 0, and the same sizes in other ways.
type remoteBlocks struct {
	*peers
	set   *blockSet
	bare  *bareLoop
	redis *rival
	times map[string][]time.Duration
}

// peerLatency measures how long one cold block takes, beside a bare loop of sendfile and recv on a connection that is
// open already, and beside Redis; and small blocks with many readers.
func (j *job) peerLatency() {
	sizes, total := []int{manyBytes, mib, 4 * mib}, 0
	for _, size := range sizes {
		total += size * j.config.count(size)
	}
	c := j.join(peerOptions{nodes: 2, memoryBytes: total*5/4 + 256*mib, congestion: "cubic"})
	one := j.table("One cold block from another node's memory",
		"(one after another, congestion control cubic; "+kvfsName+": open and close, the block is in this node's memory when open returns; "+
			readName+": one read of it all in between; sendfile: a request of one byte, and the block from tmpfs over a connection that is open, "+
			"received into warm memory; Redis: GET over TCP)",
		"block", "what", "p50 us", "p99 us", "max us", "p50 to sendfile", "goal")
	all := j.table(fmt.Sprintf("Cold blocks of %s from another node's memory, %d readers", sizeText(manyBytes), peerReaders),
		fmt.Sprintf("(open, one read, close; Redis: GET with %d connections)", peerReaders),
		"block", "kvfs GB/s", "min-max", "goal", "Redis GB/s", "min-max", "to Redis")
	for _, size := range sizes {
		j.say("peerlatency: %s", sizeText(size))
		j.scope(func(j *job) {
			part := *c
			part.job = j
			l := &remoteBlocks{peers: &part, times: map[string][]time.Duration{}}
			l.set = l.lay(size, j.config.count(size))
			l.bare = l.startBare(size)
			l.redis = l.startRedis(size)
			l.fillRedis()
			for round := range j.rounds {
				l.promote(l.set, 1, round, l.each)
			}
			l.rows(one)
			if size == manyBytes {
				l.many(all)
			}
		})
	}
}

// each fetches block i in each way. The first way changes, so that none always finds what the same one left. A block is
// cold once: every second one is also read.
func (l *remoteBlocks) each(cl *client, i int) {
	type way struct {
		name string
		op   func(*client, int)
	}
	ways := []way{{sendfileName, func(cl *client, _ int) { l.bare.fetch(cl.buf[:l.set.size]) }}, {kvfsName, l.set.openClose}, {redisName, l.get}}
	if i%2 != 0 {
		ways[1] = way{readName, l.set.readMarked}
	}
	for n := range ways {
		way := ways[(i/2+n)%len(ways)]
		begin := time.Now()
		way.op(cl, i)
		l.times[way.name] = append(l.times[way.name], time.Since(begin))
	}
}

func (l *remoteBlocks) rows(t *table) {
	base, size := 0.0, l.set.size
	for _, name := range []string{sendfileName, kvfsName, readName, redisName} {
		tails, goal := tailsOf(l.times[name]), ""
		if name == sendfileName {
			base = tails.p50
		}
		switch limit := map[int]float64{64 * kib: 120, mib: 400}[size]; {
		case name == kvfsName && size == mib:
			goal = l.verdict("1.5 times", tails.p50 <= 1.5*base)
		case name == readName && limit > 0:
			goal = l.verdict(fmt.Sprintf("%.0f us", limit), tails.p50 <= limit)
		}
		if name == readName {
			l.point("latency", "peer", size, tails.p50)
		}
		t.row(sizeText(size), name, microsText(tails.p50), microsText(tails.p99), microsText(tails.max), tails.p50/base, goal)
	}
}

func (l *remoteBlocks) many(t *table) {
	figs := l.rotate(0, l.rounds, []side{
		{kvfsName, func(round int) float64 {
			speed, _ := l.promote(l.set, peerReaders, round, l.set.readMarked)
			return speed
		}},
		{redisName, func(round int) float64 {
			return gbs(l.set.count*l.set.size, l.inOrder(peerReaders, shuffled(l.set, round), l.get))
		}},
	})
	kvfs, redis := figs[kvfsName], figs[redisName]
	t.row(sizeText(l.set.size), kvfs, kvfs.spread(), l.verdict("1.2", median(kvfs) >= 1.2), redis, redis.spread(), figs.over(kvfsName, redisName))
}

// startRedis starts a Redis on node 0, which keeps nothing on a disk, with a connection from node 1 for each reader.
func (c *peers) startRedis(valueBytes int) *rival {
	const port = 6379 // its own: nothing else is in the namespace
	addr := inet4(c.net.Addr(0), port)
	// It cannot choose its congestion control, so the route does.
	get(c.net.Run(0, "ip", "route", "replace", c.net.Addr(1), "dev", "eth0", "congctl", "cubic"))
	r := c.startStore(wires()[0], []string{"nsenter", "--net=" + c.net.Path(0)}, "--bind", c.net.Addr(0), "--port", fmt.Sprint(port),
		"--protected-mode", "no", "--save", "", "--appendonly", "no")
	c.inside(1, func() { r.connectAll(c.ctx, addr, c.pool.clients, valueBytes) })
	return r
}

// fillRedis stores the same blocks as node 0 has.
func (l *remoteBlocks) fillRedis() {
	value := slices.Clone(l.pattern[:l.set.size])
	l.once(1, l.set.count, func(cl *client, i int) {
		stampPages(value, i)
		l.redis.conns[cl].write(blockName(i), value)
	})
}

// get receives block i from Redis and checks its first page.
func (l *remoteBlocks) get(cl *client, i int) {
	verifyFirst(l.redis.conns[cl].read(blockName(i), l.set.size), i)
}

// bareLoop is the least cost of a block over TCP: a connection from node 1 to node 0 that answers each byte with a
// file.
type bareLoop struct {
	file   *os.File
	client int
}

// startBare starts a loop until the end of the job.
func (c *peers) startBare(size int) *bareLoop {
	b := &bareLoop{file: get(os.CreateTemp(c.dirIn(c.config.shmDir), "bare"))}
	c.later(func() { must(b.file.Close()) })
	get(b.file.Write(c.pattern[:size]))
	server := b.connect(c)
	ended := make(chan error, 1)
	go func() { ended <- b.serve(server, size) }() // ends when the connection does
	c.later(func() { must(errors.Join(unix.Shutdown(b.client, unix.SHUT_RDWR), <-ended, unix.Close(b.client))) })
	return b
}

func (b *bareLoop) connect(c *peers) (server int) {
	listener := 0
	c.inside(0, func() {
		listener = tcpSocket()
		must(errors.Join(unix.Bind(listener, inet4(c.net.Addr(0), 0)), unix.Listen(listener, 1)))
	})
	defer unix.Close(listener)
	bound := get(unix.Getsockname(listener))
	c.inside(1, func() {
		b.client = tcpSocket()
		must(unix.Connect(b.client, bound))
	})
	server, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	must(err)
	must(unix.SetsockoptInt(server, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	return server
}

// inside runs f in the namespace of a node.
func (c *peers) inside(node int, f func()) { must(c.net.Do(node, func() error { return try(f) })) }

// inet4 is an IPv4 address for system calls.
func inet4(text string, port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(text).As4()}
}

// tcpSocket makes a socket with the congestion control of the comparison. Accepted sockets inherit it.
func tcpSocket() int {
	fd := get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	must(unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic"))
	must(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	return fd
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

func (b *bareLoop) fetch(buf []byte) {
	get(unix.Write(b.client, []byte{1}))
	for len(buf) > 0 {
		n := get(unix.Read(b.client, buf))
		if n == 0 {
			must(errors.New("bare loop: connection ended"))
		}
		buf = buf[n:]
	}
}
