package handoff

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a frame.
const (
	maxFrame       = 64 << 10
	maxStatus      = 16 << 20
	maxDescriptors = 8 // more than any request has; what comes beyond them, the kernel closes
)

// wire is one connection. Reads and writes may run at the same time, but one of each.
type wire struct{ c *net.UnixConn }

// send writes one frame, with descriptors, before the deadline.
func (w wire) send(v any, deadline time.Time, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.sendBytes(body, maxFrame, deadline, files...)
}

func (w wire) sendBytes(body []byte, limit int, deadline time.Time, files ...*os.File) error {
	if len(body) > limit {
		return fmt.Errorf("%w: %d bytes, %d is the limit", ErrMalformed, len(body), limit)
	}
	var rights []byte
	if len(files) > 0 {
		fds, err := duplicate(files)
		defer closeAll(fds)
		if err != nil {
			return err
		}
		rights = unix.UnixRights(fds...)
	}
	if err := w.c.SetWriteDeadline(deadline); err != nil {
		return err
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	n, _, err := w.c.WriteMsgUnix(frame, rights, nil)
	if err == nil && n < len(frame) {
		_, err = w.c.Write(frame[n:])
	}
	return lineError(err)
}

// duplicate returns copies of the descriptors of files. It does not go through File.Fd,
// which may change how a descriptor behaves.
func duplicate(files []*os.File) (fds []int, err error) {
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return fds, err
		}
		var dupErr error
		if err := raw.Control(func(fd uintptr) {
			var dup int
			if dup, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
				fds = append(fds, dup)
			}
		}); err != nil {
			return fds, err
		}
		if dupErr != nil {
			return fds, os.NewSyscallError("duplicate a descriptor", dupErr)
		}
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// receive reads one frame into v and returns the descriptors that came with it, which are
// the caller's to close. A zero deadline means none. It returns io.EOF where the other side
// ended between frames.
func (w wire) receive(v any, deadline time.Time) (fds []int, err error) {
	body, fds, err := w.receiveBytes(maxFrame, deadline)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, v); err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return fds, nil
}

func (w wire) receiveBytes(limit int, deadline time.Time) (body []byte, fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			fds = nil
		}
	}()
	if err = w.c.SetReadDeadline(deadline); err != nil {
		return nil, nil, err
	}
	var head [4]byte
	if err = w.fill(head[:], &fds); err != nil {
		return nil, fds, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || int64(size) > int64(limit) {
		return nil, fds, fmt.Errorf("%w: a frame of %d bytes, %d is the limit", ErrMalformed, size, limit)
	}
	body = make([]byte, size)
	if err = w.fill(body, &fds); err == io.EOF {
		err = fmt.Errorf("%w in a frame", ErrEnded)
	}
	return body, fds, err
}

// fill reads until b is full and adds the descriptors that come along to fds, also when it
// fails. It returns io.EOF if there was nothing at all.
func (w wire) fill(b []byte, fds *[]int) error {
	control := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	for done := 0; done < len(b); {
		n, nc, flags, _, err := w.c.ReadMsgUnix(b[done:], control)
		got, rightsErr := parseRights(control[:nc])
		*fds = append(*fds, got...)
		done += n
		switch {
		case err == nil && n == 0 || errors.Is(err, io.EOF):
			if done == 0 {
				return io.EOF
			}
			return fmt.Errorf("%w in a frame", ErrEnded)
		case err != nil:
			return lineError(err)
		case rightsErr != nil:
			return fmt.Errorf("%w: %w", ErrMalformed, rightsErr)
		case flags&unix.MSG_CTRUNC != 0 || len(*fds) > maxDescriptors:
			return fmt.Errorf("%w: more than %d descriptors, or no room for them here", ErrMalformed, maxDescriptors)
		}
	}
	return nil
}

// parseRights returns the descriptors in control messages; also with an error.
func parseRights(control []byte) (fds []int, err error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		got, e := unix.ParseUnixRights(&messages[i])
		fds = append(fds, got...)
		err = errors.Join(err, e)
	}
	return fds, err
}

// lineError makes one kind of the ways in which a connection ends. Deadlines stay what they
// are.
func lineError(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return err
}

// newFile wraps a descriptor that arrived. The runtime would put one that does not block
// into its poller, which then wakes for whatever happens to it, so it must look like one
// that blocks while os.NewFile looks. The flag is shared with the other side, which waits
// for an answer meanwhile.
func newFile(fd int, name string) (*os.File, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if flags&unix.O_NONBLOCK == 0 {
		return os.NewFile(uintptr(fd), name), nil
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.SetNonblock(fd, true); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}
