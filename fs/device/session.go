package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Session is a FUSE connection that a mount process made and hands to an owner, which answers
// its requests (Answer). The mount process keeps the files open, so that the mount outlives the
// owner, and hands them to the next one.
//
// A file that Go's runtime polls would wake the runtime at each request. So the mount process
// does not make the files non-blocking, and an owner closes its copies after Answer.
type Session struct {
	Dir  string   // the mount point, as the mount process sees it: for names and logs only
	Dev  *os.File // /dev/fuse after mount(2)
	Spin *os.File // a clone of Dev from which requests are read, or nil to read Dev. Answer makes it non-blocking.

	// Init is what Conn.Keep of an earlier owner returned to the mount process. Nil means that
	// the kernel's first request is still unanswered.
	Init []byte
	// Epoch is the number of this owner among those of the session, from 1 on. Node numbers
	// that the kernel got from other owners are stale.
	Epoch uint32
	// Stale lists the threads that the earlier owner was about to send to another inode.
	Stale []uint32

	// Proc is /proc as the mount process sees it, with the processes that use the mount. Nil
	// means /proc of this process.
	Proc *os.File

	device   uint64 // of the mount in the mount table of this process; 0 if it is not there
	maxWrite int    // as mounted
}

// MountOptions are the options of mount(2). Options of the same names must agree with them.
type MountOptions struct {
	Dir        string // required: the mount point, an existing empty directory
	FSName     string // first column of mount tables. Empty means kvfs.
	AllowOther bool   // let other users in, checked by the kernel against modes and owners
	MaxWrite   int    // largest request in bytes. Zero means 1 MiB.
	ReadOnly   bool   // the kernel refuses changes
}

// OpenSession mounts at o.Dir by mount(2), which needs CAP_SYS_ADMIN. A process that touches
// the mount waits until an owner answers.
func OpenSession(o MountOptions) (*Session, error) {
	if o.MaxWrite == 0 {
		o.MaxWrite = defaultMaxWrite
	}
	if o.FSName == "" {
		o.FSName = defaultFSName
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", o.Dir, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err})
	}
	s := &Session{Dir: o.Dir, Dev: os.NewFile(uintptr(dev), "/dev/fuse"), Epoch: 1, maxWrite: o.MaxWrite}
	var flags uintptr
	if o.ReadOnly {
		flags = unix.MS_RDONLY
	}
	err = mountAt(o.Dir, dev, flags, &fuse.MountOptions{FsName: o.FSName, Name: "kvfs", AllowOther: o.AllowOther, MaxWrite: o.MaxWrite})
	if err != nil {
		return nil, errors.Join(err, s.Dev.Close())
	}
	s.device, _ = deviceAt(o.Dir) // if unknown, Unmount trusts the path
	if spin, err := cloneDevice(dev, 0); err == nil {
		s.Spin = os.NewFile(uintptr(spin), "/dev/fuse")
	}
	if proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
		s.Proc = os.NewFile(uintptr(proc), "/proc")
	}
	return s, nil
}

// Find limits Unmount to the mount that is topmost at Dir now. It is for a session that another
// process has mounted there.
func (s *Session) Find() (err error) {
	s.device, err = deviceAt(s.Dir)
	return err
}

// Unmount unmounts in the mount process, lazily if the mount is busy. Another mount at Dir, in
// place of this one or on top of it, stays.
func (s *Session) Unmount() error { return detach(s.Dir, s.device) }

// Close closes the files. From then on the mount fails, unless another process has the files.
func (s *Session) Close() error {
	var errs []error
	for _, f := range []*os.File{s.Dev, s.Spin, s.Proc} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// OpenProc reopens Proc. It returns nil if Proc is nil.
func (s *Session) OpenProc() (*os.File, error) {
	fd, err := duplicate(s.Proc)
	if fd < 0 || err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/proc"), nil
}

// duplicate returns another descriptor of the file open in f, without changing its flags. It
// returns -1 if f is nil.
func duplicate(f *os.File) (fd int, err error) {
	if f == nil {
		return -1, nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	inner := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(inner, err); err != nil {
		return -1, os.NewSyscallError("dup", err)
	}
	return fd, nil
}

// kept is what Conn.Keep encodes: the kernel's first request, its answer, and the lowest number
// at which the owner registered backing files.
type kept struct {
	request, reply []byte
	firstBacking   int32
}

func (k *kept) encode() []byte {
	b := append(append([]byte(nil), k.request...), k.reply...)
	return binary.LittleEndian.AppendUint32(b, uint32(k.firstBacking))
}

// decodeKept is the reverse of encode.
func decodeKept(b []byte) (k kept, err error) {
	const head, reply, tail = int(unsafe.Sizeof(fuse.InitIn{})), headBytes + int(unsafe.Sizeof(fuse.InitOut{})), 4
	bad := errors.New("the kept state of an earlier owner is damaged")
	if len(b) < head+reply+tail {
		return k, bad
	}
	n := int(binary.NativeEndian.Uint32(b)) // InHeader.Length
	if n < head || len(b) != n+reply+tail || binary.NativeEndian.Uint32(b[4:]) != opcodeInit {
		return k, bad
	}
	k.request, k.reply = b[:n], b[n:n+reply]
	k.firstBacking = int32(binary.LittleEndian.Uint32(b[n+reply:]))
	if int(binary.NativeEndian.Uint32(k.reply)) != reply || k.settings().MaxWrite > 1<<30 || k.firstBacking < 0 {
		return k, bad
	}
	return k, nil
}

// settings returns the body of the answer.
func (k *kept) settings() fuse.InitOut {
	var out fuse.InitOut
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)), k.reply[headBytes:])
	return out
}

// flags returns the abilities that the kernel offered and the answer accepted.
func (k *kept) flags() uint64 {
	var in fuse.InitIn
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in)), k.request)
	out := k.settings()
	return in.Flags64() & out.Flags64()
}

// capHasResend is FUSE_HAS_RESEND of include/uapi/linux/fuse.h.
const capHasResend = 1 << 39

// resends reports whether the kernel can send requests again.
func (k *kept) resends() bool {
	var in fuse.InitIn
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in)), k.request)
	return in.Flags64()&capHasResend != 0
}

// hello reads the first request of a connection from fd, which does not block, has ps answer
// it, and returns both.
func hello(fd int, size int, ps *fuse.ProtocolServer) (k kept, err error) {
	in, out := make([]byte, size), make([]byte, size)
	n, err := unix.Read(fd, in)
	for err == unix.EINTR {
		n, err = unix.Read(fd, in)
	}
	switch {
	case err == unix.EAGAIN:
		return k, errors.New("an earlier owner has answered INIT, but its kept state is missing")
	case err != nil:
		return k, os.NewSyscallError("read INIT", err)
	case n < int(unsafe.Sizeof(fuse.InHeader{})) || (*fuse.InHeader)(unsafe.Pointer(&in[0])).Opcode != opcodeInit:
		return k, errors.New("the first request is not INIT")
	}
	m, st := ps.HandleRequest([][]byte{in[:n]}, [][]byte{out})
	if st != fuse.OK {
		return k, fmt.Errorf("answer INIT: %w", syscall.Errno(st))
	}
	if _, err := unix.Write(fd, out[:m]); err != nil {
		return k, os.NewSyscallError("answer INIT", err)
	}
	if st := (*fuse.OutHeader)(unsafe.Pointer(&out[0])).Status; st != 0 {
		return k, fmt.Errorf("answer INIT: %w", syscall.Errno(-st))
	}
	k.request, k.reply = bytes.Clone(in[:n]), bytes.Clone(out[:m]) // both buffers are large
	return k, nil
}
