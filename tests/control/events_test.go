package control

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// wantAscending fails unless sequence numbers ascend by one.
func wantAscending(t testing.TB, events []event) {
	t.Helper()
	for i := 1; i < len(events); i++ {
		if events[i].Seq != events[i-1].Seq+1 {
			t.Errorf("sequence number %d after %d: %v", events[i].Seq, events[i-1].Seq, events[i])
		}
	}
}

// relevant returns the events of one group, without their numbers and times.
func relevant(events []event, group string) []string {
	var all []string
	for _, e := range events {
		if e.Group == group {
			all = append(all, e.String())
		}
	}
	return all
}

// TestEvents shows what a follower sees of the life of a block: stored in memory, copied
// to disk, evicted, promoted, renamed, replaced, removed, expired; in order, numbered
// without gaps, with the time (A39, C17).
func TestEvents(t *testing.T) {
	d := diskMount(t, harness.Options{})
	must(t, "mkdir", os.Mkdir(d.Path("g"), 0o755))
	put(t, d.Path("g/before"), []byte("x"))
	waitOnDisk(t, d.Path("g/before"))
	f := follow(t, d, nil)
	began := time.Now()
	var all []event
	upTo := func(want string) {
		t.Helper()
		all = append(all, f.until(want, func(e event) bool { return e.String() == want })...)
	}
	line := func(event, hash, tier, reason, from string, size int) string {
		return fmt.Sprintf("%s g/%s in %q, %d bytes, reason %q, from %q", event, hash, tier, size, reason, from)
	}
	put(t, d.Path("g/a"), make([]byte, 5000))
	upTo(line("stored", "a", "memory", "", "", 5000))
	upTo(line("stored", "a", "disk", "", "", 5000))
	kvfs(t, "evict", "--tier", "memory", d.Path("g/a"))
	upTo(line("evicted", "a", "memory", "request", "", 5000))
	wantBytes(t, d.Path("g/a"), make([]byte, 5000))
	upTo(line("stored", "a", "memory", "promoted", "", 5000))
	must(t, "rename", os.Rename(d.Path("g/a"), d.Path("g/b")))
	upTo(line("renamed", "b", "", "", "g/a", 5000))
	put(t, d.Path("g/b"), make([]byte, 6000))
	upTo(line("stored", "b", "memory", "", "", 6000))
	unlink(t, d.Path("g/b"))
	upTo(line("removed", "b", "", "unlink", "", 6000))
	put(t, d.Path("g/c"), make([]byte, 7000))
	setxattr(t, d.Path("g/c"), "user.kvfs.ttl", "50ms")
	upTo(line("removed", "c", "", "expired", "", 7000))
	wantAscending(t, all)
	if replaced := line("removed", "b", "", "replaced", "", 5000); !slices.Contains(relevant(all, "g"), replaced) {
		t.Errorf("not seen: %s; seen:\n%s", replaced, strings.Join(relevant(all, "g"), "\n"))
	}
	for _, e := range all {
		if e.Hash == "before" {
			t.Errorf("seen, but it was before: %v", e)
		}
		at := time.UnixMicro(int64(e.Time * 1e6))
		if at.Before(began.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("time of %v: %v, now is %v", e, at, time.Now())
		}
	}
}

// TestEventsAccess shows that every user may read a text, and only root and the daemon's user may
// read dialogues and the stream.
func TestEventsAccess(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	if os.Getuid() != 0 {
		harness.Skip(t, "other users need root")
	}
	d := harness.Mount(t, harness.Options{})
	stranger := harness.NewActor(t, &harness.User{UID: 12345, GID: 12345})
	texts := []string{"jobs", "metrics", "status"}
	dialogues := []string{"accesslog", "drain", "events", "evict", "prefetch", "query", "quota", "specs", "usage"}
	for _, file := range texts {
		if _, err := stranger.ReadFile(d.Path(".kvfs", file)); err != nil {
			t.Errorf("%s: a stranger gets %v", file, err)
		}
		if _, err := openFile(d.Path(".kvfs", file), unix.O_RDWR); err == nil {
			t.Errorf("%s can be opened for writing", file)
		}
	}
	for _, file := range dialogues {
		for _, flags := range []int{unix.O_RDONLY, unix.O_RDWR, unix.O_WRONLY} {
			if _, err := stranger.Open(d.Path(".kvfs", file), flags, 0); err != unix.EACCES {
				t.Errorf("%s: a stranger gets %v with flags %#x, want EACCES", file, err, flags)
			}
		}
	}
	names, err := stranger.Names(d.Dir)
	if err != nil || len(names) != 0 {
		t.Errorf("the mount lists %v, %v, want nothing", names, err)
	}
	names, err = stranger.Names(d.Path(".kvfs"))
	slices.Sort(names)
	if want := slices.Sorted(slices.Values(slices.Concat(texts, dialogues))); err != nil || !slices.Equal(names, want) {
		t.Errorf("the control directory lists %v, %v, want %v", names, err, want)
	}
}
