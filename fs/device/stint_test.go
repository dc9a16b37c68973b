package device

import (
	"errors"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// keeps is the Files of a mount whose device keeps the thread that opens.
type keeps struct {
	*oneFile
	conn    *Conn     // if not nil: the OPEN waits for something else before
	kept    chan bool // gets the answer of Reply.Keep
	release chan struct{}
}

// OpenLater implements Files.
func (f *keeps) OpenLater(in *fuse.OpenIn, _ *fuse.OpenOut, reply Reply) (fuse.Status, bool) {
	if f.conn != nil {
		f.conn.MayBlock(in.Unique)
	}
	ok, end := reply.Keep()
	defer end()
	f.kept <- ok
	<-f.release
	reply.Send(fuse.ENOENT, &fuse.OpenOut{})
	return fuse.OK, true
}

// TestStint: the OPEN of a client that is alone may keep the leader. If it does so for long, another thread answers what
// comes meanwhile, and the mount can end.
func TestStint(t *testing.T) {
	files := &keeps{kept: make(chan bool, 1), release: make(chan struct{})}
	x, c, opened := openAlone(t, files, false)
	if !<-files.kept {
		t.Error("the only client is not alone")
	}
	var other unix.Stat_t
	if err := unix.Stat(filepath.Join(x.Dir, "x"), &other); err != nil { // waits for ever if the leader is kept
		t.Error(err)
	}
	c.Leave(func() {})
	c.Close()
	c.Wait() // likewise
	close(files.release)
	must(t, errors.Join(x.Unmount(), x.Close()))
	if err := <-opened; err == nil {
		t.Error("an OPEN that nobody has answered did not fail")
	}
}

// TestStintLed: an OPEN that has waited for something else before does not lead any more, and has no leader to keep. Else its
// thread would be taken for one that nobody waits for, and the mount would not end.
func TestStintLed(t *testing.T) {
	files := &keeps{kept: make(chan bool, 1), release: make(chan struct{})}
	x, c, opened := openAlone(t, files, true)
	if <-files.kept {
		t.Error("it may keep the thread")
	}
	close(files.release)
	if err := <-opened; !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	c.Leave(func() {})
	c.Close()
	c.Wait()
	must(t, errors.Join(x.Unmount(), x.Close()))
}

// openAlone has a client that is alone open the file of a new mount. waits: the OPEN waits for something else at first.
// opened gets the error of the open.
func openAlone(t *testing.T, files *keeps, waits bool) (x *Session, c *Conn, opened chan error) {
	t.Helper()
	x = openSession(t)
	x.Epoch = 1
	files.oneFile = newOneFile(x.Epoch)
	c, err := Answer(x, files, Options{Logger: zap.NewNop()})
	must(t, err)
	if waits {
		files.conn = c
	}
	c.Start()
	path, opened := filepath.Join(x.Dir, "x"), make(chan error, 1)
	go func() { // ends with the OPEN
		runtime.LockOSThread() // a client that is alone
		var st unix.Stat_t
		for range 2 * aloneAfter {
			if err := unix.Stat(path, &st); err != nil {
				t.Error(err)
			}
		}
		_, err := unix.Open(path, unix.O_RDONLY, 0)
		opened <- err
	}()
	return x, c, opened
}
