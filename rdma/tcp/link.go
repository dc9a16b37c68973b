package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errCut is the error of a link's owner after cut.
var errCut = errors.New("connection cut")

// link is a connection on which bytes must keep moving. One goroutine at a time owns it: that one
// reads, writes and closes. Other goroutines may only cut it.
type link struct {
	net.Conn // carries the frames: tcp, or TLS over it
	tcp      *net.TCPConn
	batch    *batch          // between TLS and tcp; nil without TLS
	raw      syscall.RawConn // of tcp
	stall    time.Duration

	mu      sync.Mutex
	isCut   bool
	readBy  time.Time // the deadlines that are set
	writeBy time.Time
}

func newLink(c *net.TCPConn, stall time.Duration) (*link, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &link{Conn: c, tcp: c, raw: raw, stall: stall}, nil
}

// cut makes the owner's reads and writes fail, also those under way. The owner then closes. Any
// goroutine may call it at any time.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	l.Conn.SetDeadline(time.Unix(1, 0))
}

// wasCut reports whether cut was called.
func (l *link) wasCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isCut
}

// armRead gives the next reads until d from now. It keeps a deadline that is nearly as late
// already, because setting one costs as much as a small read.
func (l *link) armRead(d time.Duration) error {
	return l.arm(&l.readBy, d, l.Conn.SetReadDeadline)
}

// armWrite is armRead for writes.
func (l *link) armWrite(d time.Duration) error {
	return l.arm(&l.writeBy, d, l.Conn.SetWriteDeadline)
}

func (l *link) arm(by *time.Time, d time.Duration, set func(time.Time) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return errCut
	}
	t := time.Now().Add(d)
	if slack := t.Sub(*by); slack >= 0 && slack < d/8 {
		return nil
	}
	*by = t
	return set(t)
}

// sendMore sends b and announces that more follows at once, so the kernel puts both into one
// packet. For links without TLS.
func (l *link) sendMore(b []byte) error {
	if err := l.armWrite(l.stall); err != nil {
		return err
	}
	for len(b) > 0 {
		var n int
		var err error
		wait := l.raw.Write(func(fd uintptr) bool {
			n, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if err := errors.Join(wait, os.NewSyscallError("sendmsg", err)); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// maxSendfile bounds one system call.
const maxSendfile = 1 << 30

// sendFile sends n bytes of f at off. The kernel sends the pages themselves, so they must stay
// unchanged until the peer has them. For links without TLS.
func (l *link) sendFile(f *os.File, off, n int64) error {
	src := int(f.Fd())
	for n > 0 {
		if err := l.armWrite(l.stall); err != nil {
			return err
		}
		var sent int
		var err error
		wait := l.raw.Write(func(fd uintptr) bool {
			sent, err = unix.Sendfile(int(fd), src, &off, int(min(n, maxSendfile)))
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if err := errors.Join(wait, os.NewSyscallError("sendfile", err)); err != nil {
			return err
		}
		if sent == 0 {
			return fmt.Errorf("file ends %d bytes early: %w", n, io.ErrUnexpectedEOF)
		}
		n -= int64(sent)
	}
	return nil
}

// hungUp reports whether the peer has closed its side, even if bytes from it are
// still unread.
func hungUp(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// States of a connection in which the peer's kernel knows its end, as in enum tcp_state.
const (
	tcpFinWait2 = 5 // then TIME_WAIT
	tcpClose    = 7
)

// finish ends sending. It returns when the peer's kernel knows that, or after limit.
func (l *link) finish(limit time.Duration) {
	if l.tcp.CloseWrite() != nil {
		return
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Millisecond) { // reason: no event tells
		var info *unix.TCPInfo
		var err error
		ctl := l.raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		if ctl != nil || err != nil || info.State >= tcpFinWait2 && info.State <= tcpClose {
			return
		}
	}
}

// abort closes the connection and drops bytes that are queued to be sent.
func (l *link) abort() {
	l.tcp.SetLinger(0)
	l.tcp.Close()
}

// wakeReader makes a read under way fail. armRead makes the link usable again.
func (l *link) wakeReader() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readBy = time.Time{}
	l.Conn.SetReadDeadline(time.Unix(1, 0))
}

// secure sends the frames through TLS over b.
func (l *link) secure(c net.Conn, b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Conn, l.batch = c, b
}

// write sends b.
func (l *link) write(b []byte) error {
	if err := l.armWrite(l.stall); err != nil {
		return err
	}
	if l.batch != nil {
		l.batch.gathers = true
	}
	_, err := l.Conn.Write(b)
	if l.batch != nil && err == nil {
		err = l.batch.send()
	}
	return err
}
