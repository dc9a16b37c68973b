package show

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestProgressBar shows the line and how it is written over and taken away, without
// escape codes, and that nothing is written where it is off.
func TestProgressBar(t *testing.T) {
	for _, tc := range []struct {
		done, total, bytes int64
		took               time.Duration
		want               string
	}{
		{0, 1000, 0, time.Second, "0/1000 blocks  0.0 %  0 B"},
		{128, 1000, 128 << 20, 2 * time.Second, "128/1000 blocks  12.8 %  128.0 MiB  64.0 MiB/s  14s left"},
		{1000, 1000, 1 << 30, 4 * time.Second, "1000/1000 blocks  100.0 %  1.0 GiB  256.0 MiB/s  0s left"},
		{0, 0, 0, 0, "0/0 blocks  100.0 %  0 B"},
	} {
		if got := line(tc.done, tc.total, tc.bytes, tc.took); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
	var w bytes.Buffer
	bar := NewBar(&w, true)
	bar.Show(0, 100000, 0)
	bar.Show(0, 1, 0)
	bar.Clear()
	bar.Clear()
	if got, want := w.String(), "\r0/100000 blocks  0.0 %  0 B\r0/1 blocks  0.0 %  0 B     \r"+strings.Repeat(" ", 22)+"\r"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	w.Reset()
	for _, done := range []int64{0, 1, 999, 1000, 200000, 300000} {
		bar.Share("x", done, 200000)
	}
	bar.Share("empty", 0, 0)
	bar.Clear()
	if got, want := w.String(), "\rx  0 %\rx  100 %\r"+strings.Repeat(" ", 8)+"\r"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	w.Reset()
	bar = NewBar(&w, false)
	bar.Show(1, 2, 3)
	bar.Share("x", 1, 2)
	bar.Clear()
	if w.Len() > 0 || IsTerminal(&w) {
		t.Errorf("got %q", w.String())
	}
}

// TestIsTerminal shows that a pseudo terminal is one, and a pipe is not.
func TestIsTerminal(t *testing.T) {
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals: ", err)
	}
	defer tty.Close()
	if !IsTerminal(tty) {
		t.Error("a terminal is none")
	}
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	pipe := os.NewFile(uintptr(fds[1]), "pipe")
	defer pipe.Close()
	if IsTerminal(pipe) {
		t.Error("a pipe is a terminal")
	}
}
