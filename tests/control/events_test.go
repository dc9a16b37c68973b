package control

import (
	"fmt"
	"io"
	"os"
	"os/exec"
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

// TestEventsFromOpen shows that a follower sees what happens right after its open, however
// busy the daemon is, and nothing from before.
func TestEventsFromOpen(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	must(t, "mkdir", os.Mkdir(d.Path("g"), 0o755))
	buf := make([]byte, 64*kib)
	for i := range 200 {
		put(t, d.Path(fmt.Sprintf("g/before%d", i)), []byte("x"))
		fd, err := openFile(d.Path(".kvfs/events"), unix.O_RDONLY|unix.O_NONBLOCK)
		must(t, "open", err)
		name := fmt.Sprintf("first%d", i)
		put(t, d.Path("g", name), []byte("x"))
		var got string
		harness.Poll(t, "there is an event", func() bool {
			put(t, d.Path("g", fmt.Sprintf("later%d", i)), []byte("x"))
			n, err := readSome(fd, buf)
			if err != nil && err != unix.EAGAIN {
				t.Fatalf("read: %v", err)
			}
			got = string(buf[:max(n, 0)])
			return got != ""
		})
		unix.Close(fd)
		line, _, _ := strings.Cut(got, "\n")
		if !strings.Contains(line, `"`+name+`"`) {
			t.Fatalf("open %d: the first event is %s, want it of %s", i, line, name)
		}
	}
}

// TestEventsTemporary shows that a block which is written as engines do is told once, under
// its final name, and that names that are not UTF-8 are told with U+FFFD.
func TestEventsTemporary(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	f := follow(t, d, nil)
	store(t, d.Path("g/a"), []byte("abc"))
	put(t, d.Path("deep/er/b"), []byte("abc"))
	put(t, d.Path("g/\xff\xfe<&>\"\\"), []byte("abc"))
	put(t, d.Path("g/last"), []byte("abc"))
	all := f.until("the last block", func(e event) bool { return e.Hash == "last" && e.Event == "stored" })
	wantAscending(t, all)
	var names []string
	for _, e := range all {
		if e.Event == "stored" {
			names = append(names, e.Group+"|"+e.Hash)
		}
	}
	if want := []string{"g|a", "deep|er/b", "g|\ufffd\ufffd<&>\"\\", "g|last"}; !slices.Equal(names, want) {
		t.Errorf("stored: got %q, want %q", names, want)
	}
}

// TestEventsSince shows requests to the stream: from a number on, only some groups, only
// some events; numbers are those of all.
func TestEventsSince(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	f := follow(t, d, nil)
	put(t, d.Path("g/first"), []byte("x"))
	first := f.stored("memory", "", "g/first")
	for i := range 10 {
		put(t, d.Path(fmt.Sprintf("g%d/a", i%2)), make([]byte, i+1))
	}
	unlink(t, d.Path("g0/a"))
	put(t, d.Path("g/last"), []byte("x"))
	all := append([]event{first}, f.until("the last", func(e event) bool { return e.Hash == "last" })...)
	wantAscending(t, all)
	last := all[len(all)-1].Seq
	reread := func(request obj) []event {
		t.Helper()
		put(t, d.Path("end/end"), []byte("x")) // Of all groups and events that are asked for.
		r := follow(t, d, request)
		return r.until("the end", func(e event) bool { return e.Seq >= last })
	}
	if got := reread(obj{"since": first.Seq}); !slices.Equal(got, all) {
		t.Errorf("since %d: got %d events, want the %d that were seen", first.Seq, len(got), len(all))
	}
	want := slices.DeleteFunc(slices.Clone(all), func(e event) bool { return e.Group != "g0" && e.Group != "g" })
	if got := reread(obj{"since": first.Seq, "groups": []string{"g0", "g"}}); !slices.Equal(got, want) {
		t.Errorf("of two groups: got %v, want %v", got, want)
	}
	want = slices.DeleteFunc(slices.Clone(all), func(e event) bool { return e.Event != "removed" && e.Group != "g" })
	want = slices.DeleteFunc(want, func(e event) bool { return e.Event == "stored" })
	r := follow(t, d, obj{"since": first.Seq, "events": []string{"removed"}})
	for _, w := range want {
		if got := r.take("a removal"); got != w {
			t.Errorf("only removals: got %v, want %v", got, w)
		}
	}
	// Without since it begins with what happens then; an empty request is one, too.
	r = follow(t, d, obj{"groups": []string{"new"}})
	harness.Poll(t, "the follower sees what is stored", func() bool {
		put(t, d.Path("old/a"), []byte("x"))
		put(t, d.Path("new/a"), []byte("x"))
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.mu.events) > 0
	})
	if e := r.take("of the new group"); e.Group != "new" {
		t.Errorf("got %v, want it of the group new", e)
	}
}

