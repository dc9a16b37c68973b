package fs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/mem"
)

// clientEnv makes this test program a client: see client.
const clientEnv = "KVFS_TEST_CLIENT"

// The first thread stays with TestMain: /proc/self is its view of the descriptors, and that of
// notices has another one, see package device.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	answerTime = 2 * time.Second // no client here takes long, and tests wait for it
	if os.Getenv(clientEnv) != "" {
		client()
		return
	}
	if os.Getenv(ownerEnv) != "" {
		owner()
		return
	}
	os.Exit(m.Run())
}

// client does what its input says, a command a line, and answers each with one
// line. It is another process because one that serves a mount must not wait for
// it.
func client() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		op, path, _ := strings.Cut(in.Text(), " ")
		if err := clientOp(op, path); err != nil {
			fmt.Println(err)
		} else {
			fmt.Println("ok")
		}
	}
}

var clientBytes = bytes.Repeat([]byte("kvfs"), 64<<10/4)

func clientOp(op, path string) error {
	switch op {
	case "write":
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, clientBytes, 0o644)
	case "stat":
		var st unix.Stat_t
		return unix.Stat(path, &st)
	case "read":
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		buf := make([]byte, len(clientBytes)+1)
		n, err := unix.Read(fd, buf)
		unix.Close(fd)
		if err == nil && !bytes.Equal(buf[:n], clientBytes) {
			err = io.ErrUnexpectedEOF
		}
		return err
	case "reads":
		count, path, _ := strings.Cut(path, " ")
		n, err := strconv.Atoi(count)
		for ; n > 0 && err == nil; n-- {
			err = clientOp("read", path)
		}
		return err
	case "chdir":
		return os.Chdir(path)
	case "fails":
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil {
			return fmt.Errorf("stat %s succeeds", path)
		}
		return nil
	case "end-first-thread": // which is this one, see init
		go client() // lives as long as the process
		_, _, err := unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
		return err
	case "evict":
		return clientEvict(path)
	case "evict-slow":
		return clientEvictSlow(path)
	}
	return clientHeldOp(op, path)
}

// testClient is a running client.
type testClient struct {
	t    testing.TB
	in   io.Writer
	out  *bufio.Reader
	kill func()
	pid  uint32
}

// clientTime is how long a client may take for all that it does.
const clientTime = 3 * time.Minute

// startClient starts a client that dies with the test, and after clientTime at the
// latest, so that a mount that does not answer fails the test.
func startClient(t testing.TB) *testClient {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), clientEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, startFromThread(t, cmd))
	limit := time.AfterFunc(clientTime, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		limit.Stop()
		in.Close()
		cmd.Process.Kill()
		if t.Failed() {
			abortSessions()
		}
		cmd.Wait()
	})
	return &testClient{t, in, bufio.NewReader(out), func() { cmd.Process.Kill() }, uint32(cmd.Process.Pid)}
}

// startFromThread starts a command that dies with the thread that started it, from one that
// lives as long as the test: that of notices ends with its mount.
func startFromThread(t testing.TB, cmd *exec.Cmd) error {
	started := make(chan error)
	go func() { // ends with the test
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-t.Context().Done()
	}()
	return <-started
}

func (c *testClient) do(op, path string) {
	c.t.Helper()
	c.begin(op, path)
	c.end("ok")
}

// begin has the client do something and does not wait for it.
func (c *testClient) begin(op, path string) { fmt.Fprintln(c.in, op, path) }

// end waits for the end of what the client does, and for one of the answers want.
func (c *testClient) end(want ...string) {
	c.t.Helper()
	if line, err := c.out.ReadString('\n'); err != nil || !slices.Contains(want, strings.TrimSuffix(line, "\n")) {
		c.t.Fatalf("a client answers %q, %v; want %q", line, err, want)
	}
}

// mountHere mounts an engine in this process. It skips the test where that, or
// passthrough, is not possible.
func mountHere(t testing.TB) (*Server, string) {
	t.Helper()
	return mountHereWith(t, Options{})
}

// mountHereWith does so with some options set.
func mountHereWith(t testing.TB, o Options) (*Server, string) {
	t.Helper()
	s, err := mountOver(t, o, func(p driver.Primary) driver.Primary { return p })
	if err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	return s, s.opts.Dir
}

