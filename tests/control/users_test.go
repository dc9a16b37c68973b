package control

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Users that control.users and control.group name, one in each way, and one that they do not name.
var (
	engineUser = &harness.User{UID: 23001, GID: 23001, Groups: []uint32{23009}}
	member     = &harness.User{UID: 23002, GID: 23005}
	helpful    = &harness.User{UID: 23003, GID: 23003, Groups: []uint32{23008, 23005}}
	stranger   = &harness.User{UID: 23004, GID: 23004}
	admitted   = []string{"--control-users", "root,23001", "--control-group", "23005"}
)

// askAs asks a control file as a user, in a process of his own, and returns the answer.
func askAs(t testing.TB, u *harness.User, control, request string) string {
	t.Helper()
	out, stderr, code := harness.RunHelper(t, harness.ProcessOptions{User: u}, askerHelper, control, request)
	first, answer, _ := strings.Cut(out, "\n")
	if code != 0 {
		t.Fatalf("ask as %d: %s%s", u.UID, out, stderr)
	}
	if !strings.HasPrefix(first, "thread ") {
		t.Fatalf("ask as %d: %s", u.UID, out)
	}
	return answer
}

// private stores blocks that only some users may read, and returns all keys. The user of the engine may read the
// blocks whose state in the second list is no miss, other users the first block.
func private(t testing.TB, d *harness.Daemon) (keys []string, engine string) {
	t.Helper()
	for _, b := range []struct {
		key       string
		uid, gid  int
		dir, mode os.FileMode
		seen      string
	}{
		{"open/a", 0, 0, 0o755, 0o644, "m"},
		{"open/mode", 0, 0, 0o755, 0o600, "."},
		{"open/group", 0, 23009, 0o755, 0o604, "."}, // of the group's class, which has less than others
		{"closed/a", 0, 0, 0o700, 0o644, "."},
		{"closed/deep/a", 0, 0, 0o755, 0o644, "."},
		{"own/a", 23001, 23001, 0o700, 0o600, "m"},
		{"group/a", 0, 23009, 0o750, 0o640, "m"},
	} {
		dir := filepath.Dir(d.Path(b.key))
		must(t, "mkdir", os.MkdirAll(dir, 0o755))
		if dir != d.Path("open") {
			must(t, "chown", os.Chown(dir, b.uid, b.gid))
		}
		must(t, "chmod", os.Chmod(dir, b.dir))
		fd, err := openFile(d.Path(b.key), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		must(t, "open", err)
		must(t, "chown", unix.Fchown(fd, b.uid, b.gid))
		must(t, "chmod", unix.Fchmod(fd, uint32(b.mode)))
		must(t, "write", sendAll(fd, pattern(b.key, 64*kib)))
		must(t, "close", unix.Close(fd))
		keys, engine = append(keys, b.key), engine+b.seen
	}
	return keys, engine
}

// TestUsers shows that the configured users and members of the group may use the control files
// for engines, and no others. Answers tell them only of blocks that they may read. (B36)
func TestUsers(t *testing.T) {
	if os.Getuid() != 0 {
		harness.Skip(t, "other users need root")
	}
	d := diskMount(t, harness.Options{Flags: admitted})
	keys, engine := private(t, d)
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = d.Path(key)
	}
	waitOnDisk(t, all...)

	for _, u := range []*harness.User{engineUser, member, helpful, stranger} {
		a := harness.NewActor(t, u)
		for _, file := range []string{"query", "prefetch", "specs", "events", "accesslog", "quota", "usage", "evict"} {
			var want error
			if u == stranger || file == "evict" {
				want = unix.EACCES
			}
			if fd, err := a.Open(d.Path(".kvfs", file), unix.O_RDWR, 0); err != want {
				t.Errorf("user %d opens %s: %v, want %v", u.UID, file, err, want)
			} else if err == nil {
				must(t, "close", a.Close(fd))
			}
		}
	}

	// A version that is being written is its writer's secret as well.
	fd, err := openFile(d.Path("open/mode"), unix.O_WRONLY|unix.O_TRUNC)
	must(t, "open", err)
	defer unix.Close(fd)
	must(t, "write", sendAll(fd, []byte("half")))
	kvfs(t, "evict", "--tier", "memory", d.Path("open/mode")) // so that the name is that version's alone
	kvfs(t, "evict", "--tier", "disk", "--force", d.Path("open/mode"))
	if got := talk(t, d, "query").states(keys...); got != "mwmmmmm" {
		t.Errorf("root sees %q", got)
	}

	asked, err := json.Marshal(obj{"op": "exists", "keys": keys})
	must(t, "request", err)
	for u, want := range map[*harness.User]string{engineUser: engine, member: "m.m...."} {
		var got existsAnswer
		decode(t, askAs(t, u, d.Path(".kvfs", "query"), string(asked)), &got)
		if got.States != want {
			t.Errorf("user %d sees %q, want %q", u.UID, got.States, want)
		}
	}
	out, _, code := harness.KvfsAs(t, engineUser, append([]string{"lookup"}, all...)...)
	if code != 1 || strings.Count(out, "hit ") != 3 || strings.Count(out, "miss ") != 4 {
		t.Errorf("kvfs lookup as the engine's user: code %d\n%s", code, out)
	}
	_, stderr, code := harness.KvfsAs(t, engineUser, "why", d.Path("open/mode"))
	if want := "why is for root and the user of the daemon"; code != 1 || !strings.Contains(stderr, want) {
		t.Errorf("kvfs why as the engine's user: code %d, %s want %q", code, stderr, want)
	}
	if got := askAs(t, member, d.Path(".kvfs", "specs"), `{"get": []}`); got != "{\"specs\": {}}\n" {
		t.Errorf("specs: %s", got)
	}

	keys = slices.Delete(keys, 1, 2) // It is not on disk.
	kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
	asked, err = json.Marshal(obj{"keys": keys})
	must(t, "request", err)
	var loaded prefetchAnswer
	decode(t, askAs(t, engineUser, d.Path(".kvfs", "prefetch"), string(asked)), &loaded)
	if loaded.Results != "l...ll" {
		t.Errorf("prefetch: %q", loaded.Results)
	}
	for i, key := range keys {
		if want := map[byte]string{'l': "memory,disk", '.': "disk"}[loaded.Results[i]]; tierOf(d.Path(key)) != want {
			t.Errorf("%s is in %q after the prefetch, want it in %q", key, tierOf(d.Path(key)), want)
		}
	}
}

