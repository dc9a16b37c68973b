package handoff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// network is the kind of the sockets. Each message arrives whole, with its descriptors.
const network = "unixpacket"

// Limits of what is sent.
const (
	maxMessage     = 64 << 10
	maxStatus      = 16 << 20 // in several messages
	maxDescriptors = 8        // more than any request has; the kernel closes the rest
)

// wire is one connection. One read and one write may run at the same time.
type wire struct{ c *net.UnixConn }

// send writes one message, with copies of descriptors, before the deadline.
func (w wire) send(v any, deadline time.Time, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	fds, err := duplicate(files)
	defer closeAll(fds)
	if err != nil {
		return err
	}
	return w.write(body, deadline, fds)
}

// sendText writes a text, which may be longer than a message.
func (w wire) sendText(text []byte, deadline time.Time) error {
	if len(text) > maxStatus {
		return tooLong(len(text), maxStatus)
	}
	for part := range slices.Chunk(text, maxMessage) {
		if err := w.write(part, deadline, nil); err != nil {
			return err
		}
	}
	return nil
}

func tooLong(n, limit int) error {
	return fmt.Errorf("%w: %d bytes, %d is the limit", ErrMalformed, n, limit)
}

func (w wire) write(body []byte, deadline time.Time, fds []int) error {
	if len(body) > maxMessage {
		return tooLong(len(body), maxMessage)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := w.c.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, _, err := w.c.WriteMsgUnix(body, rights, nil)
	return lineError(err)
}

// duplicate returns copies of the descriptors of files. It avoids File.Fd, which may change the mode of a descriptor.
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

// receive reads one message into v and returns the descriptors that came with it, which the
// caller must close. A zero deadline means none. It returns io.EOF if the other side has ended.
func (w wire) receive(v any, deadline time.Time) (fds []int, err error) {
	body, fds, err := w.read(deadline)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, v); err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return fds, nil
}

// read reads one message. It returns no descriptors when it fails.
func (w wire) read(deadline time.Time) (body []byte, fds []int, err error) {
	if err = w.c.SetReadDeadline(deadline); err != nil {
		return nil, nil, err
	}
	body = make([]byte, maxMessage)
	control := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	n, nc, flags, _, err := w.c.ReadMsgUnix(body, control)
	fds, rightsErr := parseRights(control[:nc])
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		err = lineError(err)
	case n == 0:
		err = io.EOF
	case rightsErr != nil:
		err = fmt.Errorf("%w: %w", ErrMalformed, rightsErr)
	case flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("%w: a message of more than %d bytes", ErrMalformed, maxMessage)
	case flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("%w: more than %d descriptors, or no room for them here", ErrMalformed, maxDescriptors)
	default:
		return body[:n], fds, nil
	}
	closeAll(fds)
	return nil, nil, err
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

// admit returns the credentials of the process at the other end of c. It fails with ErrStranger
// unless that process is of root or of the user of this process.
func admit(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var who *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		who, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if credErr != nil {
		return nil, os.NewSyscallError("SO_PEERCRED", credErr)
	}
	if who.Uid != 0 && who.Uid != uint32(os.Geteuid()) {
		return who, fmt.Errorf("%w: uid %d, pid %d", ErrStranger, who.Uid, who.Pid)
	}
	return who, nil
}

// process returns a pidfd of the process at the other end of c.
func process(c *net.UnixConn) (pidfd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	inner := raw.Control(func(fd uintptr) {
		pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if err = errors.Join(inner, err); err != nil {
		return -1, os.NewSyscallError("SO_PEERPIDFD", err)
	}
	return pidfd, nil
}

// endTime is how long a process may take to end after its connection has ended.
const endTime = 5 * time.Second

// awaitEnd waits until a process has ended and so given up all locks and descriptors. It waits at most endTime, because a
// thread of that process may wait for us. It reports whether the process has ended.
func awaitEnd(pidfd int) bool {
	until := time.Now().Add(endTime)
	for left := endTime; left > 0; left = time.Until(until) {
		p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(left.Milliseconds())+1)
		if n > 0 {
			return true
		}
		if err != nil && err != unix.EINTR {
			return false
		}
	}
	return false
}

// OpenProc opens the root of a procfs that numbers processes as this process sees them: /proc,
// or, if /proc belongs to an outer pid name space, a new procfs without a mount point.
func OpenProc() (*os.File, error) {
	fd, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		own, err := ownProc("/proc")
		if own {
			return os.NewFile(uintptr(fd), "proc"), nil
		}
		unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	ctx, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen proc", err)
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, os.NewSyscallError("fsconfig proc", err)
	}
	if fd, err = unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0); err != nil {
		return nil, os.NewSyscallError("fsmount proc", err)
	}
	return os.NewFile(uintptr(fd), "proc"), nil
}

// ownProc reports whether the procfs at dir is that of this process's pid name space: NSpid
// lists the numbers of a process from that name space inwards.
func ownProc(dir string) (bool, error) {
	text, err := os.ReadFile(dir + "/self/status")
	if err != nil {
		return false, err
	}
	_, rest, found := bytes.Cut(text, []byte("\nNSpid:"))
	line, _, _ := strings.Cut(string(rest), "\n")
	return found && len(strings.Fields(line)) == 1, nil
}

// CheckProc fails unless proc is a procfs: questions about processes to another file system could take forever.
func CheckProc(proc *os.File) error {
	raw, err := proc.SyscallConn()
	if err != nil {
		return err
	}
	var st unix.Statfs_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstatfs(int(fd), &st) }); err != nil {
		return err
	}
	if statErr != nil {
		return os.NewSyscallError("statfs", statErr)
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return fmt.Errorf("%w: descriptor %q is of no procfs", ErrMalformed, nameProc)
	}
	return nil
}
