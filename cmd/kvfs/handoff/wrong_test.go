package handoff

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

// raw connects and reads the greeting.
func raw(t *testing.T, path string) wire {
	t.Helper()
	c, err := net.Dial(network, path)
	must(t, err)
	w := wire{c.(*net.UnixConn)}
	var g Greeting
	if _, err := w.receive(&g, time.Now().Add(limit)); err != nil || g.Version != version {
		t.Fatalf("greeting %+v, %v", g, err)
	}
	return w
}

// nulls opens n descriptors.
func nulls(t *testing.T, n int) (fds []int) {
	t.Helper()
	for range n {
		fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		fds = append(fds, fd)
	}
	return fds
}

// TestMalformed sends what no mount sends. The owner says what is wrong, ends the connection,
// keeps no descriptor, and serves the next one.
func TestMalformed(t *testing.T) {
	const request = `"attach":{"dir":"/mnt/a","epoch":1}`
	for _, c := range []struct {
		name string
		sent []byte
		fds  int
		want string // in the owner's answer; "" for none
	}{
		{"long message", make([]byte, maxMessage+1), 0, "malformed message: a message of more than 65536 bytes"},
		{"long message with descriptors", make([]byte, 2*maxMessage), 2, "malformed message: a message of more than"},
		{"no JSON", []byte("\x00\xff"), 1, "malformed message: invalid character"},
		{"two values", []byte(`{"version":1} {}`), 1, "malformed message: invalid character"},
		{"deep", []byte(strings.Repeat("[", 20000)), 0, "malformed message: "},
		{"wrong type", []byte(`{"version":"1"}`), 1, "malformed message: json"},
		{"no version", []byte(`{"do":"attach"}`), 1, "different version of the protocol: 1 here, 0 there"},
		{"later version", []byte(`{"version":2,"do":"attach","new":[1]}`), 1, "different version of the protocol: 1 here, 2 there"},
		{"nothing to do", []byte(`{"version":1}`), 1, `"" is no request`},
		{"unknown", []byte(`{"version":1,"do":"` + strings.Repeat("x", 100) + `"}`), 1, `xxx" is no request`},
		{"detach first", []byte(`{"version":1,"do":"detach"}`), 0, `"detach" is no request`},
		{"status with a descriptor", []byte(`{"version":1,"do":"status"}`), 1, `"status" is no request, with 1 descriptors`},
		{"no request", []byte(`{"version":1,"do":"attach","descriptors":["dev"]}`), 1, "nothing to attach"},
		{"no descriptor", []byte(`{"version":1,"do":"attach","descriptors":["dev"],` + request + `}`), 0, "0 descriptors, 1 names"},
		{"one too many", []byte(`{"version":1,"do":"attach","descriptors":["dev"],` + request + `}`), 2, "2 descriptors, 1 names"},
		{"twice the same", []byte(`{"version":1,"do":"attach","descriptors":["dev","dev"],` + request + `}`), 2, `two descriptors "dev"`},
		{"another thing", []byte(`{"version":1,"do":"attach","descriptors":["dev","tape"],` + request + `}`), 2, `a descriptor "tape"`},
		{"not the main one", []byte(`{"version":1,"do":"attach","descriptors":["spin"],` + request + `}`), 1, `no descriptor "dev"`},
		{"far too many", []byte(`{"version":1,"do":"attach","descriptors":["dev"],` + request + `}`), 40, "more than 8 descriptors"},
		{"nothing", nil, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &owner{}
			_, path := serve(t, o, Options{})
			fds := nulls(t, c.fds)
			steady(t, func() {
				w := raw(t, path)
				defer w.c.Close()
				if len(c.sent) > 0 {
					if _, _, err := w.c.WriteMsgUnix(c.sent, unix.UnixRights(fds...), nil); err != nil {
						t.Fatal(err)
					}
				}
				must(t, w.c.CloseWrite())
				var a answer
				_, err := w.receive(&a, time.Now().Add(limit))
				if c.want == "" && err == nil || !strings.Contains(a.Error, c.want) {
					t.Errorf("answer %q, %v, want %q", a.Error, err, c.want)
				}
			})
			closeAll(fds)
			if n := o.count(); n > 0 {
				t.Error("it was attached")
			}
			attach(t, path, "/mnt/next").Close()
		})
	}
}

