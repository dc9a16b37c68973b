package mount

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestWritingPlain is rule 6: plain names are POSIX from the first byte.
func TestWritingPlain(t *testing.T) { onStages(t, plainActs) }

// plainPaths are names that are plain by their pattern, or by their group.
func (s *stage) plainPaths(dir string) []string {
	s.t.Helper()
	pool, tmp := s.d.Path("pool", dir), s.path("tmp")
	must(s.t, "mkdir", s.process().Mkdir(pool, 0o777))
	must(s.t, "mkdir", s.process().Mkdir(tmp, 0o777))
	return []string{
		s.path("x.lock"), s.path("x.lck"), s.path("x.pid"),
		s.path("x.tmp"), s.path("x.tmp.1"), s.path(".tmpx"), filepath.Join(tmp, "x"),
		filepath.Join(pool, "x"), filepath.Join(pool, "x.lock"),
	}
}

// temporary reports whether names of this kind have the exception for O_TRUNC.
func temporary(i int) bool { return 3 <= i && i <= 6 }

var plainActs = []act{
	{"visible and shared from the first byte", func(t *testing.T, s *stage) {
		for _, p := range s.plainPaths("visible") {
			a, b := s.actor(), s.process()
			fd := s.open(a, p, wronly|creat|trunc)
			wantSeen(t, b, p, nil)
			s.pwrite(a, fd, []byte("a"), 0)
			wantSeen(t, b, p, []byte("a"))
			gd := s.open(b, p, rdwr|creat)
			if s.fino(b, gd) != s.fino(a, fd) || s.ino(b, p) != s.fino(a, fd) {
				t.Errorf("%s: inodes differ: %d, %d, by name %d", p, s.fino(a, fd), s.fino(b, gd), s.ino(b, p))
			}
			s.pwrite(b, gd, []byte("b"), 1)
			s.pwrite(a, fd, []byte("c"), 2)
			s.readsAs(p, b, gd, []byte("abc"))
			wantSeen(t, a, p, []byte("abc"))
			must(t, "close", b.Close(gd))
			s.pwrite(a, fd, []byte("d"), 3)
			wantSeen(t, b, p, []byte("abcd"))
			must(t, "append", b.Append(p, []byte("e"), 1))
			wantSeen(t, a, p, []byte("abcde"))
			must(t, "close", a.Close(fd))
			wantSeen(t, b, p, []byte("abcde"))
		}
	}},
	{"a writer that a signal kills leaves what it wrote", func(t *testing.T, s *stage) {
		for _, p := range s.plainPaths("killed") {
			a := s.actor()
			fd := s.open(a, p, wronly|creat|excl)
			s.pwrite(a, fd, []byte("written"), 0)
			a.Kill()
			wantSeen(t, s.process(), p, []byte("written"))
			b := s.actor()
			fd = s.open(b, p, rdwr)
			s.pwrite(b, fd, []byte(" twice"), 7)
			b.Kill()
			wantSeen(t, s.process(), p, []byte("written twice"))
			must(t, "unlink", s.process().Unlink(p))
			wantAbsent(t, s.actor(), p)
		}
	}},
	{"O_TRUNC truncates in place", func(t *testing.T, s *stage) {
		for i, p := range s.plainPaths("truncated") {
			must(t, "write", s.process().WriteFile(p, []byte("before")))
			a, b := s.actor(), s.process()
			rfd := s.open(b, p, rdonly)
			fd := s.open(a, p, rdwr|trunc)
			s.readsAs(p+" of a reader", b, rfd, nil)
			if s.ino(b, p) != s.fino(b, rfd) || s.fino(a, fd) != s.fino(b, rfd) {
				t.Errorf("%s: inode changed: %d, %d, %d", p, s.ino(b, p), s.fino(a, fd), s.fino(b, rfd))
			}
			s.pwrite(a, fd, []byte("a"), 0)
			s.readsAs(p+" of a reader", b, rfd, []byte("a"))
			if temporary(i) {
				continue
			}
			c := s.actor()
			gd := s.open(c, p, rdwr|creat|trunc)
			s.readsAs(p+" after another's O_TRUNC", a, fd, nil)
			s.pwrite(c, gd, []byte("c"), 0)
			s.readsAs(p, a, fd, []byte("c"))
			s.readsAs(p+" of a reader", b, rfd, []byte("c"))
			must(t, "close", c.Close(gd))
			must(t, "close", a.Close(fd))
			wantSeen(t, b, p, []byte("c"))
		}
	}},
	{"never dropped by us", func(t *testing.T, s *stage) {
		s = s.own()
		paths := s.plainPaths("kept")
		for _, p := range paths {
			must(t, "write", s.actor().WriteFile(p, pattern(p, 100_000)))
		}
		s.flood()
		for _, p := range paths {
			wantSeen(t, s.process(), p, pattern(p, 100_000))
		}
	}},
	{"mount.plain_patterns names them", func(t *testing.T, s *stage) {
		s = s.own("--mount-plain-patterns", "*.db,log-*")
		for name, plain := range map[string]bool{"x.db": true, "log-1": true, "x.lock": false, "x": false} {
			a, b := s.actor(), s.process()
			fd := s.open(a, s.path(name), wronly|creat|trunc)
			s.pwrite(a, fd, []byte("bytes"), 0)
			if plain {
				wantSeen(t, b, s.path(name), []byte("bytes"))
			} else {
				wantAbsent(t, b, s.path(name))
			}
		}
	}},
	{"flock and fcntl locks exclude on a file opened with O_CREAT|O_TRUNC", func(t *testing.T, s *stage) {
		plain := s.plainPaths("locked")
		for _, p := range []string{plain[0], plain[1], plain[2], plain[7], plain[8]} {
			a, b := s.actor(), s.actor()
			fd := s.open(a, p, rdwr|creat|trunc)
			must(t, "LOCK_EX", a.Flock(fd, lockEx|nonbl))
			gd := s.open(b, p, rdwr|creat|trunc)
			wantErrno(t, p+": LOCK_EX against LOCK_EX", b.Flock(gd, lockEx|nonbl), unix.EWOULDBLOCK)
			must(t, "F_SETLK", a.SetLock(fd, unix.F_WRLCK))
			wantErrno(t, p+": F_WRLCK against F_WRLCK", b.SetLock(gd, unix.F_WRLCK), unix.EAGAIN, unix.EACCES)
			s.pwrite(a, fd, []byte("pid of a"), 0)
			hd := s.open(b, p, rdwr|creat)
			wantErrno(t, p+": with bytes", b.Flock(hd, lockEx|nonbl), unix.EWOULDBLOCK)
			a.Kill()
			wantErrno(t, p+": LOCK_EX after the holder's death", b.Flock(gd, lockEx|nonbl), nil)
			wantErrno(t, p+": F_WRLCK after the holder's death", b.SetLock(gd, unix.F_WRLCK), nil)
			c := s.actor()
			gd = s.open(c, p, rdwr|creat|trunc)
			wantErrno(t, p+": LOCK_EX against the next holder", c.Flock(gd, lockEx|nonbl), unix.EWOULDBLOCK)
		}
	}},
	{"a client opens the lock of its server while it is held (vLLM)", func(t *testing.T, s *stage) {
		for _, flags := range []int{rdwr | creat, rdwr | creat | trunc, wronly | creat | excl} {
			p := s.path(fmt.Sprintf("block%d.safetensors.lock", flags))
			server, client := s.actor(), s.actor()
			fd := s.open(server, p, flags)
			must(t, "LOCK_EX", server.Flock(fd, lockEx))
			for _, how := range []int{rdonly, rdwr, rdwr | creat} {
				gd := s.open(client, p, how)
				wantErrno(t, "LOCK_SH while it is held", client.Flock(gd, lockSh|nonbl), unix.EWOULDBLOCK)
				must(t, "close", client.Close(gd))
			}
			gd := s.open(client, p, rdonly)
			locked := make(chan error, 1)
			go func() { locked <- client.Flock(gd, lockSh) }()
			must(t, "LOCK_UN", server.Flock(fd, unix.LOCK_UN))
			must(t, "LOCK_SH", <-locked)
			must(t, "unlink", server.Unlink(p))
		}
	}},
	{"two processes with filelock of Python", filelock},
	{"SQLite in WAL mode: no insert of two processes is lost", sqlite},
}

