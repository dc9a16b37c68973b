package tiers_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// A script is a list of lines "command arguments -> result; event; event ...".
// A line without an arrow expects "ok" and no event. Commands are the functions
// of runner named do<Command>; threads, files and references are named by the
// first arguments. Sizes are bytes, or pages with the suffix p; letters are file
// content. Time stands still but for "advance".
type script struct {
	name string
	opts state.Options
	text string
}

// runScripts runs each script on a new engine with a directory g, and checks at
// the end that removing all names gives back all that was charged, every file of
// the memory tier, and every entry.
func runScripts(t *testing.T, scripts []script) {
	for _, s := range scripts {
		t.Run(s.name, func(t *testing.T) {
			dir := shmDir(t)
			// Files carry the time of the kernel, so the clock of the bubble is
			// set to it.
			real := time.Now()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				s.opts.Now = func() time.Time { return real.Add(time.Since(start)) }
				r := newRunner(t, dir, s.opts)
				for _, line := range strings.Split(s.text, "\n") {
					if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
						r.line(line)
					}
				}
				r.drain()
				r.w.close(false)
			})
		})
	}
}

// runner runs one script.
type runner struct {
	t       *testing.T
	w       *world
	files   map[string]*file
	refs    map[string]index.ID
	pending chan string // result of "go"
	stop    context.CancelFunc
	ctx     context.Context
}

func newRunner(t *testing.T, dir string, o state.Options) *runner {
	r := &runner{t: t, files: map[string]*file{}, refs: map[string]index.ID{}, pending: make(chan string, 1)}
	r.w = open(t, dir, o)
	r.ctx, r.stop = context.WithCancel(context.Background())
	t.Cleanup(r.stop)
	if err := r.w.mkdir("g"); err != nil {
		t.Fatal(err)
	}
	return r
}

// line runs one line and compares.
func (r *runner) line(line string) {
	r.t.Helper()
	cmd, want, ok := strings.Cut(line, " -> ")
	if !ok {
		want = "ok"
	}
	words := strings.Fields(cmd)
	var got string
	if words[0] == "go" {
		go func() { r.pending <- r.run(words[1:]) }()
		got = "ok"
	} else {
		got = r.run(words)
	}
	synctest.Wait()
	got = strings.Join(append([]string{got}, r.w.news()...), "; ")
	if got != want {
		r.t.Errorf("%s\n got -> %s\nwant -> %s", cmd, got, want)
	}
	r.w.audit()
}

func (r *runner) run(words []string) string {
	do, ok := commands[words[0]]
	if !ok {
		return "no such command"
	}
	if ofFile[words[0]] && r.files[words[1]] == nil {
		return "no such file"
	}
	return do(r, words[1:])
}

// drain closes and removes everything and looks for what is left.
func (r *runner) drain() {
	r.stop()
	for _, f := range r.files {
		f.close()
	}
	for _, id := range r.refs {
		r.w.forget(id)
	}
	removeAll(r.t, r.w, "")
	// Files that no name leads to any more go with their time: idle versions
	// after a moment, temporary files after TempExpiry.
	<-time.After(2 * time.Hour)
	synctest.Wait()
	st := r.w.e.Stats()
	if st.UsedBytes != 0 || st.PinnedBytes != 0 || st.Blocks != 0 || st.Names != 0 || st.Writing != 0 {
		r.t.Errorf("left after all was removed: %+v", st)
	}
	for _, g := range r.w.e.Accounts().Groups() {
		if g.UsedBytes != 0 {
			r.t.Errorf("left in group %q after all was removed: %d", g.Name, g.UsedBytes)
		}
	}
	if n := r.w.blobs(); n != 0 {
		r.t.Errorf("left in the memory tier after all was removed: %d files", n)
	}
}

// removeAll removes what is below dir, pinned or not, as any process sees it.
func removeAll(t testing.TB, w *world, dir string) {
	t.Helper()
	for _, tid := range []uint32{10, 20, 30} {
		names, err := w.names(tid, dir)
		if err != nil {
			t.Fatalf("readdir %q: %v", dir, err)
		}
		for _, n := range names {
			p := strings.TrimPrefix(dir+"/"+n, "/")
			a, err := w.lookup(tid, p)
			if err != nil {
				continue
			}
			w.forget(a.ID)
			if a.Mode&0o170000 != 0o040000 {
				err = w.unlink(tid, p)
			} else if removeAll(t, w, p); tid == 30 {
				err = w.rmdir(p)
			}
			if err != nil {
				t.Errorf("remove %s: %v", p, err)
			}
		}
	}
}

