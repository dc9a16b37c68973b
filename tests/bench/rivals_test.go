package main

import (
	"bytes"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRivalWires: values travel whole in both protocols, also if an answer comes in pieces, and an absent value is an error.
func TestRivalWires(t *testing.T) {
	value := bytes.Repeat([]byte("0123456789abcdef"), 300)
	answers := map[string]struct{ have, absent string }{
		"Redis":     {"$4800\r\n" + string(value) + "\r\n", "$-1\r\n"},
		"memcached": {"VALUE k 0 4800\r\n" + string(value) + "\r\nEND\r\n", "END\r\n"},
	}
	wants := map[string]string{
		"Redis":     "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4800\r\n" + string(value) + "\r\n",
		"memcached": "set k 0 0 4800\r\n" + string(value) + "\r\n",
	}
	for _, w := range wires() {
		t.Run(w.name, func(t *testing.T) {
			script := []struct{ request, answer string }{
				{wants[w.name], w.stored},
				{string(w.get("k")), answers[w.name].have},
				{string(w.get("k")), answers[w.name].absent},
				{string(w.get("k")), "SERVER_ERROR out of memory\r\n"},
			}
			path := filepath.Join(t.TempDir(), "socket")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- serveScript(l, script) }()
			c := w.connect(t.Context(), &unix.SockaddrUnix{Name: path}, len(value))
			c.write("k", value)
			if got := c.read("k", len(value)); !bytes.Equal(got, value) {
				t.Errorf("read: %d bytes", len(got))
			}
			read := func() error { return try(func() { c.read("k", len(value)) }) }
			for _, what := range []string{"absent", "refused"} {
				if err := read(); !errors.Is(err, errNoValue) {
					t.Errorf("%s: got %v, want %v", what, err, errNoValue)
				}
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
			if read() == nil {
				t.Error("read from a store that is gone: no error")
			}
		})
	}
}

// serveScript expects requests and answers them in pieces of 7 bytes, then closes the connection.
func serveScript(l net.Listener, script []struct{ request, answer string }) error {
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, s := range script {
		got := make([]byte, len(s.request))
		for have := 0; have < len(got); {
			n, err := conn.Read(got[have:])
			if err != nil {
				return err
			}
			have += n
		}
		if string(got) != s.request {
			return errors.New("request: got " + string(got))
		}
		for rest := s.answer; rest != ""; {
			n := min(7, len(rest))
			if _, err := conn.Write([]byte(rest[:n])); err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
	return nil
}