const filelockScript = `
import fcntl, os, sys
path, counter = sys.argv[1], sys.argv[2]
for i in range(int(sys.argv[3])):
    fd = os.open(path, os.O_RDWR | os.O_TRUNC | os.O_CREAT, 0o644)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            pass
    with open(counter) as f: n = int(f.read())
    with open(counter, "r+") as f: f.write(str(n + 1))
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
`

// filelock counts in a file outside the mount, under a lock as Python's filelock takes it.
func filelock(t *testing.T, s *stage) {
	py := python(t)
	const each = 100
	for _, name := range []string{"x.lock", "x.pid"} {
		counter := s.path("counter.tmp")
		must(t, "counter", s.process().WriteFile(counter, []byte("0")))
		type result struct {
			out  string
			code int
		}
		results := make(chan result, 2)
		for range 2 {
			p := harness.StartCommand(t, harness.ProcessOptions{User: s.opts.User}, py, "-c", filelockScript, s.path(name), counter, fmt.Sprint(each))
			go func() {
				code := p.Wait()
				results <- result{p.Stderr(), code}
			}()
		}
		for range 2 {
			if r := <-results; r.code != 0 {
				t.Errorf("%s: exit code %d\n%s", name, r.code, r.out)
			}
		}
		got, err := s.process().ReadFile(counter)
		if want := fmt.Sprint(2 * each); err != nil || string(got) != want {
			t.Errorf("%s: counted %q, %s, want %s", name, got, errnoName(err), want)
		}
	}
}

