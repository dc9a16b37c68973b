package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/fs/control"
)

// runEvictOn runs kvfs evict against a daemon, with a mount at dir.
func runEvictOn(t *testing.T, f *fakeDaemon, stdin string, args ...string) (out string, err error) {
	t.Helper()
	out, _, err = f.run(t, newEvictCommand, stdin, args...)
	return out, err
}

// evictAsked returns the requests that a daemon got.
func evictAsked(t *testing.T, f *fakeDaemon) (asked []control.EvictRequest) {
	t.Helper()
	for _, text := range f.asked() {
		var q control.EvictRequest
		if err := json.Unmarshal([]byte(text), &q); err != nil {
			t.Fatal(err)
		}
		asked = append(asked, q)
	}
	return asked
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
		want   control.EvictRequest
		out    string
		err    string // begins so
		code   int
	}{
		{args: "--tier memory --all /m", answer: some, want: control.EvictRequest{Tier: "memory", All: true},
			out: "evicted 96 blocks (1.5 GiB) from memory\nkept 3 blocks:\n  only copy  g/a\n  open       g/b\n  and 1 more\n"},
		{args: "--tier disk --force /m/g/a /m/h/", answer: `{"blocks":1,"bytes":10}`, want: control.EvictRequest{Tier: "disk", Paths: []string{"g/a", "h"}, Force: true},
			out: "evicted 1 block (10 B) from disk\n"},
		{args: "--tier memory /m/", answer: `{}`, want: control.EvictRequest{Tier: "memory", All: true}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory /m/a - /m/c", stdin: "/m/b b\n\n/m/d/../e", answer: `{}`,
			want: control.EvictRequest{Tier: "memory", Paths: []string{"a", "b b", "e", "c"}}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory -0 -", stdin: "/m/a\nb\x00/m/c\x00", answer: `{}`,
			want: control.EvictRequest{Tier: "memory", Paths: []string{"a\nb", "c"}}, out: "evicted 0 blocks (0 B) from memory\n"},
		{args: "--tier memory --json /m/g", answer: some, want: control.EvictRequest{Tier: "memory", Paths: []string{"g"}},
			out: "{\n  \"tier\": \"memory\",\n  \"blocks\": 96,\n  \"bytes\": 1610612736,\n  \"kept_total\": 3,\n  \"kept\": [\n" +
				"    {\n      \"path\": \"g/a\",\n      \"reason\": \"only copy\"\n    },\n    {\n      \"path\": \"g/b\",\n      \"reason\": \"open\"\n    }\n  ]\n}\n"},
		{args: "--tier memory /m/x /m/y", answer: none, want: control.EvictRequest{Tier: "memory", Paths: []string{"x", "y"}},
			out: "evicted 0 blocks (0 B) from memory\nkept 2 blocks:\n  not found  x\n  not found  y\n", err: "x and 1 more: not found", code: exit.Runtime},
		{args: "--tier tape --all /m", answer: `{"error":"no tier \"tape\""}`, want: control.EvictRequest{Tier: "tape", All: true},
			err: `evict from /m: no tier "tape"`, code: exit.Runtime},
		{args: "--tier memory --all /m", answer: "?", want: control.EvictRequest{Tier: "memory", All: true},
			err: "evict from /m: answer of the daemon: ", code: exit.Runtime},
		{args: "--tier memory --all /m/g", err: "/m/g is not a kvfs mount: it is a directory in the mount /m", code: exit.NotMount},
		{args: "--tier memory /m/a /proc/b", err: "/proc/b is not in a kvfs mount", code: exit.NotMount},
		{args: "--tier memory -", stdin: "/m/\xff\n", err: `"/m/\xff" is not UTF-8`, code: exit.Runtime},
	} {
		t.Run(tc.args, func(t *testing.T) {
			f := newFakeDaemon("/m", "evict", func(string) string { return tc.answer })
			out, err := runEvictOn(t, f, tc.stdin, strings.Fields(tc.args)...)
			asked := evictAsked(t, f)
			if out != tc.out {
				t.Errorf("got\n%s\nwant\n%s", out, tc.out)
			}
			switch {
			case tc.err == "" && err != nil, tc.err != "" && (err == nil || exit.Code(err) != tc.code):
				t.Errorf("got error %v, want %q with code %d", err, tc.err, tc.code)
			case err != nil && !strings.HasPrefix(fmt.Sprint(err), tc.err):
				t.Errorf("got error %q, want %q", err, tc.err)
			}
			if asks := !reflect.DeepEqual(tc.want, control.EvictRequest{}); asks != (len(asked) == 1) || asks && !reflect.DeepEqual(asked[0], tc.want) {
				t.Errorf("asked %+v, want %+v", asked, tc.want)
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
	f := newFakeDaemon("/m", "evict", func(request string) string {
		var q control.EvictRequest
		if err := json.Unmarshal([]byte(request), &q); err != nil {
			t.Error(err)
		}
		return fmt.Sprintf(`{"blocks":%d,"bytes":1,"kept_total":1,"kept":[{"path":%q,"reason":"open"}]}`, len(q.Paths), q.Paths[0])
	})
	out, err := runEvictOn(t, f, stdin.String(), "--tier=memory", "-")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	asked := evictAsked(t, f)
	for _, q := range asked {
		got = append(got, q.Paths...)
		if text, _ := json.Marshal(q); len(text) > 16<<20 {
			t.Errorf("a request of %d bytes", len(text))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("asked for %d names in %d requests, want %d", len(got), len(asked), n)
	}
	if len(asked) < 2 || !strings.HasPrefix(out, fmt.Sprintf("evicted %d blocks (%d B) from memory\nkept %d blocks:\n", n, len(asked), len(asked))) {
		t.Errorf("%d requests, printed %.200q", len(asked), out)
	}
}

// TestEvictDeadDaemon shows what becomes of a mount whose daemon is gone, and of one
// that is not for us.
func TestEvictDeadDaemon(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
	}{{unix.ENOTCONN, exit.NotMount}, {os.ErrPermission, exit.Runtime}, {os.ErrNotExist, exit.NotMount}} {
		f := newFakeDaemon("/m", "evict", nil)
		f.openErr = tc.err
		_, err := runEvictOn(t, f, "", "--tier=memory", "--all", "/m")
		if err == nil || exit.Code(err) != tc.code {
			t.Errorf("%v: got %v, code %d", tc.err, err, exit.Code(err))
		}
	}
}
