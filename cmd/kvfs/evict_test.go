package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/fs"
)

// fakeControl is the control file of a daemon that answers each request with
// answer.
type fakeControl struct {
	asked  []fs.EvictRequest
	answer func(fs.EvictRequest) string
	out    bytes.Buffer
	closed bool
}

// Write implements io.Writer: one request a call.
func (f *fakeControl) Write(request []byte) (int, error) {
	var q fs.EvictRequest
	if err := json.Unmarshal(request, &q); err != nil {
		return 0, err
	}
	f.asked = append(f.asked, q)
	f.out.WriteString(f.answer(q))
	return len(request), nil
}

// Read implements io.Reader.
func (f *fakeControl) Read(p []byte) (int, error) { return f.out.Read(p) }

// Close implements io.Closer.
func (f *fakeControl) Close() error { f.closed = true; return nil }

// runEvictOn runs kvfs evict against a daemon, with a mount at dir.
func runEvictOn(t *testing.T, f *fakeControl, dir, stdin string, args ...string) (out string, err error) {
	t.Helper()
	target := evictTarget{
		mounts: []mountInfo{{1, "/", "ext4", "/dev/sda"}, {2, dir, fsType, "kvfs"}},
		open: func(control string) (io.ReadWriteCloser, error) {
			if control != filepath.Join(dir, ".kvfs", "evict") {
				return nil, os.ErrNotExist
			}
			return f, nil
		},
	}
	cmd := newEvictCommand()
	var buf bytes.Buffer
	cmd.SetOut(&buf)
	cmd.SetIn(strings.NewReader(stdin))
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	flags := evictFlags{tier: cmd.Flag("tier").Value.String()}
	for name, value := range map[string]*bool{"all": &flags.all, "force": &flags.force, "json": &flags.json} {
		*value = cmd.Flag(name).Value.String() == "true"
	}
	err = target.run(cmd, flags, cmd.Flags().Args())
	if !f.closed && len(f.asked) > 0 {
		t.Error("the control file is left open")
	}
	return buf.String(), err
}

// TestEvict shows what is asked of the daemon for which command line, and what is
// printed.
func TestEvict(t *testing.T) {
	const some = `{"blocks":96,"bytes":1610612736,"kept_total":3,"kept":[{"path":"g/a","reason":"only copy"},{"path":"g/b","reason":"open"}]}` + "\n"
	const none = `{"blocks":0,"bytes":0,"kept_total":2,"kept":[{"path":"x","reason":"not found"},{"path":"y","reason":"not found"}]}`
	for _, tc := range []struct {
		args   string
		stdin  string
		answer string
		want   fs.EvictRequest
		out    string
		err    string // begins so
		code   int
	}{
		{args: "--tier memory --all /m", answer: some, want: fs.EvictRequest{Tier: "memory", All: true},
			out: "evicted 96 blocks (1.5 GiB) from memory\nkept 3 blocks:\n  only copy  g/a\n  open       g/b\n  and 1 more\n"},
		{args: "--tier disk --force /m/g/a /m/h/", answer: `{"blocks":1,"bytes":10}`, want: fs.EvictRequest{Tier: "disk", Paths: []string{"g/a", "h"}, Force: true},
			out: "evicted 1 block (10 B) from disk\n"},
		{args: "--tier memory /m/", answer: `{}`, want: fs.EvictRequest{Tier: "memory", All: true}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory /m/a - /m/c", stdin: "/m/b b\n\n/m/d/../e", answer: `{}`,
			want: fs.EvictRequest{Tier: "memory", Paths: []string{"a", "b b", "e", "c"}}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory --json /m/g", answer: some, want: fs.EvictRequest{Tier: "memory", Paths: []string{"g"}},
			out: "{\n  \"tier\": \"memory\",\n  \"blocks\": 96,\n  \"bytes\": 1610612736,\n  \"kept_total\": 3,\n  \"kept\": [\n" +
				"    {\n      \"path\": \"g/a\",\n      \"reason\": \"only copy\"\n    },\n    {\n      \"path\": \"g/b\",\n      \"reason\": \"open\"\n    }\n  ]\n}\n"},
		{args: "--tier memory /m/x /m/y", answer: none, want: fs.EvictRequest{Tier: "memory", Paths: []string{"x", "y"}},
			out: "evicted 0 blocks (0 B) from memory\nkept 2 blocks:\n  not found  x\n  not found  y\n", err: "x and 1 more: not found", code: exitRuntime},
		{args: "--tier tape --all /m", answer: `{"error":"no tier \"tape\""}`, want: fs.EvictRequest{Tier: "tape", All: true},
			err: `evict from /m: no tier "tape"`, code: exitRuntime},
		{args: "--tier memory --all /m", answer: "?", want: fs.EvictRequest{Tier: "memory", All: true},
			err: "evict from /m: answer of the daemon: ", code: exitRuntime},
		{args: "--tier memory --all /m/g", err: "/m/g is not a kvfs mount: it is in the one at /m", code: exitNotMount},
		{args: "--tier memory /m/a /proc/b", err: "/proc/b is not in a kvfs mount", code: exitNotMount},
		{args: "--tier memory -", stdin: "\n", err: "standard input has no names", code: exitRuntime},
		{args: "--tier memory -", stdin: "/m/\xff\n", err: `"/m/\xff" is not UTF-8`, code: exitRuntime},
	} {
		t.Run(tc.args, func(t *testing.T) {
			f := &fakeControl{answer: func(fs.EvictRequest) string { return tc.answer }}
			out, err := runEvictOn(t, f, "/m", tc.stdin, strings.Fields(tc.args)...)
			if out != tc.out {
				t.Errorf("got\n%s\nwant\n%s", out, tc.out)
			}
			switch {
			case tc.err == "" && err != nil, tc.err != "" && (err == nil || exitCode(err) != tc.code):
				t.Errorf("got error %v, want %q with code %d", err, tc.err, tc.code)
			case err != nil && !strings.HasPrefix(fmt.Sprint(err), tc.err):
				t.Errorf("got error %q, want %q", err, tc.err)
			}
			if asks := !reflect.DeepEqual(tc.want, fs.EvictRequest{}); asks != (len(f.asked) == 1) || asks && !reflect.DeepEqual(f.asked[0], tc.want) {
				t.Errorf("asked %+v, want %+v", f.asked, tc.want)
			}
		})
	}
}

