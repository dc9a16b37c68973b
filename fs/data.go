package fs

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// waiter is the state.Waiter of one request. The leader of the reading threads may answer such
// a request itself although it can wait for space: WriteTimeout bounds the wait. So no
// goroutine has to watch for interrupts, which would cost a thread's wake-up for each CREATE.
type waiter struct {
	f      *files
	unique uint64
}

// MayWait implements state.Waiter.
func (w waiter) MayWait() { w.f.kernel.MayBlock(w.unique) }

// noticeTime is how long an open with O_TRUNC waits for the kernel to forget the name. The wait is bounded because
// another client may hold the directory.
const noticeTime = 50 * time.Millisecond

// Open implements OPEN.
func (f *files) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	defer f.begin(device.OpOpen).end()
	if isControl(in.NodeId) {
		return f.control.open(in, out)
	}
	if st := f.awaitTest(in.Unique); st != fuse.OK {
		return st
	}
	id := index.ID(in.NodeId)
	if in.Flags&syscall.O_ACCMODE == syscall.O_RDONLY && in.Flags&syscall.O_TRUNC == 0 {
		return f.openRead(id, in, out)
	}
	if in.Uid != 0 {
		if err := f.dropPrivileges(id); err != nil {
			return status(err)
		}
	}
	by := f.maker(in.Pid)
	if !f.opts.Descriptors.take(f.ctx, waiter{f, in.Unique}.MayWait) {
		return fuse.Status(syscall.ENOSPC)
	}
	h, err := f.engine.OpenWrite(f.ctx, id, by, openfile.WriteOptions{
		Truncate: in.Flags&syscall.O_TRUNC != 0, Append: in.Flags&syscall.O_APPEND != 0,
	})
	if err == nil {
		f.openWrite(h, out).there = true
		f.forget(0, h.ID(), "") // the kernel does not see stores through a mapping; see attrTimeout
	} else {
		f.opts.Descriptors.give()
	}
	if in.Flags&syscall.O_TRUNC != 0 { // the block is gone: the kernel tells nobody that it is there from now on
		ctx, cancel := context.WithTimeout(f.ctx, noticeTime)
		f.kernel.Flush(ctx)
		cancel()
	}
	return f.stale.answer(in.Pid, err, fuse.EINTR)
}

// openRead opens a block for reading. A hot one takes one pass through the
// engine's lock and one through that of the backings, and no allocation.
func (f *files) openRead(id index.ID, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	by := f.reader(in.Pid)
	o, err := f.engine.OpenHot(id, by)
	if err == state.ErrHollow {
		by.Waits = waiter{f, in.Unique}
		o, err = f.engine.OpenRead(f.ctx, id, by, in.Flags&syscall.O_NONBLOCK != 0)
	}
	return f.openedRead(o, nil, err, in.Pid, out)
}

// OpenLater implements device.Files. It is openRead for a request that another goroutine may
// answer later.
func (f *files) OpenLater(in *fuse.OpenIn, out *fuse.OpenOut, reply device.Reply) (st fuse.Status, later bool) {
	defer f.begin(device.OpOpen).end()
	if st := f.awaitTest(in.Unique); st != fuse.OK {
		return st, false
	}
	id := index.ID(in.NodeId)
	by := f.reader(in.Pid)
	o, err := f.engine.OpenHot(id, by)
	if err != state.ErrHollow {
		return f.openedRead(o, nil, err, in.Pid, out), false
	}
	spare, end := reply.Keep()
	defer end()
	by.Spare = spare
	f.engine.OpenLater(id, by, func(o openfile.Opened, file *os.File, err error) {
		if f.refs != nil {
			f.refs.later.RLock()
			defer f.refs.later.RUnlock()
			if f.refs.ended {
				f.giveBackOpen(o, err)
				return
			}
		}
		var out fuse.OpenOut
		st := f.openedRead(o, file, err, by.Thread, &out)
		reply.Send(st, &out)
	})
	return fuse.OK, true
}

// giveBackOpen ends an open whose caller has stopped waiting.
func (f *files) giveBackOpen(o openfile.Opened, err error) {
	if err == nil {
		f.engine.CloseRead(o.ID)
	}
}

