package device

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Conn is one owner's connection to a mount. Its methods may be called in parallel, except
// those that begin and end it: the package comment has their order.
type Conn struct {
	channel channel
	notices *notifier
	served  chan struct{}  // closed when the channel has ended
	telling sync.WaitGroup // the goroutine of notices

	epoch  Epoch
	kept   kept   // set for a session
	dir    string // the mount point
	device uint64 // of the mount in our mount table; 0: unknown
}

// Answer begins the protocol of a session, or continues it after an earlier owner, with
// descriptors of its own. It leaves nothing behind if it fails.
func Answer(x *Session, files Files, o Options) (*Conn, error) {
	if x.Epoch == 0 || x.Epoch > MaxEpoch {
		return nil, fmt.Errorf("owner number %d of the mount: want 1 to %d", x.Epoch, MaxEpoch)
	}
	c := newConn(x.Dir)
	c.epoch, c.device = Epoch(x.Epoch)<<epochShift, x.device
	l, k, err := answer(x, files, &o)
	if err != nil {
		return nil, err
	}
	l.epoch, l.own = c.epoch, o.Own
	if o.Latencies != nil {
		l.latencies = o.Latencies
	}
	if o.Watch != nil {
		l.watch = o.Watch
	}
	c.channel, c.kept = l, k
	return c, nil
}

// MountHelper mounts at dir through fusermount3. Reads are spliced. No other process can continue such a mount.
func MountHelper(dir string, files Files, o Options) (*Conn, error) {
	srv, err := fuse.NewServer(files, dir, o.protocol(true))
	if err != nil {
		return nil, err
	}
	c := newConn(dir)
	c.channel = helperChannel{srv}
	c.device, _ = deviceAt(dir) // if unknown, Unmount trusts the path
	return c, nil
}

func newConn(dir string) *Conn {
	return &Conn{notices: newNotifier(), served: make(chan struct{}), dir: dir}
}

// Start begins to answer.
func (c *Conn) Start() {
	go func() { c.channel.serve(); close(c.served) }() // ends with the mount, or Leave
	c.telling.Go(func() { c.notices.run(c.channel) })  // ends when Wait, Leave or Close closes it
	<-c.notices.begun                                  // so that the thread of notices does nothing else before
}

// Discard ends a Conn that was not started.
func (c *Conn) Discard() { c.channel.discard() }

// Served returns a channel that is closed when the mount is gone, or Leave has ended the answers.
func (c *Conn) Served() <-chan struct{} { return c.served }

// Leave ends the answers of a session. Requests that wait for something are left to the next
// owner; the others are answered. cancel must make the waiting requests return.
func (c *Conn) Leave(cancel func()) {
	// A notice may wait in the kernel for a client that waits for us, so it comes first.
	c.notices.close()
	c.telling.Wait()
	c.channel.leave(cancel)
	<-c.served
}

// Wait returns when the mount is gone, all requests are answered, and the last notice is sent.
func (c *Conn) Wait() {
	<-c.served
	c.notices.close()
	c.telling.Wait()
}

// Close closes the descriptors. The kernel goes on with what it serves by itself. Everything else fails, unless
// another process has the files, too. Close does not wait for requests that are being answered.
func (c *Conn) Close() {
	c.notices.close()
	c.channel.close()
}

// Unmount unmounts, lazily if the mount is busy. Another mount at the directory, in place of
// this one or on top of it, stays.
func (c *Conn) Unmount() error { return detach(c.dir, c.device) }

// Epoch returns the owner's number as nodes carry it, or 0 if no other process can answer the mount.
func (c *Conn) Epoch() Epoch { return c.epoch }

// Passthrough reports whether the kernel offers to read and write files by itself.
func (c *Conn) Passthrough() bool { return c.channel.kernelFlags()&fuse.CAP_PASSTHROUGH != 0 }

// Register gives the kernel a file and returns its number, with which OPEN may be answered.
func (c *Conn) Register(fd int) (id int32, errno syscall.Errno) { return c.channel.register(fd) }

// Unregister takes that back. Files that were opened by the number stay open.
func (c *Conn) Unregister(id int32) syscall.Errno { return c.channel.unregister(id) }

// MayBlock announces that the request with a number is about to wait. Another thread then reads
// the next requests.
func (c *Conn) MayBlock(unique uint64) { c.channel.mayBlock(unique) }

// ForgetName makes the kernel forget a name in the directory of a node, soon. It never waits.
func (c *Conn) ForgetName(parent uint64, name string) {
	c.notices.add(notice{node: parent, name: name})
}

// ForgetAttributes makes the kernel forget the attributes of a node, soon. It never waits.
func (c *Conn) ForgetAttributes(node uint64) { c.notices.add(notice{node: node, attributes: true}) }

// Flush waits until the kernel has all notices so far, or the sender has ended. It must not be
// called for a request that holds a directory's lock in the kernel.
func (c *Conn) Flush(ctx context.Context) { c.notices.flush(ctx) }

// Resends reports whether another process can continue the mount: the kernel must be able to
// send requests again.
func (c *Conn) Resends() bool { return c.kept.resends() }

// FirstBacking returns the lowest number at which an earlier owner's file may still be
// registered, or 0 if there is none.
func (c *Conn) FirstBacking() int32 { return c.kept.firstBacking }

// Keep returns the Session.Init that the mount process keeps for the next owner. firstBacking
// is the FirstBacking of that owner; with 0 it stays the same.
func (c *Conn) Keep(firstBacking int32) []byte {
	k := c.kept
	if firstBacking != 0 {
		k.firstBacking = firstBacking
	}
	return k.encode()
}