// commands are what a script can do.
var commands = map[string]func(r *runner, a []string) string{
	"mkdir":   func(r *runner, a []string) string { return kind(r.w.mkdir(a[0])) },
	"rmdir":   func(r *runner, a []string) string { return kind(r.w.rmdir(a[0])) }, // by a process that writes nothing
	"rmdirby": func(r *runner, a []string) string { return kind(r.w.rmdirBy(tid(a[0]), a[1])) },
	"unlink":  func(r *runner, a []string) string { return kind(r.w.unlink(tid(a[0]), a[1])) },
	"rename": func(r *runner, a []string) string {
		return kind(r.w.rename(tid(a[0]), a[1], a[2], has(a[3:], "noreplace")))
	},
	"put": func(r *runner, a []string) string { return kind(r.w.put(tid(a[0]), a[1], fill(a[2], a[3]))) },
	"cat": func(r *runner, a []string) string {
		p, err := r.w.get(tid(a[0]), a[1])
		if err != nil {
			return kind(err)
		}
		return runs(p)
	},
	"create": func(r *runner, a []string) string {
		return r.keep(a[1])(r.w.create(tid(a[0]), a[2], has(a[3:], "excl"), has(a[3:], "trunc")))
	},
	"open": func(r *runner, a []string) string { // open for reading and writing
		return r.keep(a[1])(r.w.openWrite(r.ctx, tid(a[0]), a[2], has(a[3:], "trunc")))
	},
	"openr": func(r *runner, a []string) string { return r.keep(a[1])(r.w.openRead(tid(a[0]), a[2])) },
	"write": func(r *runner, a []string) string { // write FILE SIZE LETTER [OFFSET]
		off := int64(0)
		if len(a) > 3 {
			off = size(a[3])
		}
		_, err := r.files[a[0]].h.WriteAt(r.ctx, fill(a[1], a[2]), off)
		return kind(err)
	},
	"raw": func(r *runner, a []string) string { // as write, but by the kernel alone
		return kind(r.files[a[0]].h.WithFile(func(file *os.File) error {
			_, err := file.WriteAt(fill(a[1], a[2]), 0)
			return err
		}))
	},
	"truncate": func(r *runner, a []string) string { return kind(r.files[a[0]].h.Truncate(r.ctx, size(a[1]))) },
	"allocate": func(r *runner, a []string) string {
		return kind(r.files[a[0]].h.Allocate(r.ctx, 0, size(a[1]), has(a[2:], "keep")))
	},
	"punch": func(r *runner, a []string) string {
		return kind(r.files[a[0]].h.PunchHole(r.ctx, 0, size(a[1])))
	},
	"fsync": func(r *runner, a []string) string { return kind(r.w.e.Fsync(r.ctx, r.files[a[0]].id)) },
	"read": func(r *runner, a []string) string {
		p, err := r.files[a[0]].read()
		if err != nil {
			return kind(err)
		}
		return runs(p)
	},
	"flush": func(r *runner, a []string) string { // flush FILE [killed] [open] [TID]
		f, c := r.files[a[0]], closer{has(a[1:], "killed"), has(a[1:], "open")}
		thread := f.tid
		if n, err := strconv.Atoi(a[len(a)-1]); err == nil {
			thread = uint32(n)
		}
		return kind(r.w.e.Flush(context.Background(), f.h, by(thread), c))
	},
	"release": func(r *runner, a []string) string {
		r.files[a[0]].release()
		delete(r.files, a[0])
		return "ok"
	},
	"close": func(r *runner, a []string) string {
		err := r.files[a[0]].close()
		delete(r.files, a[0])
		return kind(err)
	},
	"lookup": func(r *runner, a []string) string { // lookup TID REF PATH: keeps the reference
		at, err := r.w.lookupBy(by(tid(a[0])), a[2])
		if err != nil {
			return fmt.Sprintf("%s stable=%v", kind(err), at.Stable)
		}
		r.refs[a[1]] = at.ID
		return fmt.Sprintf("%s stable=%v", pages(at.Size), at.Stable)
	},
	"forget": func(r *runner, a []string) string {
		r.w.forget(r.refs[a[0]])
		delete(r.refs, a[0])
		return "ok"
	},
	// openref TID FILE REF: opens for reading what lookup found
	"openref": func(r *runner, a []string) string {
		f, err := r.w.openReadID(tid(a[0]), r.refs[a[2]])
		if err == nil {
			delete(r.refs, a[2])
		}
		return r.keep(a[1])(f, err)
	},
	// tryopen TID REF: opens anew for writing what lookup found, once
	"tryopen": func(r *runner, a []string) string {
		h, err := r.w.e.OpenWrite(r.ctx, r.refs[a[1]], by(tid(a[0])), openfile.WriteOptions{Truncate: true})
		if err == nil {
			r.w.e.Release(h)
		}
		return kind(err)
	},
	// openplain TID REF: as tryopen, the same again, but in place
	"openplain": func(r *runner, a []string) string {
		h, err := r.w.e.OpenWrite(r.ctx, r.refs[a[1]], by(tid(a[0])), openfile.WriteOptions{})
		if err == nil {
			r.w.e.Release(h)
		}
		return kind(err)
	},
	// reopen TID FILE REF: the same again, and keeps the file
	"reopen": func(r *runner, a []string) string {
		h, err := r.w.e.OpenWrite(r.ctx, r.refs[a[2]], by(tid(a[0])), openfile.WriteOptions{Truncate: true})
		f := &file{w: r.w, tid: tid(a[0]), id: r.refs[a[2]], h: h}
		if err == nil {
			delete(r.refs, a[2])
		}
		return r.keep(a[1])(f, err)
	},
	"sameino": func(r *runner, a []string) string {
		if r.files[a[0]] == nil || r.files[a[1]] == nil {
			return "no such file"
		}
		return fmt.Sprint(r.files[a[0]].id == r.files[a[1]].id)
	},
	"ls": func(r *runner, a []string) string {
		names, err := r.w.names(tid(a[0]), a[1])
		if err != nil {
			return kind(err)
		}
		return "[" + strings.Join(names, " ") + "]"
	},
	"stat":  (*runner).stat,
	"pin":   func(r *runner, a []string) string { return r.byPath(a[0], (*world).pin) },
	"unpin": func(r *runner, a []string) string { return r.byPath(a[0], (*world).unpin) },
	"touch": func(r *runner, a []string) string { return r.byPath(a[0], (*world).touch) },
	"ttl": func(r *runner, a []string) string {
		d, err := time.ParseDuration(a[1])
		if err != nil {
			return err.Error()
		}
		return r.byPath(a[0], func(w *world, id index.ID) error { return w.e.SetTTL(id, d) })
	},
	"sum": func(r *runner, a []string) string {
		return r.byPath(a[0], func(w *world, id index.ID) error { _, err := w.e.Checksum(id); return err })
	},
	"truncname": func(r *runner, a []string) string {
		return r.byPath(a[0], func(w *world, id index.ID) error { return w.e.TruncateName(r.ctx, id, by(10), size(a[1])) })
	},
	"advance": func(r *runner, a []string) string {
		d, err := time.ParseDuration(a[0])
		if err != nil {
			return err.Error()
		}
		<-time.After(d)
		return "ok"
	},
	"wait": func(r *runner, a []string) string { return <-r.pending },
	"poll": func(r *runner, a []string) string {
		select {
		case s := <-r.pending:
			return s
		default:
			return "waiting"
		}
	},
	"cancel": func(r *runner, a []string) string { r.stop(); return "ok" },
	"stats": func(r *runner, a []string) string {
		st := r.w.e.Stats()
		return fmt.Sprintf("used %s pinned %s blocks %d writing %d", pages(st.UsedBytes), pages(st.PinnedBytes), st.Blocks, st.Writing)
	},
	"group": func(r *runner, a []string) string {
		for _, g := range r.w.e.Accounts().Groups() {
			if string(g.Name) == a[0] {
				return fmt.Sprintf("used %s expects %s", pages(g.UsedBytes), pages(g.BlockBytes))
			}
		}
		return "no such group"
	},
	"blobs": func(r *runner, a []string) string { return fmt.Sprint(r.w.blobs()) },
}