// TestEvictManyNames shows that a list too large for one request becomes several,
// in order and complete, with one sum.
func TestEvictManyNames(t *testing.T) {
	const n = 2300
	var stdin strings.Builder
	var want []string
	for i := range n {
		name := fmt.Sprintf("g/%d/%s", i, strings.Repeat("x", 4000)) // 9 MB in all
		want = append(want, name)
		stdin.WriteString("/m/" + name + "\n")
	}
	f := &fakeControl{answer: func(q fs.EvictRequest) string {
		return fmt.Sprintf(`{"blocks":%d,"bytes":1,"kept_total":1,"kept":[{"path":%q,"reason":"open"}]}`, len(q.Paths), q.Paths[0])
	}}
	out, err := runEvictOn(t, f, "/m", stdin.String(), "--tier=memory", "-")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, q := range f.asked {
		got = append(got, q.Paths...)
		if text, _ := json.Marshal(q); len(text) > 16<<20 {
			t.Errorf("a request of %d bytes", len(text))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("asked for %d names in %d requests, want %d", len(got), len(f.asked), n)
	}
	if len(f.asked) < 2 || !strings.HasPrefix(out, fmt.Sprintf("evicted %d blocks (%d B) from memory\nkept %d blocks:\n", n, len(f.asked), len(f.asked))) {
		t.Errorf("%d requests, printed %.200q", len(f.asked), out)
	}
}

// TestEvictDeadDaemon shows what becomes of a mount whose daemon is gone.
func TestEvictDeadDaemon(t *testing.T) {
	target := evictTarget{
		mounts: []mountInfo{{2, "/m", fsType, "kvfs"}},
		open:   func(string) (io.ReadWriteCloser, error) { return nil, os.ErrPermission },
	}
	_, err := target.ask("/m", evictFlags{tier: "memory"}, nil)
	if !errors.Is(err, os.ErrPermission) || exitCode(err) != exitRuntime {
		t.Errorf("got %v, code %d", err, exitCode(err))
	}
}

// TestBelowMount shows how names are told apart: by the topmost mount, through
// symbolic links that lead to it, and never by a look into it.
func TestBelowMount(t *testing.T) {
	dir := t.TempDir()
	mount := filepath.Join(dir, "kv")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	// A link in the mount would be followed by whoever looks.
	for name, target := range map[string]string{"link": mount, "kv/inner": "/", "twice": "link"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(mount)
	mounts := []mountInfo{
		{1, "/", "ext4", ""}, {2, mount, "ext4", ""}, {3, mount, fsType, ""},
		{4, mount + "/other", "tmpfs", ""}, {5, "/second", fsType, ""},
	}
	for _, tc := range []struct {
		names []string
		paths []string
		err   string
	}{
		{[]string{mount + "/g/a", mount}, []string{"g/a", "."}, ""},
		{[]string{dir + "/link/g/a", dir + "/twice/./b", dir + "/link", dir + "/kv//c/"}, []string{"g/a", "b", ".", "c"}, ""},
		{[]string{"a", "./b/c", ".", "../kv/d"}, []string{"a", "b/c", ".", "d"}, ""},
		{[]string{mount + "/inner/etc"}, []string{"inner/etc"}, ""},
		{[]string{mount + "/other/a"}, nil, mount + "/other/a is not in a kvfs mount"},
		{[]string{mount + "x/a"}, nil, "is not in a kvfs mount"},
		{[]string{dir}, nil, "is not in a kvfs mount"},
		{[]string{mount + "/a", "/second/b"}, nil, "/second/b is in the mount /second, others are in " + mount},
	} {
		m, paths, err := belowMount(mounts, tc.names)
		switch {
		case tc.err == "" && (err != nil || m != mount || !slices.Equal(paths, tc.paths)):
			t.Errorf("%q: got %q in %s, %v; want %q", tc.names, paths, m, err, tc.paths)
		case tc.err != "" && (err == nil || !strings.HasSuffix(fmt.Sprint(err), tc.err)):
			t.Errorf("%q: got %v, want %q", tc.names, err, tc.err)
		}
	}
}
