package handoff

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func offer(t *testing.T) (*Offer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "mount-7.sock")
	o, err := NewOffer(path, "v1", Offered{Dir: "/m", FSName: "kvfs", MaxWrite: 1 << 20, Epoch: 3, Patience: time.Minute}, nil)
	must(t, err)
	t.Cleanup(func() {
		check(t, o.Close())
	})
	return o, path
}

func dialOffer(t *testing.T, path string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), path)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// TestTakeOver shows both ends of a takeover: what is offered, that the descriptors and the rest
// arrive, and that the old one hears how it went.
func TestTakeOver(t *testing.T) {
	for _, fails := range []bool{false, true} {
		o, path := offer(t)
		c := dialOffer(t, path)
		if g := c.Greeting(); g.Mount == nil || g.Mount.Dir != "/m" || g.Mount.Epoch != 3 || g.Release != "v1" || c.PID() != os.Getpid() {
			t.Fatalf("greeting %+v", g)
		}
		outcome := make(chan error, 1)
		go func() { // ends with the takeover
			h := <-o.Heir()
			defer h.Close()
			null, err := os.Open("/dev/null")
			if err == nil {
				defer null.Close()
				err = h.HandOver(&Handed{Init: []byte("init"), Epoch: 4, Stale: []uint32{5}, Dev: null})
			}
			if err == nil {
				err = h.Outcome(t.Context(), time.Minute)
			}
			outcome <- err
			if fails {
				h.TakenBack()
			}
		}()
		p, m, err := c.TakeOver(t.Context(), "v2")
		must(t, err)
		if string(m.Init) != "init" || m.Epoch != 4 || len(m.Stale) != 1 || m.Dev == nil || m.Spin != nil {
			t.Errorf("handed over: %+v", m)
		}
		m.Dev.Close()
		if other, err := Dial(t.Context(), path); err != nil {
			t.Errorf("the offer is there until it is closed: %v", err)
		} else {
			other.Close()
		}
		if fails {
			check(t, errors.Join(p.Failed(t.Context(), errors.New("no room")), p.Close()))
			if err := <-outcome; err == nil || !strings.Contains(err.Error(), "no room") {
				t.Errorf("outcome %v", err)
			}
			continue
		}
		check(t, p.Serving())
		if err := <-outcome; err != nil {
			t.Errorf("outcome %v", err)
		}
	}
}

// TestTakeOverOfferClosed shows that the end of an offer does not end the line of the heir that was
// taken from it, and leaves the socket alone that another process has put in the place of its own.
func TestTakeOverOfferClosed(t *testing.T) {
	for i := range 50 {
		o, path := offer(t)
		c := dialOffer(t, path)
		ended := make(chan error, 1)
		go func() { // ends with the takeover
			h := <-o.Heir()
			var err error
			if i%2 == 1 { // else at once
				err = errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
			}
			check(t, errors.Join(err, o.Close()))
			null, err := os.Open("/dev/null")
			if err == nil {
				err = errors.Join(h.HandOver(&Handed{Init: []byte("init"), Epoch: 4, Dev: null}), null.Close())
			}
			if err == nil {
				err = h.Outcome(t.Context(), time.Minute)
			}
			h.Close()
			ended <- err
		}()
		p, m, err := c.TakeOver(t.Context(), "v2")
		must(t, err)
		must(t, errors.Join(m.Dev.Close(), p.Serving(), <-ended))
		if _, err := os.Stat(path); (err == nil) != (i%2 == 1) {
			t.Fatalf("the socket of another process: %v, turn %d", err, i)
		}
	}
}

// TestOfferCloseSparesHeir is the same for the moment at which the heir is there, and the offer has
// not come to put its connection aside.
func TestOfferCloseSparesHeir(t *testing.T) {
	o, _ := offer(t)
	name := filepath.Join(t.TempDir(), "line.sock")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: name, Net: network})
	must(t, err)
	defer l.Close()
	theirs, err := net.DialUnix(network, nil, &net.UnixAddr{Name: name, Net: network})
	must(t, err)
	ours, err := l.AcceptUnix()
	must(t, err)
	pidfd, err := process(ours)
	must(t, err)
	if !o.add(ours) {
		t.Fatal("the offer takes no connection")
	}
	must(t, o.accept(&Heir{w: wire{ours}, pidfd: pidfd}))
	h := <-o.Heir()
	defer h.Close()
	must(t, o.Close())
	pidfd, err = process(theirs)
	must(t, err)
	check(t, errors.Join((&Predecessor{w: wire{theirs}, pidfd: pidfd}).Serving(), h.Outcome(t.Context(), time.Minute)))
}

// TestOfferAfterFailedAccept shows that an offer outlives a connection that could not be accepted for
// want of descriptors.
func TestOfferAfterFailedAccept(t *testing.T) {
	_, path := offer(t)
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(s)
	few := old
	few.Cur = uint64(s) // none is left above it
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	var held []int
	for {
		fd, err := unix.Dup(s)
		if err != nil {
			break
		}
		held = append(held, fd)
	}
	err = unix.Connect(s, &unix.SockaddrUnix{Name: path})
	answered := make([]byte, 1)
	if err == nil {
		err = unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300_000})
	}
	if err == nil {
		if n, _ := unix.Read(s, answered); n > 0 {
			t.Error("accepted without a descriptor")
		}
	}
	for _, fd := range held {
		unix.Close(fd)
	}
	must(t, errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)))
	dialOffer(t, path)
}

// TestTakeOverRefused shows which processes do not get a mount: one with another request, the
// second of two, and one that comes when the daemon stops.
func TestTakeOverRefused(t *testing.T) {
	o, path := offer(t)
	if text, err := dialOffer(t, path).Status(t.Context()); err != nil || !strings.Contains(string(text), "is no request to this socket") {
		t.Errorf("status: %s, %v", text, err)
	}
	first, second := dialOffer(t, path), dialOffer(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { // ends with ctx
		_, _, err := first.TakeOver(ctx, "")
		got <- err
	}()
	h := <-o.Heir()
	if _, _, err := second.TakeOver(t.Context(), ""); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "already") {
		t.Errorf("the second: %v", err)
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if err := h.Outcome(t.Context(), time.Minute); err == nil {
		t.Error("one who has gone serves")
	}
	h.Close()
	check(t, o.Close())
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoOwner) {
		t.Errorf("after the end: %v", err)
	}
}

// TestNotTakeOver: the socket of an owner of many mounts offers none.
func TestNotTakeOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "store.sock")
	l, err := Listen(Options{Path: path})
	must(t, err)
	var served sync.WaitGroup
	served.Go(func() { l.Serve(nil) }) // ends with l
	if _, _, err := dialOffer(t, path).TakeOver(t.Context(), ""); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
	check(t, l.Close())
	served.Wait()
}
