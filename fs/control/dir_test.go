package control

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpen shows which user may open which file, and how: texts are read-only, and a request
// has an answer.
func TestOpen(t *testing.T) {
	do := Same(countingDialogue(always))
	text := &File{Text: func() []byte { return nil }}
	file, stream := &File{Open: do}, &File{Open: do, Stream: true}
	me, other := uint32(os.Geteuid()), uint32(os.Geteuid())+1
	shared := &File{Open: do, Users: []uint32{other + 1}, Groups: []uint32{7}}
	d := New(t.Context(), nil)
	for name, c := range map[string]struct {
		file     *File
		flags    uint32
		uid, gid uint32
		groups   []uint32
		mode     uint32
		want     error
	}{
		"text for writing":         {text, unix.O_WRONLY, 0, 0, nil, 0o444, unix.EACCES},
		"text for both":            {text, unix.O_RDWR, 0, 0, nil, 0o444, unix.EACCES},
		"text of another":          {text, unix.O_RDONLY, other, 0, nil, 0o444, nil},
		"requests without answer":  {file, unix.O_WRONLY, me, 0, nil, 0o600, unix.EINVAL},
		"answers without request":  {file, unix.O_RDONLY, me, 0, nil, 0o600, unix.EINVAL},
		"requests of another user": {file, unix.O_RDWR, other, 7, nil, 0o600, unix.EACCES},
		"requests of the owner":    {file, unix.O_RDWR, me, 0, nil, 0o600, nil},
		"requests of root":         {file, unix.O_RDWR | unix.O_TRUNC, 0, 0, nil, 0o600, nil},
		"stream":                   {stream, unix.O_RDONLY, me, 0, nil, 0o600, nil},
		"stream with a request":    {stream, unix.O_RDWR, me, 0, nil, 0o600, nil},
		"stream for writing":       {stream, unix.O_WRONLY, me, 0, nil, 0o600, unix.EINVAL},
		"nobody":                   {shared, unix.O_RDWR, other, 1, []uint32{2, 3}, 0o666, unix.EACCES},
		"a user":                   {shared, unix.O_RDWR, other + 1, 1, nil, 0o666, nil},
		"of the group":             {shared, unix.O_RDWR, other, 7, nil, 0o666, nil},
		"of the group besides":     {shared, unix.O_RDWR, other, 1, []uint32{2, 7}, 0o666, nil},
	} {
		h, err := d.Open(c.file, c.flags, Opener{UID: c.uid, GID: c.gid, Groups: func() []uint32 { return c.groups }})
		if err != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		if err == nil {
			h.Close()
		}
		if got := c.file.Mode(); got != unix.S_IFREG|c.mode {
			t.Errorf("%s: mode %#o, want %#o", name, got, c.mode)
		}
	}
	d.Wait()
}

// TestText shows that a reader gets the text of the moment of its open,
// in pieces of any size, and nothing behind the end.
func TestText(t *testing.T) {
	text := "first"
	h, err := New(t.Context(), nil).Open(&File{Text: func() []byte { return []byte(text) }}, unix.O_RDONLY, Opener{})
	if err != nil || h.Dialogue() {
		t.Fatal(err)
	}
	text = "second"
	for _, c := range []struct {
		off  int64
		n    int
		want string
	}{{0, 100, "first"}, {0, 2, "fi"}, {2, 2, "rs"}, {4, 9, "t"}, {5, 9, ""}, {1 << 40, 9, ""}} {
		buf := make([]byte, c.n)
		n, err := h.Read(nil, buf, c.off)
		if got := string(buf[:n]); err != nil || got != c.want {
			t.Errorf("%d bytes at %d: got %q, %v, want %q", c.n, c.off, got, err, c.want)
		}
	}
	if n, err := h.Write([]byte("x")); n != 0 || err != unix.EBADF {
		t.Errorf("write: got %d, %v", n, err)
	}
}