// TestLifeLineEnds shows that a mount is let go of when its process says on its line what no mount says, and that no
// descriptor of it is kept.
func TestLifeLineEnds(t *testing.T) {
	for _, c := range []struct {
		sent string
		fds  int
	}{{"\xff\xff\xff\xff", 0}, {`{"version":1,"do":"attach"}`, 0}, {`{"do":"detach"}`, 3}} {
		o := &owner{}
		_, path := serve(t, o, Options{})
		fds := nulls(t, c.fds)
		steady(t, func() {
			line := attach(t, path, "/mnt/a")
			if _, _, err := line.w.c.WriteMsgUnix([]byte(c.sent), unix.UnixRights(fds...), nil); err != nil {
				t.Fatal(err)
			}
			wait(t, "let go", o.mount(0).ended)
			wait(t, "the line has ended", line.Ended())
			line.Close()
		})
		closeAll(fds)
	}
}

// TestHangingPeers shows that the owner ends the connection of a process that asks nothing, or does not read the answer, when
// its time is up.
func TestHangingPeers(t *testing.T) {
	o := &owner{status: []byte(strings.Repeat("s", 8<<20))} // more than a socket holds
	l, path := serve(t, o, Options{patience: 300 * time.Millisecond})
	for _, sent := range []string{"", `{"version":1,"do":"status"}`} {
		w := raw(t, path)
		defer w.c.Close()
		if sent != "" {
			_, err := w.c.Write([]byte(sent))
			must(t, err)
		}
		poll(t, "the connection is ended after "+sent, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.mu.conns.all) == 0
		})
	}
}

// TestGoesWhileAttaching shows that a mount that goes before it was answered is let go of, too.
func TestGoesWhileAttaching(t *testing.T) {
	o := &owner{block: make(chan struct{}), entered: make(chan struct{}, 1)}
	_, path := serve(t, o, Options{})
	steady(t, func() {
		c := dial(t, path)
		r := request(t, "/mnt/a")
		defer r.Close()
		gone := make(chan struct{})
		go func() { // ends with the connection
			defer close(gone)
			if _, err := c.Attach(t.Context(), r); err == nil {
				t.Error("attached to an owner that did not answer")
			}
		}()
		wait(t, "the request arrives", o.entered)
		c.w.c.CloseRead()
		c.w.c.CloseWrite()
		wait(t, "the mount has gone", gone)
		close(o.block)
		poll(t, "let go of the mount", func() bool { return o.detached.Load() == 1 })
	})
}

// TestStopsWhileAttaching shows that an owner that stops does not wait for an attach, and that
// the mount learns of it.
func TestStopsWhileAttaching(t *testing.T) {
	o := &owner{block: make(chan struct{}), entered: make(chan struct{}, 1)}
	l, path := serve(t, o, Options{})
	r := request(t, "/mnt/a")
	defer r.Close()
	c := dial(t, path)
	got := make(chan error, 1)
	go func() { // ends with the owner
		_, err := c.Attach(t.Context(), r)
		got <- err
	}()
	wait(t, "the request arrives", o.entered)
	check(t, l.Close())
	if err := <-got; err == nil {
		t.Error("attached to an owner that has stopped")
	}
}

// TestTooManyConnections shows that those beyond the limit are sent away, and that the place
// is free again later.
func TestTooManyConnections(t *testing.T) {
	l, path := serve(t, &owner{}, Options{})
	l.mu.Lock()
	for range maxConnections {
		l.mu.conns.all[new(net.UnixConn)] = struct{}{}
	}
	l.mu.Unlock()
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNoOwner) {
		t.Errorf("got %v", err)
	}
	l.mu.Lock()
	clear(l.mu.conns.all)
	l.mu.Unlock()
	attach(t, path, "/mnt/a").Close()
}

// silent connects n times and says nothing, until the test ends.
func silent(t *testing.T, path string, n int) {
	t.Helper()
	for range n {
		var c net.Conn
		poll(t, "connected", func() bool {
			var err error
			c, err = net.Dial(network, path)
			if err != nil && !errors.Is(err, unix.EAGAIN) { // that is a full queue
				t.Fatal(err)
			}
			return err == nil
		})
		t.Cleanup(func() { c.Close() })
	}
}

