package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Storms are the races of the rules: processes that write and read the same few names for a while.
// KVFS_STORM is for how many seconds; without it they are
// short.

const stormEnv = "KVFS_STORM"

// stormSeconds is its value. It is taken out of the environment, in which a daemon knows each KVFS_*.
var stormSeconds = func() string {
	s := os.Getenv(stormEnv)
	os.Unsetenv(stormEnv)
	return s
}()

// stormTime is how long a storm blows.
func stormTime(t testing.TB) time.Duration {
	t.Helper()
	if stormSeconds != "" {
		seconds, err := strconv.ParseFloat(stormSeconds, 64)
		must(t, stormEnv, err)
		return time.Duration(seconds * float64(time.Second))
	}
	if testing.Short() {
		return 200 * time.Millisecond
	}
	return time.Second / 2
}

// Helpers of storms. Each works until its standard input ends, and then prints what it met.
const (
	halfWriter   = "storm-half-writer"
	halfReader   = "storm-half-reader"
	sizeReader   = "storm-size-reader"
	sharedWriter = "storm-shared-writer"
)

func init() {
	harness.Helper(halfWriter, stormMain(writeHalves))
	harness.Helper(halfReader, stormMain(readHalves))
	harness.Helper(sizeReader, stormMain(readSizes))
	harness.Helper(sharedWriter, stormMain(writeShared))
}

// storm is a process of a storm.
type storm struct {
	args   []string
	rnd    *rand.Rand
	rounds int
	wrong  map[string]int
	oracle oracle
}

func (s *storm) met(format string, args ...any) { s.wrong[fmt.Sprintf(format, args...)]++ }

// stormMain runs round until the standard input ends. args: a seed, then those of round.
func stormMain(round func(s *storm)) func(args []string) int {
	return func(args []string) int {
		unix.Umask(0o022)
		seed, _ := strconv.ParseUint(args[0], 10, 64)
		s := &storm{args: args[1:], rnd: rand.New(rand.NewPCG(seed, 1)), wrong: make(map[string]int)}
		end := make(chan struct{})
		go func() { // ends with the standard input
			io.Copy(io.Discard, os.Stdin)
			close(end)
		}()
		for {
			select {
			case <-end:
				fmt.Printf("rounds %d\n", s.rounds)
				for text, n := range s.wrong {
					fmt.Printf("%d times: %s\n", n, text)
				}
				return min(len(s.wrong), 1)
			default:
				s.rounds++
				round(s)
			}
		}
	}
}

// blow starts the processes, ends them after a while and fails the test for what they met. step,
// if not nil, is done meanwhile, again and again.
func (s *stage) blow(step func(), processes ...[]string) {
	s.t.Helper()
	seed := newRand(s.t).Uint64()
	var all []*harness.Process
	for i, p := range processes {
		args := append([]string{fmt.Sprint(seed + uint64(i))}, p[1:]...)
		all = append(all, harness.StartHelper(s.t, harness.ProcessOptions{User: s.opts.User}, p[0], args...))
	}
	over := time.Now().Add(stormTime(s.t))
	for step != nil && time.Now().Before(over) {
		step()
	}
	<-time.After(time.Until(over))
	for i, p := range all {
		p.Stdin.Close()
		out, err := io.ReadAll(p.Stdout)
		must(s.t, "output", err)
		s.t.Logf("%s: %s", processes[i][0], out)
		if code := p.Wait(); code != 0 {
			s.t.Errorf("%s: exit code %d\n%s%s", processes[i][0], code, out, p.Stderr())
		}
	}
}

// do repeats a call that EINTR ended, and notes any other error that is not one of those allowed.
func (s *storm) do(what string, call func() error, allowed ...error) error {
	err := again(call)
	if err != nil {
		for _, a := range allowed {
			if errors.Is(err, a) {
				return err
			}
		}
		s.met("%s: %s", what, errnoName(err))
	}
	return err
}

func (s *storm) open(path string, flags int, allowed ...error) int {
	fd := -1
	s.do(fmt.Sprintf("open with %#o", flags), func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
		return err
	}, allowed...)
	return fd
}

func (s *storm) write(fd int, p []byte, off int64) {
	s.do("pwrite", func() error {
		n, err := unix.Pwrite(fd, p, off)
		if err == nil && n != len(p) {
			err = io.ErrShortWrite
		}
		return err
	})
}

const stormSize = 40_000

// stormBlock is a whole block; all its versions are the same.
var stormBlock = pattern("storm", stormSize)

// oracle is what the writer of halves tells its readers, by a mapping that is not of kvfs: a number
// for each name that changes with each step. The last bits are the step.
type oracle []byte

const (
	stepOther = iota
	stepHalf  // a byte was written, and the file is not closed
	stepWhole // the file was closed
	stepGrows // a call is under way that makes a file larger
	steps
)

