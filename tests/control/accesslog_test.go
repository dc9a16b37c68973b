package control

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/accesslog"
	"github.com/kvfs/kvfs/tests/harness"
)

// accesses reads the lines of .kvfs/accesslog until one is about last, which is left out. The stream has begun when
// accesses returns.
func accesses(t testing.TB, d *harness.Daemon) (until func(last string) []accesslog.Line) {
	t.Helper()
	f, err := os.Open(d.Path(".kvfs/accesslog"))
	must(t, "open", err)
	t.Cleanup(func() { f.Close() })
	in := bufio.NewScanner(f)
	read := func() accesslog.Line {
		t.Helper()
		if !in.Scan() {
			t.Fatalf("the stream has ended: %v", in.Err())
		}
		l, err := accesslog.Parse(in.Text())
		must(t, "line", err)
		return l
	}
	if first := read(); first.Reads != d.Status().Mount.ReadPath {
		t.Fatalf("the first line: %+v", first)
	}
	return func(last string) (lines []accesslog.Line) {
		t.Helper()
		within(t, "a line about "+last, func() {
			for {
				l := read()
				if l.Path == last {
					return
				}
				lines = append(lines, l)
			}
		})
		return lines
	}
}

// TestAccessLog shows that each request that reaches the daemon is a line: who asked what of which file, how many bytes
// it is about, and the answer.
func TestAccessLog(t *testing.T) {
	harness.KvfsOnly(t, "an access log")
	if os.Getuid() != 0 {
		harness.Skip(t, "an access log needs a mount by root")
	}
	d := harness.Mount(t, harness.Options{})
	must(t, "mkdir", os.Mkdir(d.Path("g"), 0o755))
	until := accesses(t, d)
	store(t, d.Path("g/a\n"), make([]byte, 5000))
	wantBytes(t, d.Path("g/a\n"), make([]byte, 5000))
	wantMiss(t, d.Path("g/none"))
	put(t, d.Path("g/a\n"), make([]byte, 6000))
	unlink(t, d.Path("g/a\n"))
	wantMiss(t, d.Path("end"))
	lines := until("end")
	for _, want := range []accesslog.Line{
		{Op: "CREATE", Path: "g/a\n.tmp", Result: "OK"},
		{Op: "RENAME", Path: "g/a\n.tmp", To: "g/a\n", Size: 5000, Result: "OK"},
		{Op: "OPEN", Path: "g/a\n", Size: 5000, Result: "OK"},
		{Op: "OPEN", Path: "g/a\n", Writes: true, Result: "OK"},
		{Op: "FLUSH", Path: "g/a\n", Size: 6000, Result: "OK"},
		{Op: "LOOKUP", Path: "g/none", Result: "ENOENT"},
		{Op: "UNLINK", Path: "g/a\n", Result: "OK"},
	} {
		i := slices.IndexFunc(lines, func(l accesslog.Line) bool {
			return l.Op == want.Op && l.Path == want.Path && l.To == want.To && (l.Size == want.Size || want.Writes) && l.Writes == want.Writes && l.Result == want.Result
		})
		if i < 0 {
			t.Errorf("no line like %+v", want)
		} else if l := lines[i]; l.PID != uint32(os.Getpid()) || l.UID != 0 || l.Time.IsZero() {
			t.Errorf("%+v: want it of process %d", l, os.Getpid())
		}
	}
	written := slices.ContainsFunc(lines, func(l accesslog.Line) bool {
		return l.Op == "WRITE" && l.Path == "g/a\n.tmp" && l.Size == 5000 && l.Offset == 0
	})
	if !written { // the first block of a group passes through the daemon
		t.Error("the write is missing")
	}
	if t.Failed() {
		for _, l := range lines {
			t.Logf("%s", l.Append(nil))
		}
	}
}

