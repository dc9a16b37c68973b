package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// fingerprints returns what keys list shows, the first first, without the roles.
func fingerprints(t *testing.T, file string) []string {
	t.Helper()
	code, out, errs := runCLI("keys", "list", file)
	if code != exit.OK || errs != "" {
		t.Fatalf("list: exit code %d, stderr %q", code, errs)
	}
	var all []string
	for i, line := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
		fingerprint, role, _ := strings.Cut(line, "  ")
		if want := map[bool]string{true: "encrypts and decrypts", false: "decrypts"}[i == 0]; role != want {
			t.Errorf("line %d: %q, want role %q", i, line, want)
		}
		all = append(all, fingerprint)
	}
	return all
}

// TestKeysRotation walks through a change of the key on two nodes, as the help tells.
func TestKeysRotation(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	code, out, errs := runCLI("keys", "create", a)
	if code != exit.OK || errs != "" || !strings.Contains(out, "gossip_keys: \""+a+"\"\n") {
		t.Fatalf("create: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	if info, err := os.Stat(a); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	text, err := os.ReadFile(a)
	must(t, err)
	must(t, os.WriteFile(b, text, 0o600))
	old := fingerprints(t, a)[0]

	code, key, errs := runCLI("keys", "add", a)
	if code != exit.OK || errs != "" || len(strings.Fields(key)) != 1 {
		t.Fatalf("add: exit code %d, stdout %q, stderr %q", code, key, errs)
	}
	key = strings.TrimSpace(key)
	if code, out, errs := runCLI("keys", "add", b, key); code != exit.OK || strings.Contains(out, key) {
		t.Fatalf("add: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	both := fingerprints(t, a)
	if len(both) != 2 || both[0] != old || strings.Join(fingerprints(t, b), " ") != strings.Join(both, " ") {
		t.Fatalf("added: %q and %q, want %s first", both, fingerprints(t, b), old)
	}
	for file, name := range map[string]string{a: key, b: both[1]} { // by its text, and by its fingerprint
		if code, _, errs := runCLI("keys", "use", file, name); code != exit.OK {
			t.Fatalf("use: exit code %d, stderr %q", code, errs)
		}
		if got := fingerprints(t, file); len(got) != 2 || got[0] != both[1] || got[1] != old {
			t.Errorf("used: %q, want %q first", got, both[1])
		}
		if code, _, errs := runCLI("keys", "remove", file, both[1]); code != exit.Runtime || strings.Count(errs, "\n") != 1 {
			t.Errorf("remove the first: exit code %d, stderr %q", code, errs)
		}
		if code, _, errs := runCLI("keys", "remove", file, old); code != exit.OK {
			t.Fatalf("remove: exit code %d, stderr %q", code, errs)
		}
		if got := fingerprints(t, file); len(got) != 1 || got[0] != both[1] {
			t.Errorf("removed: %q, want only %q", got, both[1])
		}
	}
}

// TestKeysRefuses shows what is refused, with which code, and that the file stays as it
// was.
func TestKeysRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keys")
	if code, _, errs := runCLI("keys", "create", file); code != exit.OK {
		t.Fatalf("exit code %d, stderr %q", code, errs)
	}
	const key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	before := readAll(t, dir)
	for _, tc := range []struct {
		args []string
		code int
		want string // of stderr
	}{
		{[]string{"keys"}, exit.Usage, "kvfs: a command is missing: one of add, create, list, remove, use (see kvfs keys --help)\n"},
		{[]string{"keys", "rotate"}, exit.Usage, "kvfs: unknown command \"rotate\""},
		{[]string{"keys", "create"}, exit.Usage, "kvfs: accepts 1 arg(s)"},
		{[]string{"keys", "list"}, exit.Usage, "kvfs: accepts 1 arg(s)"},
		{[]string{"keys", "add"}, exit.Usage, "kvfs: accepts between 1 and 2 arg(s)"},
		{[]string{"keys", "use", file}, exit.Usage, "kvfs: accepts 2 arg(s)"},
		{[]string{"keys", "remove", file}, exit.Usage, "kvfs: accepts 2 arg(s)"},
		{[]string{"keys", "create", file}, exit.Runtime, "kvfs: "},
		{[]string{"keys", "list", file + "2"}, exit.Runtime, "kvfs: "},
		{[]string{"keys", "add", file, "short"}, exit.Runtime, "kvfs: "},
		{[]string{"keys", "add", file + "2", key}, exit.Runtime, "kvfs: "},
		{[]string{"keys", "use", file, key}, exit.Runtime, "kvfs: "},
		{[]string{"keys", "remove", file, "0123"}, exit.Runtime, "kvfs: "},
	} {
		code, out, errs := runCLI(tc.args...)
		if code != tc.code || !strings.HasPrefix(errs, tc.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q, want %d, %q", tc.args, code, out, errs, tc.code, tc.want)
		}
	}
	if after := readAll(t, dir); after != before {
		t.Errorf("files changed from\n%s\nto\n%s", before, after)
	}
}
