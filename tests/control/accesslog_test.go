package control

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/accesslog"
	"github.com/kvfs/kvfs/tests/harness"
)

// accessField matches a field of a line.
var accessField = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S*)`)

// access reads a line.
func access(t testing.TB, text string) (l accesslog.Line) {
	t.Helper()
	texts := map[string]*string{"op": &l.Op, "path": &l.Path, "to": &l.To, "result": &l.Result, "reads": &l.Reads}
	numbers := map[string]any{"uid": &l.UID, "gid": &l.GID, "pid": &l.PID, "size": &l.Size, "offset": &l.Offset, "dropped": &l.Dropped, "writes": &l.Writes}
	for _, m := range accessField.FindAllStringSubmatch(text, -1) {
		key, value := m[1], m[2]
		var err error
		switch {
		case key == "time":
			l.Time, err = time.Parse(time.RFC3339Nano, value)
		case key == "seconds":
			l.Took, err = time.ParseDuration(value + "s")
		case numbers[key] != nil:
			_, err = fmt.Sscan(value, numbers[key])
		case strings.HasPrefix(value, `"`):
			*texts[key], err = strconv.Unquote(value)
		default:
			*texts[key] = value
		}
		if err != nil {
			t.Fatalf("%s of the line %q: %v", key, text, err)
		}
	}
	return l
}

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
		return access(t, in.Text())
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