// TestSilentConnections shows that connections which ask nothing keep no mount out, however many there are, and that none
// takes the place of a mount.
func TestSilentConnections(t *testing.T) {
	o := &owner{status: []byte("{}")}
	l, path := serve(t, o, Options{})
	before := attach(t, path, "/mnt/before")
	for range 3 {
		silent(t, path, 3*maxConnections/2)
		attach(t, path, "/mnt/a").Close()
		if _, err := dial(t, path).Status(t.Context()); err != nil {
			t.Error(err)
		}
	}
	l.mu.Lock()
	if n := len(l.mu.conns.all); n > maxConnections {
		t.Errorf("%d connections are open", n)
	}
	l.mu.Unlock()
	check(t, before.Detach(t.Context()))
	poll(t, "all four mounts are detached", func() bool { return o.detached.Load() == 4 }) // three have only closed
}

// TestSilentHeirs shows that connections which ask nothing keep no takeover out.
func TestSilentHeirs(t *testing.T) {
	o, path := offer(t)
	silent(t, path, 10*maxOffers)
	c := dialOffer(t, path)
	defer c.Close()
	got := make(chan error, 1)
	go func() { // ends with the connection
		_, _, err := c.TakeOver(t.Context(), "test")
		got <- err
	}()
	select {
	case h := <-o.Heir():
		h.Refuse(errors.New("no"))
	case err := <-got:
		t.Fatal(err)
	case <-time.After(limit):
		t.Fatal("no heir")
	}
	if err := <-got; !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

// TestWrongOwner shows what a mount makes of an owner that does not speak the protocol.
func TestWrongOwner(t *testing.T) {
	for _, c := range []struct {
		name, greeting, answer string
		want                   error
	}{
		{"later version", `{"version":2}`, "", ErrVersion},
		{"refuses", `{"version":1,"error":"not you"}`, "", ErrRefused},
		{"rubbish", `[`, "", ErrMalformed},
		{"ends", "", "", ErrNoOwner},
		{"answers rubbish", `{"version":1}`, `[]`, ErrMalformed},
		{"answers nothing", `{"version":1}`, `{}`, ErrMalformed},
		{"answers no", `{"version":1}`, `{"error":"no"}`, ErrRefused},
		{"long init", `{"version":1}`, `{"attached":{"init":"` + strings.Repeat("AAAA", maxInit) + `"}}`, ErrMalformed},
		{"ends instead of an answer", `{"version":1}`, "", ErrEnded},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
			must(t, err)
			defer l.Close()
			go func() { // ends with the listener
				conn, err := l.AcceptUnix()
				if err != nil {
					return
				}
				defer conn.Close()
				if c.greeting == "" {
					return
				}
				w := wire{conn}
				w.write([]byte(c.greeting), time.Now().Add(limit), nil)
				if fds, err := w.receive(new(question), time.Now().Add(limit)); err == nil && c.answer != "" {
					closeAll(fds)
					w.write([]byte(c.answer), time.Now().Add(limit), nil)
				} else {
					closeAll(fds)
				}
			}()
			steady(t, func() {
				conn, err := Dial(t.Context(), path)
				if err == nil {
					r := request(t, "/mnt/a")
					defer r.Close()
					_, err = conn.Attach(t.Context(), r)
				}
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		})
	}
}

// TestCheckProc shows that only a procfs passes for one.
func TestCheckProc(t *testing.T) {
	r := request(t, "/mnt/a")
	defer r.Close()
	if err := CheckProc(r.Dev); !errors.Is(err, ErrMalformed) {
		t.Errorf("got %v", err)
	}
}

// TestMalformedLog shows that the log mentions malformed requests, but not each one.
func TestMalformedLog(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	_, path := serve(t, &owner{}, Options{Logger: zap.New(core)})
	const many = 200
	for i := range many {
		w := raw(t, path)
		sent := []byte("\x00")
		if i%2 == 0 {
			sent = []byte(`{"version":1,"do":"attach"}`)
		}
		if _, err := w.c.Write(sent); err != nil {
			t.Fatal(err)
		}
		var a answer
		if _, err := w.receive(&a, time.Now().Add(limit)); err != nil || a.Error == "" {
			t.Fatalf("answer %+v, %v", a, err)
		}
		w.c.Close()
	}
	if n := logs.Len(); n == 0 || n > many/4 {
		t.Errorf("%d lines in the log of %d malformed frames", n, many)
	}
}