// newOracle makes the file of an oracle, which every user may map.
func newOracle(t testing.TB) string {
	t.Helper()
	f, err := os.CreateTemp("", "kvfs-test-oracle")
	must(t, "oracle", err)
	t.Cleanup(func() { os.Remove(f.Name()) })
	must(t, "oracle", errors.Join(f.Truncate(4096), f.Chmod(0o666), f.Close()))
	return f.Name()
}

// mapOracle maps an oracle for the test itself.
func mapOracle(t testing.TB, path string) oracle {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, "oracle", err)
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, rwMap, unix.MAP_SHARED)
	must(t, "oracle", err)
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// openOracle maps the file in which an oracle is.
func (s *storm) openOracle(path string) oracle {
	if s.oracle != nil {
		return s.oracle
	}
	fd := s.open(path, rdwr)
	s.do("mmap of the oracle", func() (err error) {
		s.oracle, err = unix.Mmap(fd, 0, 4096, rwMap, unix.MAP_SHARED)
		return err
	})
	return s.oracle
}

func (o oracle) of(i int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&o[8*i])) }

// next goes on to a step.
func (o oracle) next(i int, step uint32) {
	n := o.of(i)
	n.Store((n.Load()/steps+1)*steps + step)
}

const stormNames = 4

// writeHalves makes files empty and writes them anew in two steps. args: a directory, the oracle.
func writeHalves(s *storm) {
	o, i := s.openOracle(s.args[1]), s.rnd.IntN(stormNames)
	p := filepath.Join(s.args[0], fmt.Sprint(i))
	o.next(i, stepOther)
	if fd := s.open(p, wronly|creat|trunc); fd >= 0 { // touch, or : >
		unix.Close(fd)
	}
	fd := s.open(p, wronly|creat|trunc)
	if fd < 0 {
		return
	}
	half := s.rnd.IntN(stormSize-2) + 1
	if s.rnd.IntN(2) == 0 {
		s.do("ftruncate", func() error { return unix.Ftruncate(fd, int64(half)) })
	}
	s.write(fd, stormBlock[:half], 0)
	o.next(i, stepHalf)
	for range s.rnd.IntN(2000) {
		runtime.Gosched()
	}
	o.next(i, stepOther)
	s.write(fd, stormBlock[half:], int64(half))
	s.do("close", func() error { return unix.Close(fd) })
	o.next(i, stepWhole)
}

// readHalves reads files by name: a file opened while there is a half has no byte. args: a directory, the oracle.
func readHalves(s *storm) {
	o, i := s.openOracle(s.args[1]), s.rnd.IntN(stormNames)
	p := filepath.Join(s.args[0], fmt.Sprint(i))
	var st unix.Stat_t
	before := o.of(i).Load()
	b := make([]byte, stormSize+1)
	n := 0
	fd := s.open(p, rdonly, unix.ENOENT)
	if fd >= 0 {
		s.do("fstat", func() error { return unix.Fstat(fd, &st) })
		s.do("pread", func() (err error) { n, err = unix.Pread(fd, b, 0); return err })
		unix.Close(fd)
	}
	if o.of(i).Load() != before {
		return
	}
	switch step := before % steps; {
	case step == stepHalf && fd >= 0 && st.Size != 0:
		s.met("fstat of a half: size %d, read %d, inode %d", st.Size, n, st.Ino)
	case step == stepHalf && n != 0:
		s.met("read of a half")
	case step == stepWhole && fd < 0:
		s.met("a block that was closed is absent")
	case step == stepWhole && (st.Size != stormSize || !bytes.Equal(b[:n], stormBlock)):
		s.met("a block that was closed is not whole: size %d, read %d", st.Size, n)
	}
}

// readSizes checks that the size of fstat can be read and mapped, because files only grow in this storm. It does not
// map a size that comes while a call makes the file grow: FUSE tells the new size before the kernel has it for
// mappings, which is when that call returns. args: a directory, the names, the oracle.
func readSizes(s *storm) {
	o, names := s.openOracle(s.args[2]), strings.Split(s.args[1], ",")
	fd := s.open(filepath.Join(s.args[0], names[s.rnd.IntN(len(names))]), rdonly, unix.ENOENT)
	if fd < 0 {
		return
	}
	defer unix.Close(fd)
	for range 4 {
		var st unix.Stat_t
		before := o.of(0).Load()
		s.do("fstat", func() error { return unix.Fstat(fd, &st) })
		grows := before%steps == stepGrows || o.of(0).Load() != before
		if st.Size == 0 {
			continue
		}
		b := make([]byte, st.Size)
		n := 0
		s.do("pread", func() (err error) { n, err = unix.Pread(fd, b, 0); return err })
		if n != len(b) {
			s.met("read gives less than fstat said")
		}
		if grows {
			continue
		}
		var m []byte
		if s.do("mmap", func() (err error) {
			m, err = unix.Mmap(fd, 0, len(b), unix.PROT_READ, unix.MAP_SHARED)
			return err
		}) != nil {
			continue
		}
		if !touch(m) {
			s.met("SIGBUS below the size that fstat said")
		}
		unix.Munmap(m)
	}
}