// openedRead answers the open of a block. file is its primary file if the caller has it open, else nil.
func (f *files) openedRead(o openfile.Opened, file *os.File, err error, tid uint32, out *fuse.OpenOut) fuse.Status {
	if outOfFiles(err) {
		return fuse.ENOENT
	}
	if st := f.stale.answer(tid, err, fuse.ENOENT); st != fuse.OK {
		return st
	}
	id := o.ID
	if f.direct.Load() {
		backing, err := f.backings.acquire(o.Blob, file)
		if err == nil {
			if f.refs != nil {
				f.refs.opened(id, o.Blob)
			}
			out.Fh = uint64(o.Blob)<<fhBits | fhBlob
			out.OpenFlags = fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_NOFLUSH
			out.BackingID = backing
			return fuse.OK
		}
		f.log.Warn("open without passthrough", zap.Uint64("blob", uint64(o.Blob)), zap.Error(err))
	}
	h := &handle{id: id, counted: true}
	if !f.opts.Descriptors.tryTake() {
		f.engine.CloseRead(id)
		return fuse.ENOENT // a miss
	}
	h.file, err = f.engine.OpenBlob(o.Blob)
	if err != nil {
		f.opts.Descriptors.give()
		f.engine.CloseRead(id)
		if outOfFiles(err) {
			return fuse.ENOENT
		}
		return status(err)
	}
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	out.Fh = f.handles.add(h, fhHandle)
	return fuse.OK
}

// openWrite fills in the answer for a handle that writes. If room is reserved, the kernel
// writes by itself. Else writes pass through the daemon, which reserves room as the file grows.
// In both cases all handles of an inode name the same backing file, as the kernel requires:
// with FOPEN_DIRECT_IO it uses that file only for mmap.
func (f *files) openWrite(w *openfile.Handle, out *fuse.OpenOut) *handle {
	h := &handle{id: w.ID(), write: w, counted: true}
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	if f.direct.Load() {
		blob := w.Blob()
		err := w.WithFile(func(file *os.File) (err error) {
			out.BackingID, err = f.backings.acquire(blob, file)
			return err
		})
		if err == nil {
			h.passthrough, h.blob = true, blob
			out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
			if w.Direct() {
				out.OpenFlags = fuse.FOPEN_PASSTHROUGH
			}
		} else {
			f.log.Warn("open without passthrough", zap.Uint64("blob", uint64(blob)), zap.Error(err))
		}
	}
	out.Fh = f.handles.add(h, fhHandle)
	return h
}

// Create implements CREATE.
func (f *files) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	defer f.begin(device.OpCreate).end()
	if isControl(in.NodeId) {
		return fuse.EPERM
	}
	if st := f.awaitTest(in.Unique); st != fuse.OK { // the block may be there
		return st
	}
	by := f.maker(in.Pid)
	by.Waits = waiter{f, in.Unique}
	if !f.opts.Descriptors.take(f.ctx, by.Waits.MayWait) {
		return fuse.Status(syscall.ENOSPC)
	}
	a, h, err := f.engine.Create(f.ctx, openfile.CreateOptions{
		Parent: index.ID(in.NodeId), Name: name, Mode: in.Mode, UID: in.Uid, GID: in.Gid, By: by,
		Exclusive: in.Flags&syscall.O_EXCL != 0, Truncate: in.Flags&syscall.O_TRUNC != 0,
	})
	if st := f.stale.answerCreate(in.Pid, err); st != fuse.OK {
		f.opts.Descriptors.give()
		return st
	}
	if in.Uid != 0 && a.Mode&^in.Mode&setIDs != 0 { // of a file that was there
		if err := f.dropPrivileges(a.ID); err != nil {
			f.opts.Descriptors.give()
			f.engine.Release(h)
			return status(err)
		}
		a = f.engine.Attr(a.ID)
	}
	f.fillEntry(&out.EntryOut, &a)
	f.openWrite(h, &out.OpenOut)
	if h.Silent() && f.refs == nil && in.Flags&syscall.O_ACCMODE == syscall.O_WRONLY {
		// The kernel sees each change: nobody else has the new file open, and no mapping of it can be written.
		out.SetAttrTimeout(f.opts.AttrTimeout)
	}
	if h.Silent() && f.direct.Load() { // without passthrough, closes may be answered in another order than they came
		out.OpenFlags |= fuse.FOPEN_NOFLUSH // the name is temporary: the rename commits it, not the close
	}
	return fuse.OK
}

