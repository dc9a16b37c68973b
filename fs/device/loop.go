package device

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// loop is a channel that reads /dev/fuse itself and leaves the protocol to go-fuse. go-fuse's
// own loop wakes a second thread for each request, to listen while the first works. Where a
// wake-up costs more than the work, that is most of an OPEN. Here one thread, the leader, takes
// requests and answers the short ones itself. It hands the lead to another thread before a long
// request, and when a request turns out to wait (mayBlock). The load of a block may keep the leader
// of a client that is alone (Reply.Keep). Else an OPEN of such a block starts a goroutine. If no
// other OPEN waits, that runs on the leader's thread until it waits for the tier (yield).
//
// A leader that has just answered spins for a moment before it sleeps. The next request of a
// client that reads block after block comes within microseconds, and a wake-up takes tens of
// them. The leader stops spinning when requests come seldom (see spinner). Where wake-ups are
// dear, it follows a client that is alone instead (see follower).
//
// Measured with 64 KiB blocks, open-read-close by one thread on two cores: go-fuse's loop 72
// us, one thread without spinning 66 us, with spinning 25 us; tmpfs itself 6 us.
//
// Several leaders, each with a request of its own, were slower there: 16 threads read 79,000 blocks
// a second with one leader, 61,000 with two and 62,000 with four; one thread 55,000, 50,000, 36,000.
type loop struct {
	files Files
	epoch Epoch
	own   bool // Options.Own
	ps    *fuse.ProtocolServer
	fd    int // notices, ioctls
	poll  int // requests, without waiting; a clone of fd if the kernel has clones
	size  int // of request and reply buffers

	wake    int // readable when the leader must end
	notices int // a clone of fd in the notifying thread's own table of descriptors; -1 if it uses fd

	init      uint64
	log       *zap.Logger
	latencies *Latencies // counts the requests of the kernel
	watch     *Watch     // is shown them

	proc     int // /proc of the clients; -1 if there is none
	spin     spinner
	follower follower

	unique  atomic.Uint64      // request that the leader answers itself, 0 if none
	opening atomic.Int64       // OPENs that are answered later, plus one that is being decided
	stint   stint              // of the leader that a load keeps
	opens   [512]atomic.Uint64 // the numbers of the last OPENs; see opened
	spare   chan struct{}      // hands the lead to a parked worker
	parked  atomic.Int64
	quit    chan struct{} // closed when the mount is gone
	once    sync.Once
	wg      sync.WaitGroup

	closing atomic.Bool // close was called: workers must end
	leaving atomic.Bool // another owner follows, or the mount is given up
	open    struct {
		sync.RWMutex // held for reading while a descriptor is used outside of workers
		closed       bool
		ended        bool // no worker is left
	}
}

// opened returns the place of the number of an OPEN. The numbers are even. None is used twice, so places are not cleared. A newer
// OPEN may take the place of an older one.
func (d *loop) opened(unique uint64) *atomic.Uint64 { return &d.opens[unique/2%uint64(len(d.opens))] }

// maxParked bounds the workers that wait to lead. Others end after their request.
const maxParked = 16

// devIOCClone is FUSE_DEV_IOC_CLONE of include/uapi/linux/fuse.h.
const (
	devIOCClone        = 0x8004e500
	devIOCBackingOpen  = 0x4010e501
	devIOCBackingClose = 0x4004e502
)

func newLoop(files Files, o *fuse.MountOptions, log *zap.Logger) *loop {
	return &loop{
		files: files, fd: -1, poll: -1, wake: -1, notices: -1, proc: -1, size: o.MaxWrite + 64<<10, log: log, latencies: &Latencies{}, watch: &Watch{},
		spare: make(chan struct{}), quit: make(chan struct{}),
	}
}

// mountAt is mount(2) of the connection of fd, with more flags. The kernel checks modes and owners, and asks for the
// attributes of a directory after each change in it, unless only root gets in, who may do everything.
func mountAt(dir string, fd int, flags uintptr, o *fuse.MountOptions) error {
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d", fd, os.Geteuid(), os.Getegid(), o.MaxWrite)
	if o.AllowOther {
		data += ",allow_other"
	}
	if o.AllowOther || os.Geteuid() != 0 {
		data += ",default_permissions"
	}
	if err := unix.Mount(o.FsName, dir, "fuse."+o.Name, unix.MS_NOSUID|unix.MS_NODEV|flags, data); err != nil {
		return &os.PathError{Op: "mount", Path: dir, Err: err}
	}
	return nil
}

// another opens one more descriptor of the mount.
func (d *loop) another(flags int) (int, error) {
	return cloneDevice(d.fd, flags)
}

func cloneDevice(of, flags int) (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return -1, err
	}
	from := uint32(of)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), devIOCClone, uintptr(unsafe.Pointer(&from))); errno != 0 {
		unix.Close(fd)
		return -1, errno
	}
	return fd, nil
}

func (d *loop) kernelFlags() uint64 { return d.init }

// serve implements channel.
func (d *loop) serve() {
	d.wg.Add(1)
	go d.work(true) // ends with the mount
	<-d.quit
	d.wg.Wait()
	d.open.Lock()
	defer d.open.Unlock()
	d.open.ended = true
	if d.open.closed {
		d.closeFiles()
	}
}