// TestAccessLogStore counts the requests of a store: create, write, close and rename of a new block, in a group of which
// the size of the blocks is known. docs/performance.md says which they are and why.
func TestAccessLogStore(t *testing.T) {
	harness.KvfsOnly(t, "an access log")
	if os.Getuid() != 0 {
		harness.Skip(t, "an access log needs a mount by root")
	}
	d := harness.Mount(t, harness.Options{})
	if d.Status().Mount.WritePath != "passthrough" {
		harness.Skip(t, "without passthrough each MiB is a request")
	}
	must(t, "mkdir", os.Mkdir(d.Path("g"), 0o755))
	for i := range 3 {
		put(t, d.Path(fmt.Sprint("g/", i)), make([]byte, 64*kib))
	}
	until := accesses(t, d)
	fd, err := unix.Open(d.Path("g/a.tmp"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	must(t, "create", err)
	_, err = unix.Write(fd, make([]byte, 64*kib))
	must(t, "write", err)
	must(t, "close", unix.Close(fd))
	must(t, "rename", unix.Rename(d.Path("g/a.tmp"), d.Path("g/a")))
	wantMiss(t, d.Path("end"))
	var got []string
	for _, l := range until("end") {
		if l.Op != "RELEASE" && l.Op != "FORGET" { // for these nobody waits
			got = append(got, l.Op)
		}
	}
	slices.Sort(got)
	if want := "[CREATE GETATTR GETATTR GETXATTR LOOKUP LOOKUP LOOKUP RENAME]"; len(got) > 8 {
		t.Errorf("%d requests, want 8 at most: got %v, want %s", len(got), got, want)
	}
}

// TestAccessLogUsers shows that users who are named see their own requests alone.
func TestAccessLogUsers(t *testing.T) {
	harness.KvfsOnly(t, "an access log")
	if os.Getuid() != 0 {
		harness.Skip(t, "other users need root")
	}
	d := harness.Mount(t, harness.Options{Flags: admitted})
	p := harness.StartHelper(t, harness.ProcessOptions{User: engineUser}, askerHelper, d.Path(".kvfs/accesslog"), `{}`)
	lines := bufio.NewReader(p.Stdout)
	for range 2 { // its thread, and the first line of the log
		_, err := lines.ReadString('\n')
		must(t, "asker", err)
	}
	wantMiss(t, d.Path("mine"))
	if _, err := harness.NewActor(t, engineUser).Stat(d.Path("theirs")); err != unix.ENOENT {
		t.Errorf("stat: %v", err)
	}
	within(t, "the request of the user", func() {
		for {
			line, err := lines.ReadString('\n')
			l, err2 := accesslog.Parse(line)
			if err != nil || err2 != nil || l.UID != engineUser.UID {
				t.Errorf("line %q: %v, %v; want only those of uid %d", line, err, err2, engineUser.UID)
				return
			}
			if l.Path == "theirs" {
				return
			}
		}
	})
}

// TestAccessLogIdle shows that a reader that reads nothing stops no request, and that its end ends the lines.
func TestAccessLogIdle(t *testing.T) {
	harness.KvfsOnly(t, "an access log")
	if os.Getuid() != 0 {
		harness.Skip(t, "an access log needs a mount by root")
	}
	d := harness.Mount(t, harness.Options{})
	fd := open(t, d.Path(".kvfs/accesslog"), unix.O_RDONLY)
	buf := make([]byte, 64*kib)
	if _, err := readSome(fd, buf); err != nil {
		t.Fatalf("read: %v", err)
	}
	within(t, "requests beyond what is kept", func() {
		for i := range 16_000 { // some 5 MB of lines; the kernel remembers names, so each is another one
			unix.Access(d.Path(fmt.Sprintf("none-%0200d", i)), unix.F_OK)
		}
	})
	var text []byte
	within(t, "the number of dropped lines", func() {
		for !strings.Contains(string(text), " dropped=") {
			n, err := readSome(fd, buf)
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			text = append(text, buf[:n]...)
		}
	})
}