// Read implements READ, for files that the kernel does not read by itself.
func (f *files) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	defer f.begin(device.OpRead).end()
	h := f.handles.get(in.Fh)
	switch {
	case h == nil:
		return nil, fuse.EBADF
	case h.control != nil:
		n, err := h.control.Read(cancel, buf, int64(in.Offset))
		if err != nil {
			return nil, status(err)
		}
		return fuse.ReadResultData(buf[:n]), fuse.OK
	case h.write != nil:
		n, err := h.write.ReadAt(buf, int64(in.Offset))
		if err != nil {
			return nil, status(err)
		}
		return fuse.ReadResultData(buf[:n]), fuse.OK
	case h.file == nil:
		return nil, fuse.EBADF
	}
	return f.readFile(h.file, int64(in.Offset), buf)
}

// readFile answers with the bytes of file from off on. It splices them if the channel splices.
func (f *files) readFile(file *os.File, off int64, buf []byte) (fuse.ReadResult, fuse.Status) {
	if !f.splice {
		return fuse.ReadResultFd(file.Fd(), off, len(buf)), fuse.OK
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, status(err)
	}
	n := int(max(0, min(st.Size-off, int64(len(buf)))))
	if fitsPipe(off, n, os.Getpagesize()) {
		return fuse.ReadResultFd(file.Fd(), off, n), fuse.OK
	}
	n, err := file.ReadAt(buf[:n], off)
	if err != nil && err != io.EOF {
		return nil, status(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// fitsPipe reports whether n bytes of a file from off on, and the reply's header, fit in the pipe that
// go-fuse v2.12 makes for them. go-fuse sizes the pipe as the bytes plus one page, rounded up to a
// power of two of pages. The kernel uses one slot for the header and one for each page that the bytes
// touch. go-fuse drops what does not fit: the client gets a short read.
func fitsPipe(off int64, n, page int) bool {
	const header = int(unsafe.Sizeof(fuse.OutHeader{}))
	slots := 1 << bits.Len(uint((header+n+page-1)/page))
	used := 1 + (int(off%int64(page))+n+page-1)/page
	return used <= slots
}

// Write implements WRITE, for files that the kernel does not write by itself.
func (f *files) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	defer f.begin(device.OpWrite).end()
	h := f.handles.get(in.Fh)
	switch {
	case h == nil:
		return 0, fuse.EBADF
	case h.control != nil:
		n, err := h.control.Write(data)
		return uint32(n), status(err)
	case h.write == nil:
		return 0, fuse.EBADF
	}
	if in.WriteFlags&writeKillsPrivileges != 0 { // set since it was opened
		if err := f.dropPrivileges(h.id); err != nil {
			return 0, status(err)
		}
	}
	off := int64(in.Offset)
	if in.Flags&syscall.O_APPEND != 0 {
		off = openfile.AtEnd // the end as the daemon knows it: another kernel may have moved it
	}
	n, err := h.write.WriteAt(f.ctx, data, off)
	if err != nil {
		return 0, status(err)
	}
	return uint32(n), fuse.OK
}

// Flush implements FLUSH, which follows each close(2) of a descriptor.
func (f *files) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	defer f.begin(device.OpFlush).end()
	h := f.handles.get(in.Fh)
	if h == nil || h.write == nil {
		return fuse.OK
	}
	by := f.caller(in.Pid)
	by.Waits = waiter{f, in.Unique}
	err := f.engine.Flush(f.ctx, h.write, by, closer{f, in.Pid})
	if h.there { // after the close the kernel must not know the attributes from before the open
		ctx, cancel := context.WithTimeout(f.ctx, noticeTime)
		f.kernel.Flush(ctx)
		cancel()
	}
	return syncStatus(err)
}

// Release implements RELEASE, which the kernel sends some time after the last
// close.
func (f *files) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	defer f.time(device.OpRelease).end()
	defer f.ops.add(device.OpRelease) // last, so that the count shows a finished release: nobody waits for this answer
	if in.Fh&fhMask == fhBlob {
		id, blob := index.ID(in.NodeId), driver.BlobID(in.Fh>>fhBits)
		if f.refs != nil && !f.refs.closed(id, blob) {
			return
		}
		f.backings.release(blob)
		f.engine.CloseRead(id)
		return
	}
	if h := f.handles.take(in.Fh); h != nil {
		f.closeHandle(h, false)
	}
}

