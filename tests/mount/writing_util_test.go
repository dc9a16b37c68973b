package mount

import (
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// The tests of writing_*_test.go run on two kinds of mount, which differ in everything: the kernel passes bytes through or
// the daemon serves them; memory alone, or an SSD below a memory that is smaller than the data.

// writingConfig has a pinned group, pool.
const writingConfig = `
groups:
  pool:
    pinned: true
    quota: 16MiB
`

// stages are the kinds of mount.
var stages = []struct {
	name string
	opts harness.Options
}{
	{"memory", harness.Options{MemorySize: "64MiB", Config: writingConfig}},
	{"SSD, no passthrough", harness.Options{MemorySize: "32MiB", Disk: "256MiB", Config: writingConfig, Flags: []string{"--memory-passthrough", "off"}}},
}

// stage is where one act runs: a directory of its own on a mount that acts share.
type stage struct {
	t    *testing.T
	d    *harness.Daemon
	opts harness.Options // of d
	dir  string
	ssd  bool

	other *harness.Actor // see process
}

// act is one test that runs on each stage.
type act struct {
	name string
	run  func(t *testing.T, s *stage)
}

// onStages runs the acts on each kind of mount.
func onStages(t *testing.T, acts []act) {
	for _, kind := range stages {
		t.Run(kind.name, func(t *testing.T) { playActs(t, kind.opts, acts) })
	}
}

// playActs runs the acts on one mount.
func playActs(t *testing.T, opts harness.Options, acts []act) {
	harness.KvfsOnly(t, "rules of writing")
	d := harness.Mount(t, opts)
	all := &stage{t: t, d: d, opts: opts}
	must(t, "mkdir pool", all.process().Mkdir(d.Path("pool"), 0o777))
	for i, a := range acts {
		t.Run(a.name, func(t *testing.T) {
			s := &stage{t: t, d: d, opts: opts, dir: d.Path(fmt.Sprintf("act%d", i)), ssd: opts.Disk != ""}
			must(t, "mkdir", s.process().Mkdir(s.dir, 0o777))
			a.run(t, s)
		})
	}
}

// path returns a path in the act's directory.
func (s *stage) path(elems ...string) string {
	return filepath.Join(append([]string{s.dir}, elems...)...)
}

// actor starts a process of the mount's user.
func (s *stage) actor() *harness.Actor { return harness.NewActor(s.t, s.opts.User) }

// process returns another process, the same one each time.
func (s *stage) process() *harness.Actor {
	if s.other == nil {
		s.other = s.actor()
	}
	return s.other
}

// open opens path in a, or fails the test.
func (s *stage) open(a *harness.Actor, path string, flags int) int {
	s.t.Helper()
	fd, err := a.Open(path, flags, 0o644)
	if err != nil {
		s.t.Fatalf("open %s with %#o: %s", filepath.Base(path), flags, errnoName(err))
	}
	return fd
}

func (s *stage) pwrite(a *harness.Actor, fd int, p []byte, off int64) {
	s.t.Helper()
	if n, err := a.Pwrite(fd, p, off); err != nil || n != len(p) {
		s.t.Fatalf("pwrite of %d bytes at %d: got %d, %s", len(p), off, n, errnoName(err))
	}
}

// store commits a block by rename.
func (s *stage) store(path string, p []byte) {
	s.t.Helper()
	storeAs(s.t, s.process(), path, p)
}

// storeAs has a process commit a block by rename.
func storeAs(t testing.TB, a *harness.Actor, path string, p []byte) {
	t.Helper()
	must(t, "store", a.WriteFile(path+".tmp", p))
	must(t, "store", a.Rename(path+".tmp", path))
}

// ino is the inode number of path as a sees it.
func (s *stage) ino(a *harness.Actor, path string) uint64 {
	s.t.Helper()
	st, err := a.Stat(path)
	must(s.t, "stat "+filepath.Base(path), err)
	return st.Ino
}

// fino is the inode number of a descriptor.
func (s *stage) fino(a *harness.Actor, fd int) uint64 {
	s.t.Helper()
	st, err := a.Fstat(fd)
	must(s.t, "fstat", err)
	return st.Ino
}

// script runs sh -c in the act's directory to its end.
func (s *stage) script(text string) (out string, code int) {
	s.t.Helper()
	return s.command("bash", "-c", "exec 2>&1; cd "+s.dir+" && "+text)
}

// command runs a program to its end.
func (s *stage) command(argv ...string) (out string, code int) {
	s.t.Helper()
	p := harness.StartCommand(s.t, harness.ProcessOptions{User: s.opts.User, Env: []string{"LC_ALL=C"}}, argv...)
	b, err := io.ReadAll(p.Stdout)
	must(s.t, "output of "+argv[0], err)
	code = p.Wait()
	return string(b) + p.Stderr(), code
}
