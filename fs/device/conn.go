package device

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Conn is what one owner of a mount has of it. Its methods may be called in parallel, but for those that
// begin and end it, which have an order: see the package comment.
type Conn struct {
	channel channel
	notices *notifier
	served  chan struct{}  // closed when the channel has ended
	telling sync.WaitGroup // the goroutine of notices

	epoch  Epoch
	kept   kept   // of a session
	dir    string // the mount point
	device uint64 // of the mount in our mount table; 0: unknown
}

// Answer begins, or goes on with, the protocol of a session, with descriptors of its own. Nothing is left behind if
// it fails.
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
	c.channel, c.kept = l, k
	return c, nil
}

// MountHelper mounts at dir by fusermount3. Reads are spliced. No other process can go on with such a mount.
func MountHelper(dir string, files Files, o Options) (*Conn, error) {
	srv, err := fuse.NewServer(files, dir, o.protocol(true))
	if err != nil {
		return nil, err
	}
	c := newConn(dir)
	c.channel = helperChannel{srv}
	c.device, _ = deviceAt(dir) // without, Unmount trusts the path
	return c, nil
}

func newConn(dir string) *Conn {
	return &Conn{notices: newNotifier(), served: make(chan struct{}), dir: dir}
}

// Start begins to answer.
func (c *Conn) Start() {
	go func() { c.channel.serve(); close(c.served) }() // ends with the mount, or Leave
	c.telling.Go(func() { c.notices.run(c.channel) })  // ends when Wait, Leave or Close closes it
	<-c.notices.begun                                  // its thread is not to be one that has done something else since
}

// Discard ends a Conn that was not started.
func (c *Conn) Discard() { c.channel.discard() }

// Served is closed when the mount is gone, or Leave has ended the answers.
func (c *Conn) Served() <-chan struct{} { return c.served }

// Leave ends the answers of a session. Requests that wait for something are left to the next owner, others are
// answered. cancel has those that wait return.
func (c *Conn) Leave(cancel func()) {
	// A notice may wait in the kernel for a client who waits for us, so it comes first.
	c.notices.close()
	c.telling.Wait()
	c.channel.leave(cancel)
	<-c.served
}

// Wait returns when the mount is gone, all requests are answered, and no notice is sent any more.
func (c *Conn) Wait() {
	<-c.served
	c.notices.close()
	c.telling.Wait()
}

// Close closes the descriptors: what the kernel serves by itself goes on, all else fails, unless
// another process has the files, too. It does not wait for requests that are being answered.
func (c *Conn) Close() {
	c.notices.close()
	c.channel.close()
}

// Unmount takes the mount away, lazily if it is busy. Another that is at the directory in place of this one, or
// on top of it, stays.
func (c *Conn) Unmount() error { return detach(c.dir, c.device) }

// Epoch returns the owner's number as it is part of nodes; 0 of a mount that no other can answer.
func (c *Conn) Epoch() Epoch { return c.epoch }

// Passthrough reports whether the kernel offers to read and write files by itself.
func (c *Conn) Passthrough() bool { return c.channel.kernelFlags()&fuse.CAP_PASSTHROUGH != 0 }

// Register has the kernel know a file by a number, by which opens may be answered.
func (c *Conn) Register(fd int) (id int32, errno syscall.Errno) { return c.channel.register(fd) }

// Unregister takes that back. What is open by the number stays open.
func (c *Conn) Unregister(id int32) syscall.Errno { return c.channel.unregister(id) }

// MayBlock tells that the request of that number is about to wait: others are read meanwhile.
func (c *Conn) MayBlock(unique uint64) { c.channel.mayBlock(unique) }

// ForgetName has the kernel forget a name in the directory of a node, soon. It never waits.
func (c *Conn) ForgetName(parent uint64, name string) {
	c.notices.add(notice{node: parent, name: name})
}

// ForgetAttributes has the kernel forget the attributes of a node, soon. It never waits.
func (c *Conn) ForgetAttributes(node uint64) { c.notices.add(notice{node: node, attributes: true}) }

// Flush waits until the kernel has got the notices so far, or nobody sends any more. It must not be called
// on behalf of a request that holds a directory's lock in the kernel.
func (c *Conn) Flush(ctx context.Context) { c.notices.flush(ctx) }

// Resends reports whether another process can go on with the mount: whether the kernel can send requests again.
func (c *Conn) Resends() bool { return c.kept.resends() }

// FirstBacking returns from which number on earlier owners registered files that may still be registered; 0: from none.
func (c *Conn) FirstBacking() int32 { return c.kept.firstBacking }

// Keep returns what the mount process has to keep for the next owner: Session.Init. firstBacking is what
// FirstBacking is to tell that one; 0: what it tells now.
func (c *Conn) Keep(firstBacking int32) []byte {
	k := c.kept
	if firstBacking != 0 {
		k.firstBacking = firstBacking
	}
	return k.encode()
}