// closeHandle ends a handle that has left the table. With abandon it commits nothing.
func (f *files) closeHandle(h *handle, abandon bool) {
	if h.control != nil {
		h.control.Close()
		return
	}
	if h.passthrough {
		f.backings.release(h.blob)
	}
	if h.file != nil {
		h.file.Close()
	}
	if h.counted {
		defer f.opts.Descriptors.give() // when it is closed
	}
	switch {
	case h.dir != nil:
	case h.done != nil:
		h.done()
		if h.passthrough {
			f.backings.drop(h.blob)
		}
	case h.write == nil:
		f.engine.CloseRead(h.id)
	case abandon:
		f.engine.Abandon(h.write)
	default:
		f.engine.Release(h.write)
		if h.there {
			f.forget(0, h.id, "") // it has heard of stores through a mapping only now
		}
	}
}

// Fsync implements FSYNC. It returns when the file is durable on SSD. Without an SSD tier it
// returns at once.
func (f *files) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	defer f.begin(device.OpFsync).end()
	if isControl(in.NodeId) {
		return fuse.OK
	}
	return syncStatus(f.engine.Fsync(f.ctx, index.ID(in.NodeId)))
}

// FsyncDir implements FSYNCDIR. When it returns, every earlier rename below the directory is durable.
func (f *files) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	defer f.begin(device.OpFsyncdir).end()
	if isControl(in.NodeId) {
		return fuse.OK
	}
	return syncStatus(f.engine.FsyncDir(f.ctx, index.ID(in.NodeId)))
}

// syncStatus is status for fsync(2). It never answers ENOENT for a file that could not be made durable.
func syncStatus(err error) fuse.Status {
	if errors.Is(err, block.ErrUnavailable) || errors.Is(err, block.ErrCorrupt) {
		return fuse.EIO
	}
	return status(err)
}

// Fallocate implements fallocate(2): mode 0, KEEP_SIZE and PUNCH_HOLE.
func (f *files) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	defer f.begin(device.OpFallocate).end()
	h := f.handles.get(in.Fh)
	if h == nil || h.write == nil {
		return fuse.EBADF
	}
	off, n := int64(in.Offset), int64(in.Length)
	switch in.Mode {
	case 0, unix.FALLOC_FL_KEEP_SIZE:
		return status(h.write.Allocate(f.ctx, off, n, in.Mode != 0))
	case unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE:
		return status(h.write.PunchHole(f.ctx, off, n))
	}
	return fuse.Status(syscall.EOPNOTSUPP)
}

// Lseek implements SEEK_DATA and SEEK_HOLE.
func (f *files) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	defer f.begin(device.OpLseek).end()
	seek := func(file *os.File) error {
		n, err := unix.Seek(int(file.Fd()), int64(in.Offset), int(in.Whence))
		out.Offset = uint64(n)
		return err
	}
	if in.Fh&fhMask == fhBlob {
		file, err := f.engine.OpenBlob(driver.BlobID(in.Fh >> fhBits))
		if err != nil {
			return status(err)
		}
		defer file.Close()
		return status(seek(file))
	}
	h := f.handles.get(in.Fh)
	switch {
	case h == nil, h.control != nil:
		return fuse.EBADF
	case h.write != nil:
		return status(h.write.WithFile(seek))
	}
	return status(seek(h.file))
}