// touch reads each page and reports whether there was no SIGBUS.
func touch(m []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() == nil }()
	sum := byte(0)
	for i := 0; i < len(m); i += 4096 {
		sum += m[i]
	}
	runtime.KeepAlive(sum)
	return true
}

// writeShared writes one temporary name, and renames, removes or leaves it. args: a directory, and
// a number of the process.
func writeShared(s *storm) {
	p := filepath.Join(s.args[0], fmt.Sprintf("w%d.tmp", s.rnd.IntN(2)))
	fd := s.open(p, wronly|creat|trunc)
	if fd < 0 {
		return
	}
	s.write(fd, stormBlock, 0)
	early := s.rnd.IntN(3) == 0
	if !early {
		unix.Close(fd)
	}
	switch s.rnd.IntN(6) {
	case 0, 1, 2:
		s.do("rename", func() error {
			return unix.Rename(p, filepath.Join(s.args[0], fmt.Sprint("w", s.args[1], s.rnd.IntN(2))))
		}, unix.ENOENT)
	case 3:
		s.do("unlink", func() error { return unix.Unlink(p) }, unix.ENOENT)
	}
	if early {
		unix.Close(fd)
	}
}

// TestWritingStorm is the races of rules 2 and 3.
func TestWritingStorm(t *testing.T) { onStages(t, stormActs) }

var stormActs = []act{
	{"nobody meets a half of a file that was empty", func(t *testing.T, s *stage) {
		o := newOracle(t)
		s.blow(nil, []string{halfWriter, s.dir, o}, []string{halfReader, s.dir, o}, []string{halfReader, s.dir, o})
	}},
	{"size, bytes and mapping agree while the file is written first", func(t *testing.T, s *stage) {
		a := s.actor()
		file := newOracle(t)
		o := mapOracle(t, file)
		growing := func(call func()) {
			o.next(0, stepGrows)
			call()
			o.next(0, stepOther)
		}
		i := 0
		s.blow(func() {
			for _, name := range []string{"x", "x.tmp", "x.lock"} {
				p := s.path(name)
				wantErrno(t, "unlink", a.Unlink(p), nil, unix.ENOENT)
				must(t, "touch", a.WriteFile(p, nil))
				fd := s.open(a, p, []int{rdwr, wronly | creat | trunc}[i%2])
				i++
				growing(func() { must(t, "ftruncate", a.Ftruncate(fd, 10_000)) })
				growing(func() { s.pwrite(a, fd, stormBlock, 0) })
				growing(func() { must(t, "ftruncate", a.Ftruncate(fd, mib)) })
				must(t, "close", a.Close(fd))
			}
		}, []string{sizeReader, s.dir, "x,x.tmp,x.lock", file}, []string{sizeReader, s.dir, "x,x.tmp,x.lock", file})
	}},
	{"writers of one temporary name leave no descriptor, no byte and no directory", func(t *testing.T, s *stage) {
		s = s.own()
		s.process()
		must(t, "warm up", s.process().WriteFile(s.path("warm.tmp"), stormBlock))
		must(t, "warm up", s.process().Unlink(s.path("warm.tmp")))
		before := s.status().Tier(t, "memory")
		fds := descriptors(t, s.d)
		dir := s.path("dir")
		must(t, "mkdir", s.process().Mkdir(dir, 0o777))
		s.blow(func() { // one more that dies in the middle
			a := s.actor()
			fd := s.open(a, filepath.Join(dir, "w0.tmp"), wronly|creat|trunc)
			s.pwrite(a, fd, stormBlock, 0)
			a.Kill()
		}, []string{sharedWriter, dir, "a"}, []string{sharedWriter, dir, "b"})
		if out, code := s.script("rm -rf " + dir); code != 0 {
			t.Errorf("rm -rf: exit code %d, %s", code, out)
		}
		wantAbsent(t, s.process(), dir)
		s.wantFreed(before.UsedBytes, before.PinnedBytes, fds)
	}},
}

// wantFreed fails unless the mount comes to hold no more than before. Descriptors of a few requests
// and of the SSD may differ.
func (s *stage) wantFreed(used, pinned int64, fds int) {
	s.t.Helper()
	var now harness.TierStatus
	n := 0
	freed := func() bool {
		now, n = s.status().Tier(s.t, "memory"), descriptors(s.t, s.d)
		return now.UsedBytes <= used && now.PinnedBytes <= pinned && n <= fds+8
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(harness.Deadline / 6); !freed() && time.Now().Before(deadline); {
		<-tick.C
	}
	if !freed() {
		s.t.Errorf("used %d bytes, pinned %d, %d descriptors; before: %d, %d, %d", now.UsedBytes, now.PinnedBytes, n, used, pinned, fds)
	}
}