const sqliteScript = `
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
who, n = sys.argv[2], int(sys.argv[3])
for attempt in range(1000): # no timeout holds while the mode changes
    try:
        db.execute("pragma journal_mode=wal")
        break
    except sqlite3.OperationalError:
        pass
db.execute("create table if not exists t (who text, n int, data blob)")
db.commit()
for i in range(n):
    db.execute("insert into t values (?, ?, ?)", (who, i, bytes([i % 256]) * 1000))
    db.commit()
db.close()
`

const sqliteCount = `
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
rows = db.execute("select count(*), count(distinct who || n), sum(length(data)) from t").fetchone()
print(db.execute("pragma integrity_check").fetchone()[0], *rows)
`

func sqlite(t *testing.T, s *stage) {
	py := python(t)
	if _, code := s.command(py, "-c", "import sqlite3"); code != 0 {
		harness.Skip(t, "Python has no sqlite3")
	}
	const each = 100
	for _, name := range []string{"kv.db", "kv2.db"} {
		p := s.path(name)
		if name == "kv2.db" { // made before
			if out, code := s.command(py, "-c", sqliteScript, p, "first", "0"); code != 0 {
				t.Fatalf("exit code %d\n%s", code, out)
			}
		}
		codes := make(chan string, 2)
		for _, who := range []string{"a", "b"} {
			c := harness.StartCommand(t, harness.ProcessOptions{User: s.opts.User}, py, "-c", sqliteScript, p, who, fmt.Sprint(each))
			go func() {
				code := c.Wait()
				codes <- fmt.Sprintf("%d%s", code, c.Stderr())
			}()
		}
		for range 2 {
			if got := <-codes; got != "0" {
				t.Errorf("%s: exit code and output: %s", name, got)
			}
		}
		out, code := s.command(py, "-c", sqliteCount, p)
		if want := fmt.Sprintf("ok %d %d %d\n", 2*each, 2*each, 2000*each); out != want || code != 0 {
			t.Errorf("%s: got %q, exit code %d, want %q", name, out, code, want)
		}
	}
}

// TestWritingShared is rule 5 for temporary names, which engines share.
func TestWritingShared(t *testing.T) { onStages(t, sharedActs) }