// TestUsersPeers shows that a user is not told of blocks of other nodes that he may not read there.
func TestUsersPeers(t *testing.T) {
	if os.Getuid() != 0 {
		harness.Skip(t, "other users need root")
	}
	_, a, b := newPair(t, harness.ClusterOptions{Secure: true, Flags: func(int) []string { return admitted }})
	keys, engine := private(t, a.Daemon)
	waitStates(t, talk(t, b.Daemon, "query"), strings.Repeat("p", len(keys)), keys...)
	asked, err := json.Marshal(obj{"op": "exists", "keys": keys})
	must(t, "request", err)
	var got existsAnswer
	decode(t, askAs(t, engineUser, b.Path(".kvfs", "query"), string(asked)), &got)
	if want := strings.ReplaceAll(engine, "m", "p"); got.States != want {
		t.Errorf("got %q, want %q", got.States, want)
	}
	var loaded prefetchAnswer
	asked, err = json.Marshal(obj{"keys": keys})
	must(t, "request", err)
	decode(t, askAs(t, engineUser, b.Path(".kvfs", "prefetch"), string(asked)), &loaded)
	if want := strings.ReplaceAll(engine, "m", "l"); loaded.Results != want {
		t.Errorf("prefetch: got %q, want %q", loaded.Results, want)
	}
}

// TestUsersUnknown shows that a name that the machine does not know is refused at the start.
func TestUsersUnknown(t *testing.T) {
	harness.KvfsOnly(t, "a configuration")
	for flag, want := range map[string]string{
		"--control-users=root,no-such-name": `control.users: this machine has no user "no-such-name"`,
		"--control-group=no-such-name":      `control.group: this machine has no group "no-such-name"`,
	} {
		d := harness.Mount(t, harness.Options{Flags: []string{flag}, ExpectFail: true})
		if d.ExitCode != 3 || !strings.Contains(d.Log(), want) {
			t.Errorf("%s: code %d, want 3 and %s\n%s", flag, d.ExitCode, want, d.Log())
		}
	}
}
