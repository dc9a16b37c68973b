package control

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// quotaAnswer is the answer of .kvfs/quota.
type quotaAnswer struct {
	Quotas []struct {
		Kind, Name, Origin string
		QuotaBytes         int64 `json:"quota_bytes"`
		UsedBytes          int64 `json:"used_bytes"`
		PinQuotaBytes      int64 `json:"pin_quota_bytes"`
		PinnedBytes        int64 `json:"pinned_bytes"`
	}
	Error, Field string
}

// storeAs stores a block as a process does, by a temporary name.
func storeAs(a *harness.Actor, path string, data []byte) error {
	fd, err := a.Open(path+".tmp", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = a.Write(fd, data)
	if closed := a.Close(fd); err == nil {
		err = closed
	}
	if err != nil {
		a.Unlink(path + ".tmp")
		return err
	}
	return a.Rename(path+".tmp", path)
}

// missing returns those of the blocks that are not there.
func missing(paths []string) (gone []string) {
	for _, p := range paths {
		if _, err := os.Lstat(p); err != nil {
			gone = append(gone, p)
		}
	}
	return gone
}

// TestQuotaPins: of two users of one mount, one pins all that it stores. With a pin quota that ends at the quota, with an
// error of its own, and leaves memory to the other. What is pinned stays when the quota is lowered. (B36)
func TestQuotaPins(t *testing.T) {
	if os.Getuid() != 0 {
		harness.Skip(t, "other users need root")
	}
	d := harness.Mount(t, harness.Options{MemorySize: "64MiB", Flags: []string{"--mount-write-timeout", "200ms"}})
	dir := d.Path("g")
	must(t, "mkdir", os.Mkdir(dir, 0o777))
	must(t, "chmod", os.Chmod(dir, 0o777))
	quiet, greedy := harness.NewActor(t, engineUser), harness.NewActor(t, stranger)
	defer quiet.Kill()
	defer greedy.Kill()
	const size = 1 << 20
	data, user := pattern("pins", size), fmt.Sprint(stranger.UID)
	path := func(i int) string { return fmt.Sprintf("%s/greedy%d", dir, i) }
	pin := func(i int, value string) error { return greedy.Setxattr(path(i), "user.kvfs.pinned", value) }
	want := func(pinned, quota int64) {
		t.Helper()
		var a quotaAnswer
		decode(t, kvfs(t, "quota", "--json", d.Dir), &a)
		if len(a.Quotas) != 1 || a.Quotas[0].PinnedBytes != pinned*size || a.Quotas[0].PinQuotaBytes != quota*size || a.Quotas[0].QuotaBytes != 0 {
			t.Errorf("quotas: %+v; want %d MiB of %d pinned", a, pinned, quota)
		}
	}

	wantLine(t, kvfs(t, "quota", "set", "--user", user, "--pinned", "8MiB", d.Dir), "user", user, "8.0 MiB", "command")
	for i := range 64 { // as much as memory has
		must(t, "store", storeAs(greedy, path(i), data))
		if err := pin(i, "1"); i < 8 && err != nil || i >= 8 && err != unix.EDQUOT {
			t.Fatalf("pin %d: %v, want no error for 8, then EDQUOT", i, err)
		}
	}
	if v, err := greedy.Getxattr(path(63), "user.kvfs.pinned"); v != "0" || err != nil {
		t.Errorf("after a pin that failed: %q, %v", v, err)
	}
	_, stderr, code := harness.Kvfs(t, "pin", path(0), path(62), path(63)) // the owner pays, whoever pins
	if code != 1 || strings.Count(stderr, "see kvfs quota") != 2 || !strings.Contains(stderr, "2 of 3 blocks") {
		t.Errorf("kvfs pin: exit code %d, %s", code, stderr)
	}
	for i := range 48 { // the other has room, and may pin it
		p := fmt.Sprintf("%s/quiet%d", dir, i)
		must(t, "the other's store", storeAs(quiet, p, data))
		must(t, "the other's pin", quiet.Setxattr(p, "user.kvfs.pinned", "1"))
	}
	want(8, 8)

	kvfs(t, "quota", "set", "--user", user, "--pinned", "2MiB", d.Dir)
	want(8, 2)
	must(t, "store", storeAs(greedy, path(8), data))
	must(t, "unpin", pin(0, "0"))
	must(t, "unlink", greedy.Unlink(path(1)))
	must(t, "replace", storeAs(greedy, path(2), data))
	for i := 3; i < 6; i++ {
		must(t, "unlink", greedy.Unlink(path(i)))
	}
	want(2, 2)
	if err := pin(8, "1"); err != unix.EDQUOT {
		t.Errorf("a pin beside 2 of 2 MiB: %v, want EDQUOT", err)
	}
	must(t, "unpin", pin(6, "0"))
	must(t, "pin", pin(8, "1"))
	wantLine(t, kvfs(t, "status", d.Dir), "user", user, "2.0 MiB", "2.0 MiB")
	metrics, err := os.ReadFile(d.Path(".kvfs/metrics"))
	must(t, "metrics", err)
	wantLine(t, string(metrics), `kvfs_quota_pin_bytes{kind="user",name="`+user+`"} 2.097152e+06`)
	wantLine(t, string(metrics), `kvfs_quota_pinned_bytes{kind="user",name="`+user+`"} 2.097152e+06`)
	if got := kvfs(t, "quota", "clear", "--user", user, "--pinned", d.Dir); got != "no quotas\n" {
		t.Errorf("at the end: %s", got)
	}
	must(t, "pin without a quota", pin(2, "1"))
}

// TestQuotaCgroup: what a process writes is charged to its cgroup, once that has a quota.
func TestQuotaCgroup(t *testing.T) {
	list, err := os.ReadFile("/proc/self/cgroup")
	must(t, "read", err)
	i := strings.Index("\n"+string(list), "\n0::")
	if i < 0 {
		harness.Skip(t, "no cgroups of version 2")
	}
	cgroup, _, _ := strings.Cut(string(list)[i+len("0::"):], "\n")
	d := harness.Mount(t, harness.Options{MemorySize: "64MiB", Flags: []string{"--memory-burst-gap", "0s"}})
	must(t, "mkdir", os.Mkdir(d.Path("g"), 0o755))
	put(t, d.Path("g/before"), pattern("x", 1<<20))
	kvfs(t, "quota", "set", "--cgroup", cgroup, "4MiB", d.Dir)
	for i := range 6 {
		put(t, d.Path(fmt.Sprint("g/", i)), pattern("x", 1<<20))
	}
	if gone := missing([]string{d.Path("g/before"), d.Path("g/0"), d.Path("g/1"), d.Path("g/2"), d.Path("g/5")}); !slices.Equal(gone, []string{d.Path("g/0"), d.Path("g/1")}) {
		t.Errorf("%q are gone", gone)
	}
	var a quotaAnswer
	decode(t, kvfs(t, "quota", "--json", d.Dir), &a)
	if len(a.Quotas) != 1 || a.Quotas[0].Name != cgroup || a.Quotas[0].UsedBytes != 4<<20 {
		t.Errorf("quotas: %+v", a)
	}
}

// TestQuotaCommand shows what kvfs quota, kvfs status and the metrics tell, and what is refused.
func TestQuotaCommand(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "64MiB", Config: "groups: {c: {quota: 8MiB}}"})
	must(t, "mkdir", os.Mkdir(d.Path("g"), 0o755))
	put(t, d.Path("g/a"), pattern("x", 1<<20))
	wantLine(t, kvfs(t, "quota", d.Dir), "group", "c", "8.0 MiB", "configuration")
	kvfs(t, "quota", "set", "--group", "g", "2MiB", d.Dir)
	wantLine(t, kvfs(t, "quota", "set", "--user", "root", "32MiB", d.Dir), "user", "0 (root)", "1.0 MiB", "32.0 MiB", "command")
	wantLine(t, kvfs(t, "status", d.Dir), "group", "g", "1.0 MiB", "2.0 MiB")
	metrics, err := os.ReadFile(d.Path(".kvfs/metrics"))
	must(t, "metrics", err)
	wantLine(t, string(metrics), `kvfs_quota_bytes{kind="user",name="0"} `)
	wantLine(t, string(metrics), `kvfs_quota_used_bytes{kind="group",name="g"} `)
	for _, row := range []struct {
		args string
		code int
		why  string
	}{
		{"set --user 0 65MiB", 1, "exceeds the capacity"},
		{"set --user 0 0", 2, "kvfs quota clear"},
		{"set --user 0 many", 2, "SIZE"},
		{"set 1MiB", 2, "whose quota"},
		{"set --user 0 --group g 1MiB", 2, "want one of them"},
		{"set --user no-such-user-here 1MiB", 1, "no user"},
		{"set --cgroup a/b 1MiB", 1, "absolute path"},
		{"set --user 0 --pinned 0", 2, "kvfs quota clear --pinned"},
		{"set --user 0 --pinned many", 2, "SIZE"},
		{"set --pinned 1MiB", 2, "whose quota"},
		{"set --user no-such-user-here --pinned 1MiB", 1, "no user"},
		{"clear --user 0 --pinned", 1, "has no quota"},
		{"clear --group g --pinned", 1, "has no quota"},
		{"clear --user 77", 1, "has no quota"},
		{"clear --group none", 1, "has no quota"},
	} {
		_, stderr, code := harness.Kvfs(t, append(append([]string{"quota"}, strings.Fields(row.args)...), d.Dir)...)
		if code != row.code || !strings.Contains(stderr, row.why) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q; want %d and %q", row.args, code, stderr, row.code, row.why)
		}
	}
	kvfs(t, "quota", "clear", "--group", "g", d.Dir)
	kvfs(t, "quota", "clear", "--user", "0", d.Dir)
	if got := kvfs(t, "quota", d.Dir); strings.Count(got, "\n") != 2 {
		t.Errorf("at the end: %s", got)
	}
	for _, bad := range []string{`{"do": "drop"}`, `{"kind": "user"}`, `{"do": "set", "kind": "user", "name": "1"}`, `{"do": "clear", "kind": "user", "name": "1", "bytes": 3}`,
		`{"do": "set", "kind": "user", "name": "1", "pinned": true}`, `{"do": "set", "kind": "user", "name": "1", "bytes": 1, "pinned": 1}`} {
		var a quotaAnswer
		talk(t, d, "quota").ask(json.RawMessage(bad), &a)
		if a.Error == "" || a.Field == "" {
			t.Errorf("%s: %+v", bad, a)
		}
	}
}
