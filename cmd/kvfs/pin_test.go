package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestAttributes shows which attribute is set on what by which command, that a
// directory stands for all below it, and that errors do not keep the rest from being
// done.
func TestAttributes(t *testing.T) {
	for _, tc := range []struct {
		command func(client.Connector) *cobra.Command
		args    string // M is the mount
		stdin   string
		set     []string // sorted
		out     string
		err     string // of all lines
		code    int
	}{
		{newPinCommand, "M/a M/g/b", "", []string{"a user.kvfs.pinned=1", "g/b user.kvfs.pinned=1"}, "pinned 2 blocks\n", "", 0},
		{newUnpinCommand, "-", "M/a\n", []string{"a user.kvfs.pinned=0"}, "unpinned 1 block\n", "", 0},
		{newPinCommand, "-0 -", "M/a\x00M/\xff\x00", []string{"a user.kvfs.pinned=1", "\xff user.kvfs.pinned=1"}, "pinned 2 blocks\n", "", 0},
		{newPinCommand, "M/g", "", []string{"g/b user.kvfs.pinned=1", "g/h/c user.kvfs.pinned=1"}, "pinned 2 blocks\n", "", 0},
		{newTTLCommand, "10m M", "", []string{"a user.kvfs.ttl=10m0s", "g/b user.kvfs.ttl=10m0s", "g/h/c user.kvfs.ttl=10m0s"}, "3 blocks will expire in 10m0s\n", "", 0},
		{newTTLCommand, "90 M/a", "", []string{"a user.kvfs.ttl=1m30s"}, "1 block will expire in 1m30s\n", "", 0},
		{newTTLCommand, "0 M/a", "", []string{"a user.kvfs.ttl=0"}, "1 block will not expire\n", "", 0},
		{newTTLCommand, "0s M/a", "", []string{"a user.kvfs.ttl=0"}, "1 block will not expire\n", "", 0},
		{newPinCommand, "M/absent M/a", "", []string{"a user.kvfs.pinned=1"}, "pinned 1 block\n", "M/absent: no such file or directory", exit.Runtime},
		{newPinCommand, "--json M/x M/a M/y", "", []string{"a user.kvfs.pinned=1"},
			"{\n  \"changed\": 1,\n  \"failed\": 2,\n  \"errors\": [\n    {\n      \"path\": \"M/x\",\n      \"error\": \"no such file or directory\"\n    },\n" +
				"    {\n      \"path\": \"M/y\",\n      \"error\": \"no such file or directory\"\n    }\n  ]\n}\n",
			"M/x: no such file or directory\nM/y: no such file or directory\n2 of 3 blocks could not be changed", exit.Runtime},
		{newPinCommand, "M/1 M/2 M/3 M/4 M/5 M/6 M/7", "", nil, "pinned 0 blocks\n",
			"M/1: E\nM/2: E\nM/3: E\nM/4: E\nM/5: E\n7 of 7 blocks could not be changed", exit.Runtime},
		{newPinCommand, "M/a M/dead M/g/b", "", []string{"a user.kvfs.pinned=1"}, "", "the daemon of M is dead. kvfs mount M, with the settings it had, starts it again with its blocks. kvfs umount M gives them up", exit.NotMount},
	} {
		t.Run(tc.args, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"a", "g/b", "g/h/c"} {
				writeBelow(t, dir, name)
			}
			text := func(s string) string {
				return strings.ReplaceAll(strings.ReplaceAll(s, "M", dir), ": E\n", ": no such file or directory\n")
			}
			var set []string
			f := newFakeDaemon(dir, "none", nil)
			f.attrs = func(path, attr, value string) error {
				info, err := os.Lstat(path)
				switch {
				case filepath.Base(path) == "dead":
					return unix.ENOTCONN
				case err != nil && !strings.HasSuffix(path, "\xff"):
					return unix.ENOENT
				case err == nil && info.IsDir():
					return unix.EISDIR
				}
				rel, err := filepath.Rel(dir, path)
				set = append(set, fmt.Sprintf("%s %s=%s", rel, attr, value))
				return err
			}
			out, _, err := f.run(t, tc.command, text(tc.stdin), strings.Fields(text(tc.args))...)
			slices.Sort(set)
			if !slices.Equal(set, tc.set) {
				t.Errorf("set %q, want %q", set, tc.set)
			}
			if out != text(tc.out) {
				t.Errorf("got %q, want %q", out, text(tc.out))
			}
			if (err == nil) != (tc.code == 0) || err != nil && (exit.Code(err) != tc.code || fmt.Sprint(err) != text(tc.err)) {
				t.Errorf("got error %v, want %q with code %d", err, text(tc.err), tc.code)
			}
		})
	}
}

// writeBelow writes a file and the directories above it.
func writeBelow(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, nil, 0o644))
}
