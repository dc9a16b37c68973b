package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// audienceLimit is how long it may take until each member has got something.
const audienceLimit = 30 * time.Second

// audience is a process of followers; without a process there are none.
type audience struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// audienceCounts are totals.
type audienceCounts struct {
	Each []listenerCounts
	CPU  time.Duration // of the process
}

type listenerCounts struct {
	Units int64 // lines, or messages of ZeroMQ
	Gaps  int64
}

// startAudience returns when each member gets events. Like start of server it must be called from
// the main goroutine.
func startAudience(ctx context.Context, r role) (*audience, error) {
	argv, err := childArgs(r)
	if err != nil {
		return nil, err
	}
	a := &audience{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	a.cmd.Env, a.cmd.Stderr = plainEnv(), os.Stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if a.in, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.out = bufio.NewReader(out)
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	for begin := time.Now(); ; {
		counts, err := a.ask()
		if err == nil && time.Since(begin) > audienceLimit {
			err = fmt.Errorf("after %v not all get events: %+v", audienceLimit, counts.Each)
		}
		if err == nil && !counts.allServed() {
			err = pause(ctx, pollEvery)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return nil, errors.Join(err, a.close())
		}
		return a, nil
	}
}

func (c *audienceCounts) allServed() bool {
	for _, one := range c.Each {
		if one.Units == 0 {
			return false
		}
	}
	return len(c.Each) > 0
}

// ask returns the counts so far.
func (a *audience) ask() (counts audienceCounts, err error) {
	if a.cmd == nil {
		return counts, nil
	}
	if _, err := io.WriteString(a.in, "\n"); err != nil {
		return counts, fmt.Errorf("audience: %w", err)
	}
	line, err := a.out.ReadBytes('\n')
	if err != nil {
		return counts, fmt.Errorf("audience: %w", err)
	}
	if err := json.Unmarshal(line, &counts); err != nil {
		return counts, err
	}
	counts.CPU, err = cpuTimeOf(a.cmd.Process.Pid)
	return counts, err
}

// close ends the process.
func (a *audience) close() error {
	if a.cmd == nil {
		return nil
	}
	return errors.Join(a.in.Close(), a.cmd.Wait())
}

// listener counts what one of the audience gets.
type listener struct{ units, gaps atomic.Int64 }

// playAudience listens until in ends. For each line of in it writes the counts so far.
func playAudience(r role, in io.Reader, out io.Writer) error {
	// A processor for each listener in a system call, and some for the rest.
	runtime.GOMAXPROCS(runtime.NumCPU() + r.Count)
	// No collection, because it would wait for listeners in a system call; there is almost nothing
	// to collect.
	debug.SetGCPercent(-1)
	list := make([]listener, r.Count)
	failed := make(chan error, r.Count)
	for i := range list {
		hear, err := list[i].open(r)
		if err != nil {
			return err
		}
		go func() { // Ends with the process.
			runtime.LockOSThread()
			failed <- errors.Join(blockPreemption(), hear())
		}()
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		select {
		case err := <-failed:
			return err
		default:
		}
		var counts audienceCounts
		for i := range list {
			counts.Each = append(counts.Each, listenerCounts{list[i].units.Load(), list[i].gaps.Load()})
		}
		if err := json.NewEncoder(out).Encode(counts); err != nil {
			return err
		}
	}
	return nil
}

// open returns the function that listens until an error.
func (l *listener) open(r role) (hear func() error, err error) {
	if r.Name == followRole {
		fd, err := unix.Open(r.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: r.Path, Err: err}
		}
		return func() error { return l.follow(bareFile(fd)) }, nil
	}
	socket, err := subscribeTo(r.Path)
	if err != nil {
		return nil, err
	}
	return func() error { return l.subscribe(socket) }, nil
}

// bareFile reads with bare system calls, as client does, so that the Go scheduler adds nothing to
// the cost of the audience.
type bareFile int

// Read implements io.Reader.
func (f bareFile) Read(p []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(f), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, fmt.Errorf("read events: %w", errno)
		case n == 0:
			return 0, io.EOF
		default:
			return int(n), nil
		}
	}
}

// gapLine is the beginning of a line of lost events.
const gapLine = `{"event": "gap"`

// follow counts lines.
func (l *listener) follow(from io.Reader) error {
	const keep = len(gapLine) - 1 // A gap may be cut by the end of a read.
	buf := make([]byte, keep+128*kib)
	for {
		n, err := from.Read(buf[keep:])
		if err != nil {
			return err
		}
		text := buf[:keep+n]
		l.units.Add(int64(bytes.Count(text[keep:], []byte{'\n'})))
		if gaps := bytes.Count(text, []byte(gapLine)); gaps > 0 {
			l.gaps.Add(int64(gaps))
		}
		copy(buf, text[n:])
	}
}

// subscribe counts the messages of a ZeroMQ socket, and gaps in their numbers.
func (l *listener) subscribe(r *bufio.Reader) error {
	var last uint64
	for frames := 0; ; {
		more, body, err := readZMQ(r)
		if err != nil {
			return err
		}
		if frames == 1 && body >= 8 { // Topic, number, events.
			head, err := r.Peek(8)
			if err != nil {
				return err
			}
			number := binary.BigEndian.Uint64(head)
			if last != 0 && number != last+1 {
				l.gaps.Add(1)
			}
			last = number
		}
		if _, err := r.Discard(body); err != nil {
			return err
		}
		if frames++; !more {
			frames = 0
			l.units.Add(1)
		}
	}
}

// The part of ZMTP 3.0 (https://rfc.zeromq.org/spec/23) for subscribing.
const (
	zmqGreetingBytes = 64
	zmqMore          = 1
	zmqLong          = 2
	zmqCommand       = 4
)

// subscribeTo connects to a PUB socket and subscribes to the topic of events.
func subscribeTo(endpoint string) (*bufio.Reader, error) {
	c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	fd, err := blockingCopy(c)
	if err != nil {
		return nil, err
	}
	hello := make([]byte, zmqGreetingBytes)
	hello[0], hello[9], hello[10] = 0xff, 0x7f, 3
	copy(hello[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
	hello = append(append(hello, zmqCommand, byte(len(ready))), ready...)
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(fd, 256*kib)
	if _, err := r.Discard(zmqGreetingBytes); err != nil {
		return nil, err
	}
	if _, body, err := readZMQ(r); err != nil { // Its READY.
		return nil, err
	} else if _, err := r.Discard(body); err != nil {
		return nil, err
	}
	_, err = c.Write(append([]byte{0, 1 + byte(len(eventsTopic)), 1}, eventsTopic...))
	return r, err
}

// blockingCopy returns another descriptor of a connection, for bare reads.
func blockingCopy(c net.Conn) (bareFile, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return 0, fmt.Errorf("%s is no TCP", c.RemoteAddr())
	}
	file, err := tcp.File()
	if err != nil {
		return 0, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	return bareFile(fd), unix.SetNonblock(fd, false)
}

// readZMQ reads the head of a frame. It returns whether another frame of the same message follows,
// and the length of the body.
func readZMQ(r *bufio.Reader) (more bool, body int, err error) {
	flags, err := r.ReadByte()
	if err != nil {
		return false, 0, err
	}
	size := 1
	if flags&zmqLong != 0 {
		size = 8
	}
	var length uint64
	for range size {
		b, err := r.ReadByte()
		if err != nil {
			return false, 0, err
		}
		length = length<<8 | uint64(b)
	}
	return flags&zmqMore != 0, int(length), nil
}
