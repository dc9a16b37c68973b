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
	kept    chan bool // gets the answer of Reply.Keep
	release chan struct{}
}

// OpenLater implements Files.
func (f keeps) OpenLater(_ *fuse.OpenIn, _ *fuse.OpenOut, reply Reply) (fuse.Status, bool) {
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
	x := openSession(t)
	x.Epoch = 1
	files := keeps{newOneFile(x.Epoch), make(chan bool, 1), make(chan struct{})}
	c, err := Answer(x, files, Options{Logger: zap.NewNop()})
	must(t, err)
	c.Start()
	path, opened := filepath.Join(x.Dir, "x"), make(chan error)
	var st unix.Stat_t
	go func() { // ends with the OPEN
		runtime.LockOSThread() // a client that is alone
		for range 2 * aloneAfter {
			if err := unix.Stat(path, &st); err != nil {
				t.Error(err)
			}
		}
		_, err := unix.Open(path, unix.O_RDONLY, 0)
		opened <- err
	}()
	if !<-files.kept {
		t.Error("the only client is not alone")
	}
	var other unix.Stat_t
	if err := unix.Stat(path, &other); err != nil { // waits for ever if the leader is kept
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
