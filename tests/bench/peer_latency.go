package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	latencyBytes = mib
	// latencyGoal is how many times the bare loop a promotion may take.
	latencyGoal = 1.5

	readName = kvfsName + ", and read"
)

// latency measures how long one cold block takes, beside a bare loop of sendfile and
// recv on a connection that is open already.
func (p *peerBench) latency(ctx context.Context) (err error) {
	count := 128
	if p.config.quick {
		count = 8
	}
	c, err := p.join(ctx, peerOptions{nodes: 2, memoryBytes: 2*count*latencyBytes + 256*mib, congestion: "cubic"})
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return err
	}
	set, err := c.lay(ctx, latencyBytes, count)
	if err != nil {
		return err
	}
	bare, err := c.startBare(latencyBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.close()) }()
	micros := map[string][]float64{}
	timed := func(name string, op func() error) error {
		begin := time.Now()
		err := op()
		micros[name] = append(micros[name], float64(time.Since(begin).Nanoseconds())/1e3)
		return err
	}
	for round := range p.config.rounds {
		_, err := c.promote(ctx, set, 1, round, func(cl *client, i int) error {
			// Each round begins with another one, so that neither always finds what the other left.
			steps := []func() error{
				func() error {
					begin := time.Now()
					if err := timed(kvfsName, func() error { return set.open(cl, i) }); err != nil {
						return err
					}
					err := set.readMarked(cl, i)
					micros[readName] = append(micros[readName], float64(time.Since(begin).Nanoseconds())/1e3)
					return err
				},
				func() error { return timed("sendfile", func() error { return bare.fetch(cl.buf[:latencyBytes]) }) },
			}
			return errors.Join(steps[i%2](), steps[1-i%2]())
		})
		if err != nil {
			return err
		}
	}
	table := p.report.table("peerlatency", "One cold block of "+sizeText(latencyBytes)+" from another node's memory",
		"(open and close, one after another, congestion control cubic: the block is in this node's memory when open returns; and with "+
			"another open and one read of it all after that; beside it a request of one byte and the block by "+
			"sendfile from tmpfs over a connection that is open, received into warm memory)",
		"what", "us", "times sendfile", "goal", "")
	r := row{Topic: "peerlatency", Target: kvfsName, BlockBytes: latencyBytes, Threads: 1, Unit: "us", Value: median(micros[kvfsName])}
	base := row{Topic: "peerlatency", Target: "sendfile", BlockBytes: latencyBytes, Threads: 1, Unit: "us", Value: median(micros["sendfile"])}
	ratio := r.Value / base.Value
	r.RatioTo = map[string]float64{"sendfile": ratio}
	verdict := p.report.judge(&r, latencyGoal, ratio <= latencyGoal)
	p.report.add(r)
	p.report.add(base)
	table.add("sendfile", fmt.Sprintf("%.0f", base.Value), "1.00", "", "")
	table.add(kvfsName, fmt.Sprintf("%.0f", r.Value), fmt.Sprintf("%.2f", ratio), fmt.Sprintf("%.1f", latencyGoal), verdict)
	read := row{Topic: "peerlatency", Target: readName, BlockBytes: latencyBytes, Threads: 1, Unit: "us", Value: median(micros[readName])}
	p.report.add(read)
	table.add(readName, fmt.Sprintf("%.0f", read.Value), fmt.Sprintf("%.2f", read.Value/base.Value), "", "")
	return nil
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
	addr := &unix.SockaddrInet4{}
	if _, err := fmt.Sscanf(c.net.Addr(0), "%d.%d.%d.%d", &addr.Addr[0], &addr.Addr[1], &addr.Addr[2], &addr.Addr[3]); err != nil {
		return 0, err
	}
	listener := -1
	err := c.net.Do(0, func() (err error) {
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