// ofFile lists the commands that take an open file first.
var ofFile = map[string]bool{
	"write": true, "raw": true, "truncate": true, "allocate": true, "punch": true, "fsync": true, "read": true, "flush": true, "release": true, "close": true,
}

// keep enters an open file under a name.
func (r *runner) keep(name string) func(*file, error) string {
	return func(f *file, err error) string {
		if err == nil {
			r.files[name] = f
		}
		return kind(err)
	}
}

// byPath applies fn to what a control request names.
func (r *runner) byPath(name string, fn func(w *world, id index.ID) error) string {
	a, err := r.w.e.Resolve(r.ctx, name)
	if err == nil {
		err = fn(r.w, a.ID)
	}
	return kind(err)
}

func (w *world) pin(id index.ID) error   { return w.e.SetPinned(id, true) }
func (w *world) unpin(id index.ID) error { return w.e.SetPinned(id, false) }

// touch sets the time of last access, as utimensat.
func (w *world) touch(id index.ID) error {
	now := int64(1)
	_, err := w.e.SetAttr(id, tiers.Change{Atime: &now})
	return err
}

// stat prints what stat(2) shows to a thread.
func (r *runner) stat(a []string) string {
	at, err := r.w.lookup(tid(a[0]), a[1])
	if err != nil {
		return kind(err)
	}
	r.w.forget(at.ID)
	return fmt.Sprintf("%s %#o %d:%d nlink %d", pages(at.Size), at.Mode, at.UID, at.GID, at.Nlink)
}

func tid(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return math.MaxUint32
	}
	return uint32(n)
}

func size(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSuffix(s, "p"), 10, 64)
	if err != nil {
		return -1
	}
	if strings.HasSuffix(s, "p") {
		n *= page
	}
	return n
}

func fill(n, letter string) []byte { return []byte(strings.Repeat(letter, int(size(n)))) }

func has(words []string, w string) bool {
	for _, x := range words {
		if x == w {
			return true
		}
	}
	return false
}