var sharedActs = []act{
	{"of a file that others rename, and whose writer is killed, nobody sees a half", func(t *testing.T, s *stage) {
		tmp, p, used := s.path("x.tmp"), s.path("x"), s.status().Tiers[0].UsedBytes
		a, b := s.actor(), s.process()
		fd := s.open(a, tmp, wronly|creat|trunc)
		s.pwrite(a, fd, pattern("half", 50_000), 0)
		must(t, "rename", b.Rename(tmp, p))
		wantAbsent(t, b, p)
		a.Kill()
		harness.Poll(t, "the writer's bytes are given up", func() bool {
			wantAbsent(t, b, p)
			return s.status().Tiers[0].UsedBytes <= used
		})
		wantAbsent(t, b, p)
	}},
	{"the last close of who writes it commits a file that others rename", func(t *testing.T, s *stage) {
		tmp, p := s.path("x.tmp"), s.path("x")
		s.store(p, pattern("old", mib))
		a, b := s.actor(), s.process()
		fd := s.open(a, tmp, wronly|creat|trunc)
		s.pwrite(a, fd, pattern("new", mib)[:5000], 0)
		must(t, "rename", b.Rename(tmp, p))
		wantAbsent(t, b, p)
		s.pwrite(a, fd, pattern("new", mib)[5000:], 5000)
		must(t, "close", a.Close(fd))
		harness.Poll(t, "the close is told", func() bool { _, err := b.Stat(p); return err == nil })
		s.wantCommitted(p, pattern("new", mib))
	}},
	{"the later one that truncates a temporary file has its name", func(t *testing.T, s *stage) {
		tmp, x := s.path("x.tmp"), s.path("x")
		a, b := s.actor(), s.actor()
		fd := s.open(a, tmp, wronly|creat|trunc)
		s.pwrite(a, fd, pattern("a", 100_000), 0)
		gd := s.open(b, tmp, wronly|creat|trunc)
		s.pwrite(b, gd, pattern("b", 200_000)[:7000], 0)
		s.pwrite(a, fd, pattern("a", 100_000), 100_000)
		wantSeen(t, a, tmp, pattern("b", 200_000)[:7000])
		must(t, "close", a.Close(fd))
		must(t, "rename", a.Rename(tmp, x))
		wantAbsent(t, s.process(), x)
		s.pwrite(b, gd, pattern("b", 200_000), 0)
		must(t, "close", b.Close(gd))
		harness.Poll(t, "the close is told", func() bool { _, err := s.process().Stat(x); return err == nil })
		wantSeen(t, s.process(), x, pattern("b", 200_000))
		wantErrno(t, "rename", b.Rename(tmp, x), unix.ENOENT)
	}},
	{"an empty block is written, renamed to a plain name, and written on", func(t *testing.T, s *stage) {
		for _, name := range []string{"x.tmp", "x.lock"} {
			p, q := s.path("x"), s.path(name)
			a := s.actor()
			must(t, "write", a.WriteFile(p, nil))
			fd := s.open(a, p, wronly)
			s.pwrite(a, fd, []byte("first"), 0)
			must(t, "rename", a.Rename(p, q))
			s.pwrite(a, fd, pattern("a", 100_000), 0)
			must(t, "close", a.Close(fd))
			wantSeen(t, s.process(), q, pattern("a", 100_000))
			must(t, "rename", s.process().Rename(q, p))
			wantSeen(t, s.process(), p, pattern("a", 100_000))
		}
	}},
	{"two shells, one temporary name, mv by a third", func(t *testing.T, s *stage) {
		for i := range 10 {
			out, code := s.script(fmt.Sprintf(`sh -c 'echo old > w%[1]d.tmp'; sh -c 'echo new > w%[1]d.tmp'; mv w%[1]d.tmp w%[1]d; cat w%[1]d`, i))
			if out != "new\n" || code != 0 {
				t.Errorf("got %q, exit code %d, want new", out, code)
			}
		}
		out, _ := s.script(`sh -c 'echo old > v.tmp; mv v.tmp v'; sh -c 'echo new > v.tmp'; mv v.tmp v; cat v; sh -c 'echo last >> v'; cat v; rm v; ls`)
		if want := "new\nnew\nlast\n"; len(out) < len(want) || out[:len(want)] != want {
			t.Errorf("got %q, want %q", out, want)
		}
	}},
	{"rm -rf of a directory with one temporary name of two processes", func(t *testing.T, s *stage) {
		for i, how := range []string{"open", "closed", "killed", "renamed"} {
			dir := s.path(fmt.Sprint("dir", i))
			must(t, "mkdir", s.process().Mkdir(dir, 0o777))
			p := filepath.Join(dir, "x.tmp")
			a, b := s.actor(), s.actor()
			fd, gd := s.open(a, p, wronly|creat|trunc), s.open(b, p, wronly|creat|trunc)
			s.pwrite(a, fd, pattern("a", 100_000), 0)
			s.pwrite(b, gd, pattern("b", 100_000), 0)
			switch how {
			case "closed":
				must(t, "close", a.Close(fd))
				must(t, "close", b.Close(gd))
			case "killed":
				a.Kill()
				b.Kill()
			case "renamed":
				must(t, "rename", b.Rename(p, filepath.Join(dir, "x")))
				must(t, "close", a.Close(fd))
			}
			if out, code := s.script("rm -rf " + dir); code != 0 {
				t.Errorf("%s: rm -rf: exit code %d, %s", how, code, out)
			}
			wantAbsent(t, s.process(), dir)
			if how == "open" {
				must(t, "close", a.Close(fd))
				must(t, "close", b.Close(gd))
				wantAbsent(t, s.process(), dir)
				wantAbsent(t, a, p)
			}
		}
	}},
}
