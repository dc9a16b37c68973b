package mount

import (
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

// A storm is processes that write and read the same few names for a while. KVFS_STORM is for how many seconds; without it
// storms are short.

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

// sizeReader is a helper that works until its standard input ends, and then prints what it met.
const sizeReader = "storm-size-reader"

func init() { harness.Helper(sizeReader, stormMain(readSizes)) }

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

var stormBlock = pattern("storm", 40_000)

// oracle is what the writer tells its readers, by a mapping that is not of kvfs: a number that changes with each step. Its
// remainder by steps is the step.
type oracle []byte

const (
	stepOther = iota
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

func (o oracle) number() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&o[0])) }

// next goes on to a step.
func (o oracle) next(step uint32) { o.number().Store((o.number().Load()/steps+1)*steps + step) }

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
		before := o.number().Load()
		s.do("fstat", func() error { return unix.Fstat(fd, &st) })
		grows := before%steps == stepGrows || o.number().Load() != before
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

// TestWritingStorm is the races of files that are written first. TestKernelsStorm of package tiers has those of names.
func TestWritingStorm(t *testing.T) { onStages(t, stormActs) }

var stormActs = []act{
	{"size, bytes and mapping agree while the file is written first", func(t *testing.T, s *stage) {
		a := s.actor()
		file := newOracle(t)
		o := mapOracle(t, file)
		growing := func(call func()) {
			o.next(stepGrows)
			call()
			o.next(stepOther)
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
}