// TestEventsMoved shows that a follower of a group gets an event when something leaves the group by another
// name: a block, or the directory of the group with the rest. A number of an earlier daemon gives a gap.
func TestEventsMoved(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	for _, name := range []string{"g0/a", "g0/b", "g1/c"} {
		put(t, d.Path(name), []byte("x"))
	}
	f := follow(t, d, obj{"groups": []string{"g0"}, "events": []string{"renamed"}})
	ahead := follow(t, d, obj{"since": 1 << 40})
	if e := ahead.take("a gap"); e.Event != "gap" || e.Missed != 0 {
		t.Errorf("since a number that is not there yet: got %v, want a gap", e)
	}
	must(t, "rename", again(func() error { return unix.Rename(d.Path("g0/a"), d.Path("g1/a")) }))
	must(t, "rename", again(func() error { return unix.Rename(d.Path("g0"), d.Path("g2")) }))
	var got []string
	for _, directory := range []bool{false, true} {
		e := f.take("what has left the group")
		if got = append(got, e.String()); e.Directory != directory {
			t.Errorf("%v: directory %v, want %v", e, e.Directory, directory)
		}
	}
	want := []string{`renamed g1/a in "", 1 bytes, reason "", from "g0/a"`, `renamed /g2 in "", 0 bytes, reason "", from "g0"`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// renames makes n events quickly: one block is renamed to and fro, between names as long
// as engines make them.
func renames(t testing.TB, d *harness.Daemon, n int) {
	t.Helper()
	names := []string{d.Path("r", strings.Repeat("a", 200)), d.Path("r", strings.Repeat("b", 200))}
	put(t, names[0], []byte("x"))
	for i := range n {
		must(t, "rename", again(func() error { return unix.Rename(names[i%2], names[1-i%2]) }))
	}
	put(t, d.Path("r/last"), []byte("x"))
}

// TestEventsGap lets a reader sleep while more happens than the daemon keeps. The reader then gets the events that
// were kept, in order, and for the missing ones a gap with their number. It slows no writer. The same holds for a
// reader that asks for events that are long gone.
func TestEventsGap(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	const kept, n = 16_384, 30_000
	d := harness.Mount(t, harness.Options{})
	slow := openEvents(t, d, nil)
	renames(t, d, n)
	check := func(what string, f *follower) {
		t.Helper()
		all := f.until("the last", func(e event) bool { return e.Hash == "last" && e.Event == "stored" })
		var missed uint64
		for i, e := range all {
			if e.Event == "gap" {
				missed += e.Missed
				if e.Missed == 0 || i+1 == len(all) || all[i+1].Seq != e.Seq {
					t.Errorf("%s: gap %+v before %v", what, e, all[min(i+1, len(all)-1)])
				}
				if i > 0 && e.Seq != all[i-1].Seq+1+e.Missed {
					t.Errorf("%s: gap %+v after %v", what, e, all[i-1])
				}
			} else if i > 0 && all[i-1].Event != "gap" && e.Seq != all[i-1].Seq+1 {
				t.Errorf("%s: %v after %v", what, e, all[i-1])
			}
		}
		if missed == 0 || missed > n {
			t.Errorf("%s: %d events of %d missed, want some", what, missed, n)
		}
		if len(all) < kept {
			t.Errorf("%s: %d events, %d missed, want the %d that are kept", what, len(all), missed, kept)
		}
	}
	read := func(fd int) *follower {
		f := &follower{t: t, ended: make(chan struct{})}
		f.mu.news = make(chan struct{})
		go f.read(fd) // Ends with the daemon.
		return f
	}
	check("the slow reader", read(slow))
	check("since 1", follow(t, d, obj{"since": 1}))
}

// TestEventsNonblocking shows that a read with O_NONBLOCK does not wait.
func TestEventsNonblocking(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	fd := open(t, d.Path(".kvfs/events"), unix.O_RDONLY|unix.O_NONBLOCK)
	buf := make([]byte, 64*kib)
	if n, err := readSome(fd, buf); err != unix.EAGAIN {
		t.Fatalf("before any event: %d bytes, %s, want EAGAIN", n, errnoName(err))
	}
	put(t, d.Path("g/a"), []byte("x"))
	var got strings.Builder
	harness.Poll(t, "the event is there", func() bool {
		n, err := readSome(fd, buf)
		if err != nil && err != unix.EAGAIN || err == nil && n == 0 {
			t.Fatalf("read: %d bytes, %v", n, err)
		}
		got.Write(buf[:max(n, 0)])
		return strings.Contains(got.String(), `"stored"`)
	})
	if n, err := readSome(fd, buf); err != unix.EAGAIN {
		t.Errorf("after all events: %d bytes, %s, want EAGAIN", n, errnoName(err))
	}
}

// TestEventsFollowers shows that several followers see the same, whenever they read, and
// that a reader of few bytes at a time sees it, too.
func TestEventsFollowers(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	fs := []*follower{follow(t, d, nil), follow(t, d, nil), follow(t, d, obj{"since": 1})}
	little := openEvents(t, d, nil)
	parallel(4, func(w int) {
		for i := range 100 {
			if err := os.WriteFile(d.Path(fmt.Sprintf("w%d-%d", w, i)), []byte("x"), 0o644); err != nil {
				t.Error(err)
			}
		}
	})
	put(t, d.Path("g/last"), []byte("x"))
	isLast := func(e event) bool { return e.Hash == "last" && e.Event == "stored" }
	first := fs[0].until("the last", isLast)
	wantAscending(t, first)
	if len(first) < 400 {
		t.Errorf("%d events of 400 blocks", len(first))
	}
	for _, f := range fs[1:] {
		if got := f.until("the last", isLast); !slices.Equal(got, first) {
			t.Errorf("another follower: %d events, not the same as the first's %d", len(got), len(first))
		}
	}
	var text []byte
	within(t, "all is read in pieces of 7 bytes", func() {
		for !strings.Contains(string(text[max(0, len(text)-200):]), `"last"`) || text[len(text)-1] != '\n' {
			buf := make([]byte, 7)
			n, err := readSome(little, buf)
			if err != nil || n == 0 {
				t.Errorf("read: %d bytes, %v", n, err)
				return
			}
			text = append(text, buf[:n]...)
		}
	})
	if got := strings.Count(string(text), "\n"); got != len(first) {
		t.Errorf("in pieces: %d lines, want %d", got, len(first))
	}
}

// TestEventsStop shows that the daemon's stop ends the reads of followers, and that
// followers do not hold up the stop.
func TestEventsStop(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	fs := []*follower{follow(t, d, nil), follow(t, d, obj{"since": 1})}
	p := startAsker(t, d.Path(".kvfs/events"), `{"events":["removed"]}`)
	put(t, d.Path("g/a"), []byte("x"))
	for _, f := range fs {
		f.stored("memory", "", "g/a")
	}
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, f := range fs {
		receive(t, "the end of the stream", closedAsEvent(f.ended))
	}
	within(t, "the read of another process ends", func() {
		for range p.lines { // To its end.
		}
	})
}

// closedAsEvent returns a channel that gives a value when ch is closed.
func closedAsEvent(ch <-chan struct{}) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() { // Ends with ch.
		<-ch
		out <- struct{}{}
	}()
	return out
}

// TestEventsTools follows with cat and tail, as people do.
func TestEventsTools(t *testing.T) {
	harness.KvfsOnly(t, "a control directory")
	d := harness.Mount(t, harness.Options{})
	for _, args := range [][]string{{"cat"}, {"tail", "-n", "+1", "-f"}} {
		t.Run(args[0], func(t *testing.T) {
			cmd := exec.Command(args[0], append(args[1:], d.Path(".kvfs/events"))...)
			out, err := cmd.StdoutPipe()
			must(t, "pipe", err)
			must(t, "start", cmd.Start())
			ended := make(chan struct{})
			t.Cleanup(func() { cmd.Process.Kill() })
			seen := make(chan struct{})
			go func() { // Ends with the command, which ends with the daemon at the latest.
				defer close(ended)
				defer cmd.Wait()
				buf := make([]byte, 64*kib)
				n, err := out.Read(buf)
				if err != nil && err != io.EOF || !strings.Contains(string(buf[:n]), `"event"`) {
					t.Errorf("got %q, %v", buf[:n], err)
				}
				close(seen)
				io.Copy(io.Discard, out)
			}()
			i := 0
			harness.Poll(t, "the command prints an event", func() bool {
				// It may not have opened the file yet, or gather some lines.
				i++
				put(t, d.Path(args[0], fmt.Sprint(i)), []byte("x"))
				select {
				case <-seen:
					return true
				default:
					return false
				}
			})
			cmd.Process.Kill()
			receive(t, "the end of the command", closedAsEvent(ended))
		})
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