// mountOver mounts an engine over what wrap makes of a memory tier.
func mountOver(t testing.TB, o Options, wrap func(driver.Primary) driver.Primary) (*Server, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("passthrough needs root")
	}
	if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
		t.Skipf("/dev/fuse: %v", err)
	}
	dir := t.TempDir()
	memory := mem.Options{ID: filepath.Base(dir), Dir: filepath.Join(t.TempDir(), "memory")}
	engine, hooks := ownEngine(t, memory, wrap)
	o.Dir, o.EntryTimeout, o.AttrTimeout = dir, time.Hour, time.Hour
	o.Status = func() []byte { return []byte("{}\n") }
	s, err := Mount(engine, hooks, o)
	if err != nil {
		return nil, errors.Join(err, engine.Close(context.Background(), false))
	}
	t.Cleanup(func() {
		must(t, s.Unmount())
		s.Wait()
		must(t, engine.Close(context.Background(), false))
	})
	return s, nil
}

// TestHotRequests shows what a hot block costs: an open, read and close is one
// OPEN and the RELEASE that nobody waits for, the read and the close being the
// kernel's own business; a stat is nothing at all. It counts the requests that
// arrive here for another process.
func TestHotRequests(t *testing.T) {
	s, dir := mountHere(t)
	if s.ReadPath() != "passthrough" {
		t.Skipf("no passthrough: %s", s.PathReason())
	}
	c := startClient(t)
	path := filepath.Join(dir, "group", "block")
	c.do("write", path)
	c.do("read", path)
	released(t, s)

	const n = 20
	before := s.Ops()
	for range n {
		c.do("read", path)
	}
	released(t, s)
	if got, want := since(s, before), map[string]uint64{"OPEN": n, "RELEASE": n}; !maps.Equal(got, want) {
		t.Errorf("%d times open, read, close: got requests %v, want %v", n, got, want)
	}
	if got := s.Backings(); got != 1 {
		t.Errorf("%d backing files registered, want 1", got)
	}

	c.do("stat", path) // the reads changed the time of last access
	before = s.Ops()
	for range n {
		c.do("stat", path)
	}
	if got := since(s, before); len(got) != 0 {
		t.Errorf("%d times stat: got requests %v, want none", n, got)
	}
}

// since returns the requests that came after before.
func since(s *Server, before map[string]uint64) map[string]uint64 {
	diff := s.Ops()
	for op, n := range before {
		if diff[op] -= n; diff[op] == 0 {
			delete(diff, op)
		}
	}
	return diff
}

// released waits until every open file is released, which the kernel does some
// time after the close.
func released(t testing.TB, s *Server) {
	t.Helper()
	waitFor(t, func() string {
		if ops := s.Ops(); ops["RELEASE"] != ops["OPEN"]+ops["CREATE"] {
			return fmt.Sprintf("not released: %v", ops)
		}
		return ""
	})
}

// TestGiveUp gives up a mount that a client keeps alive, as a stop does, and lets the
// process open files after that, as the tiers do: neither the replies nor the
// requests of the mount may go through them, and the client gets an error.
func TestGiveUp(t *testing.T) {
	s, dir := mountHere(t)
	if s.files.splice {
		t.Skip("go-fuse reads the requests")
	}
	c := startClient(t)
	c.do("write", filepath.Join(dir, "group", "block"))
	c.do("chdir", filepath.Join(dir, "group"))
	must(t, s.Unmount())
	s.Close()
	content := bytes.Repeat([]byte("content "), 4096)
	var files []*os.File
	for i := range 16 {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i))
		must(t, os.WriteFile(path, content, 0o600))
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer file.Close()
		files = append(files, file)
	}
	c.do("fails", "block-that-was-never-looked-up")
	s.Wait()
	for _, file := range files {
		if off, err := file.Seek(0, io.SeekCurrent); off != 0 || err != nil {
			t.Errorf("%s was read up to %d: %v", file.Name(), off, err)
		}
		if got, err := os.ReadFile(file.Name()); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes, %v, and not what was written", file.Name(), len(got), err)
		}
	}
}
