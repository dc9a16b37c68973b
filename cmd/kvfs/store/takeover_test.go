package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func offer(t *testing.T) (*Offer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "mount-7.sock")
	o, err := NewOffer(path, "v1", Offered{Dir: "/m", FSName: "kvfs", MaxWrite: 1 << 20, Epoch: 3, Patience: time.Minute}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o, path
}

func dialOffer(t *testing.T, path string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
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
				err = h.Outcome(t.Context())
			}
			outcome <- err
			if fails {
				h.TakenBack()
			}
		}()
		p, m, err := c.TakeOver(t.Context(), "v2")
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Init) != "init" || m.Epoch != 4 || len(m.Stale) != 1 || m.Dev == nil || m.Spin != nil {
			t.Errorf("handed over: %+v", m)
		}
		m.Dev.Close()
		if _, err := Dial(t.Context(), path); err != nil {
			t.Errorf("the offer is there until it is closed: %v", err)
		}
		if fails {
			if err := p.Failed(t.Context(), errors.New("no room")); err != nil {
				t.Error(err)
			}
			if err := <-outcome; err == nil || !strings.Contains(err.Error(), "no room") {
				t.Errorf("outcome %v", err)
			}
			continue
		}
		if err := p.Serving(); err != nil {
			t.Error(err)
		}
		if err := <-outcome; err != nil {
			t.Errorf("outcome %v", err)
		}
	}
}

// TestTakeOverRefused shows who does not get a mount: one who asks for something else, the second
// of two, and one who comes when the daemon stops.
func TestTakeOverRefused(t *testing.T) {
	o, path := offer(t)
	if text, err := dialOffer(t, path).Status(t.Context()); err != nil || !strings.Contains(string(text), "nothing to ask for here") {
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
	if err := h.Outcome(t.Context()); err == nil {
		t.Error("one who has gone serves")
	}
	h.Close()
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoOwner) {
		t.Errorf("after the end: %v", err)
	}
}

// TestNotTakeOver: the socket of an owner of many mounts offers none.
func TestNotTakeOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "store.sock")
	l, err := Listen(Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Serve(nil) }() // ends with l
	if _, _, err := dialOffer(t, path).TakeOver(t.Context(), ""); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(l.Close(), <-ended); err != nil {
		t.Error(err)
	}
}
