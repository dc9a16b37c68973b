package device

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// channel carries requests between the kernel and Files.
type channel interface {
	serve()                                // until the mount is gone, or leave
	kernelFlags() uint64                   // what the kernel offered in INIT
	beginNotices()                         // before the first notice, by the goroutine that calls it
	invalEntry(parent uint64, name string) // asks the kernel to forget a name
	invalInode(node uint64)                // asks it to forget the attributes of a node
	endNotices()                           // after the last
	mayBlock(unique uint64)                // the request of that number is about to wait
	register(fd int) (int32, syscall.Errno)
	unregister(id int32) syscall.Errno
	leave(cancel func()) // makes serve end, see Conn.Leave
	close()              // after serve, or to give up
	discard()            // in place of serve and close
}

// helperChannel is go-fuse's own server. It mounts through fusermount3, for users that may not
// call mount(2), and splices.
type helperChannel struct{ srv *fuse.Server }

func (c helperChannel) serve()              { c.srv.Serve() }
func (c helperChannel) kernelFlags() uint64 { return c.srv.KernelSettings().Flags64() }
func (c helperChannel) mayBlock(uint64)     {}            // it always has a reader to spare
func (c helperChannel) leave(cancel func()) { cancel() }  // no other owner can follow
func (c helperChannel) close()              {}            // done by serve
func (c helperChannel) discard()            { c.serve() } // ends at once if the mount is gone
func (c helperChannel) beginNotices()       {}
func (c helperChannel) endNotices()         {}

func (c helperChannel) invalEntry(parent uint64, name string) { c.srv.EntryNotify(parent, name) }

func (c helperChannel) invalInode(node uint64) { c.srv.InodeNotify(node, -1, 0) }

func (c helperChannel) register(fd int) (int32, syscall.Errno) {
	return c.srv.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
}

func (c helperChannel) unregister(id int32) syscall.Errno {
	return c.srv.UnregisterBackingFd(id)
}
