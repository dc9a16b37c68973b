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
	maxDescriptors = 8 // more than any request has; the kernel closes the rest
)

// wire is one connection. One read and one write may run at the same time.
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
	fds, err := duplicate(files)
	defer closeAll(fds)
	if err != nil {
		return err
	}
	return w.write(body, deadline, fds)
}

// write writes one frame, with copies of descriptors.
func (w wire) write(body []byte, deadline time.Time, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
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

// duplicate returns copies of the descriptors of files. It avoids File.Fd, which may change the
// mode of a descriptor.
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

// receive reads one frame into v and returns the descriptors that came with it, which the
// caller must close. A zero deadline means none. It returns io.EOF if the other side ended
// between frames.
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

// fill reads until b is full. It adds the descriptors that come along to fds, also when it
// fails. It returns io.EOF if nothing came.
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

// parseRights returns the descriptors in control messages, also with an error.
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

// lineError turns the ways in which a connection ends into one kind. It keeps deadlines.
func lineError(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return err
}

// newFile wraps a descriptor that arrived. Go's runtime would add a non-blocking descriptor to
// its poller, which then wakes at every event of it. So newFile puts the descriptor in the place
// of one that blocks, which the runtime has looked at already. The flags, which both sides share, stay.
func newFile(fd int, name string) (*os.File, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if flags&unix.O_NONBLOCK == 0 {
		return os.NewFile(uintptr(fd), name), nil
	}
	place, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/null", Err: err}
	}
	f := os.NewFile(uintptr(place), name)
	if err := unix.Dup3(fd, place, unix.O_CLOEXEC); err != nil {
		f.Close()
		return nil, os.NewSyscallError("dup3", err)
	}
	unix.Close(fd)
	return f, nil
}