// close implements channel. The kernel then forgets all backing files, unless another process
// has the files, too. Workers that still answer use the files until they end.
func (d *loop) close() {
	d.open.Lock()
	defer d.open.Unlock()
	if d.open.closed {
		return
	}
	d.open.closed = true
	if d.open.ended {
		d.closeFiles()
		return
	}
	d.halt() // serve then closes the files
}

// halt ends the leader, once it has answered the requests that it has read.
func (d *loop) halt() {
	d.closing.Store(true)
	one := uint64(1)
	buf := unsafe.Slice((*byte)(unsafe.Pointer(&one)), unsafe.Sizeof(one))
	if _, err := unix.Write(d.wake, buf); err != nil {
		d.log.Error("wake the reader of requests", zap.Error(err))
	}
}

// await sleeps until there is a request, and reads it. It returns 0 when the leader must end.
// It does not sleep in the read: nothing could end such a read, and it would take a request
// from the next owner.
func (d *loop) await(in []byte) (int, error) {
	fds := [2]unix.PollFd{{Fd: int32(d.poll), Events: unix.POLLIN}, {Fd: int32(d.wake), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds[:], -1); err != nil {
		return 0, err
	}
	if fds[1].Revents != 0 {
		return 0, nil
	}
	return unix.Read(d.poll, in)
}

func (d *loop) closeFiles() {
	for _, fd := range []int{d.poll, d.wake, d.fd, d.proc} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// leave implements channel.
func (d *loop) leave(cancel func()) {
	d.leaving.Store(true)
	cancel()
	d.halt()
}

// discard implements channel.
func (d *loop) discard() { d.closeFiles() }

// stop ends all workers.
func (d *loop) stop() { d.once.Do(func() { close(d.quit) }) }

// work is the life of one worker: it leads, hands the lead over for a long request, answers
// that, and waits to lead again.
func (d *loop) work(lead bool) {
	runtime.LockOSThread() // other goroutines must not run on a thread that spins
	defer runtime.UnlockOSThread()
	w := d.newWorker()
	defer func() {
		w.free()
		if !w.late {
			d.wg.Done()
		}
	}()
	for {
		if w.late {
			return
		}
		if !lead {
			if d.parked.Add(1) > maxParked {
				d.parked.Add(-1)
				return
			}
			select {
			case <-d.spare:
				d.parked.Add(-1)
			case <-d.quit:
				return
			}
		}
		if !w.lead() {
			d.stop()
			return
		}
		lead = false
	}
}

// handOver makes another worker lead.
func (d *loop) handOver() {
	select {
	case d.spare <- struct{}{}:
	default:
		d.wg.Add(1)
		go d.work(true) // ends when there are too many, or with the mount
	}
}

// mayBlock implements channel.
func (d *loop) mayBlock(unique uint64) {
	if d.unique.CompareAndSwap(unique, 0) {
		d.handOver()
	}
}

// invalEntry implements channel with FUSE_NOTIFY_INVAL_ENTRY. Only the goroutine of
// beginNotices calls it, before endNotices.
func (d *loop) invalEntry(parent uint64, name string) {
	const code = 3
	head := int(unsafe.Sizeof(fuse.OutHeader{}))
	body := int(unsafe.Sizeof(fuse.NotifyInvalEntryOut{}))
	buf := make([]byte, head+body+len(name)+1)
	*(*fuse.OutHeader)(unsafe.Pointer(&buf[0])) = fuse.OutHeader{Length: uint32(len(buf)), Status: code}
	*(*fuse.NotifyInvalEntryOut)(unsafe.Pointer(&buf[head])) = fuse.NotifyInvalEntryOut{Parent: parent, NameLen: uint32(len(name))}
	copy(buf[head+body:], name)
	d.notify(buf)
}

// invalInode implements channel with FUSE_NOTIFY_INVAL_INODE of the attributes alone. Call it
// as invalEntry.
func (d *loop) invalInode(node uint64) {
	const code = 2
	var buf [headBytes + int(unsafe.Sizeof(fuse.NotifyInvalInodeOut{}))]byte
	*(*fuse.OutHeader)(unsafe.Pointer(&buf[0])) = fuse.OutHeader{Length: uint32(len(buf)), Status: code}
	*(*fuse.NotifyInvalInodeOut)(unsafe.Pointer(&buf[headBytes])) = fuse.NotifyInvalInodeOut{Ino: node, Off: -1}
	d.notify(buf[:])
}

func (d *loop) notify(buf []byte) {
	if d.notices >= 0 {
		d.write(d.notices, buf)
		return
	}
	d.open.RLock()
	defer d.open.RUnlock()
	if !d.open.closed {
		d.write(d.fd, buf)
	}
}

func (d *loop) write(fd int, notice []byte) {
	if _, err := unix.Write(fd, notice); err != nil && err != unix.ENOENT && err != unix.ENOTDIR {
		d.log.Debug("notice to the kernel", zap.Error(err))
	}
}

func (d *loop) register(fd int) (int32, syscall.Errno) {
	d.open.RLock()
	defer d.open.RUnlock()
	if d.open.closed {
		return 0, unix.EBADF
	}
	m := fuse.BackingMap{Fd: int32(fd)}
	id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), devIOCBackingOpen, uintptr(unsafe.Pointer(&m)))
	return int32(id), errno
}

func (d *loop) unregister(id int32) syscall.Errno {
	d.open.RLock()
	defer d.open.RUnlock()
	if d.open.closed {
		return unix.EBADF
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), devIOCBackingClose, uintptr(unsafe.Pointer(&id)))
	return errno
}
