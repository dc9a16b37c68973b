package fs

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/mem"
)

// ownerEnv makes this test program an owner: see owner.
const (
	ownerEnv = "KVFS_TEST_OWNER"
	epochEnv = "KVFS_TEST_OWNER_EPOCH"
	initEnv  = "KVFS_TEST_OWNER_INIT"
)

// owner answers the mount of which it has the files, from a store at the path in its
// environment, until it is killed. It prints what the next owner has to know, and that a
// client has opened the control file stuck, which it never answers.
func owner() {
	dir := os.Getenv(ownerEnv)
	mounts := &Mounts{}
	engine, err := openShared(context.Background(), mounts, mem.Options{ID: "takeover", Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	o := attachOptions()
	o.Control = []control.File{{Name: "stuck", Text: func() []byte {
		fmt.Println("stuck")
		select {}
	}}}
	x := &device.Session{Dir: "test", Dev: os.NewFile(3, "dev"), Spin: os.NewFile(4, "spin"), Proc: os.NewFile(5, "proc")}
	if _, err := fmt.Sscan(os.Getenv(epochEnv), &x.Epoch); err != nil {
		fmt.Println(err)
		return
	}
	if x.Init, err = hex.DecodeString(os.Getenv(initEnv)); err != nil || len(x.Init) == 0 {
		x.Init = nil
	}
	s, err := Attach(engine, mounts, x, o)
	if err == nil {
		err = x.Close()
	}
	if err == nil && s.ReadPath() != "passthrough" {
		err = errors.New("no passthrough: " + s.PathReason())
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(hex.EncodeToString(s.SessionInit()))
	s.Wait()
}

// testOwner is an owner in a process of its own.
type testOwner struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *bufio.Reader
	init []byte
	gone *os.File // at its end when the owner has closed all files
}

func startOwner(t *testing.T, x *device.Session, store string) *testOwner {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ownerEnv+"="+store, fmt.Sprint(epochEnv, "=", x.Epoch), initEnv+"="+hex.EncodeToString(x.Init))
	cmd.Stderr = os.Stderr
	gone, life, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { gone.Close() })
	cmd.ExtraFiles = []*os.File{x.Dev, x.Spin, x.Proc, life}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	err = startFromThread(t, cmd)
	life.Close()
	must(t, err)
	o := &testOwner{t: t, cmd: cmd, out: bufio.NewReader(out), gone: gone}
	t.Cleanup(func() {
		cmd.Process.Kill()
		if t.Failed() {
			abortSessions()
		}
		cmd.Wait()
	})
	line := o.says()
	if o.init, err = hex.DecodeString(line); err != nil {
		t.Skipf("no owner: %s", line)
	}
	return o
}

// says returns the next line.
func (o *testOwner) says() string {
	o.t.Helper()
	line, err := o.out.ReadString('\n')
	if err != nil {
		o.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// stop returns when no thread of the owner runs any more.
func (o *testOwner) stop() {
	o.t.Helper()
	if err := o.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		o.t.Fatal(err)
	}
	err := error(unix.EINTR)
	for err == unix.EINTR {
		err = unix.Waitid(unix.P_PID, o.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// kill returns when the owner has closed all files. The process may stay for a little longer:
// the thread of notices ends when no client has what it waits for.
func (o *testOwner) kill() {
	o.t.Helper()
	if err := o.cmd.Process.Kill(); err != nil {
		o.t.Fatal(err)
	}
	if n, err := o.gone.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		o.t.Fatal(n, err)
	}
}

// waiting waits until the kernel has that many requests of a mount, or more, that are not
// answered.
func waiting(t *testing.T, dir string, want int) {
	t.Helper()
	connections := t.TempDir()
	if err := unix.Mount("none", connections, "fusectl", 0, ""); err != nil {
		t.Skipf("nobody tells how many requests wait: %v", err)
	}
	defer unix.Unmount(connections, unix.MNT_DETACH)
	m, err := device.TopMount(dir)
	if m == nil {
		t.Fatalf("nothing is mounted at %s, %v", dir, err)
	}
	waitFor(t, func() string {
		n, err := os.ReadFile(filepath.Join(connections, strconv.Itoa(m.Minor), "waiting"))
		must(t, err)
		if got, err := strconv.Atoi(strings.TrimSpace(string(n))); err != nil || got >= want {
			return ""
		}
		return fmt.Sprintf("%s requests wait, want %d", n, want)
	})
}

// TestTakeover: an owner is killed while clients wait for answers to requests that it
// has read, and to others that it has not; the next owner, with what the first one left in
// memory, answers all of them. Blocks that are open are read meanwhile and after; what was
// being written is not committed, and its writer learns of it, but under a temporary name, which
// stays and can be renamed; a client inside a directory has to enter it again; evicted blocks of
// the first owner leave memory.
func TestTakeover(t *testing.T) {
	x := openSession(t)
	if x.Spin == nil || x.Proc == nil {
		t.Skip("the kernel has no clones")
	}
	store := filepath.Join(t.TempDir(), "memory")
	t.Cleanup(func() { unix.Unmount(store, unix.MNT_DETACH) }) // of an owner that has no heir
	first := startOwner(t, x, store)
	block, stuck := filepath.Join(x.Dir, "group", "block"), filepath.Join(x.Dir, ".kvfs", "stuck")

	reader, writer, inside, asker, late := startClient(t), startClient(t), startClient(t), startClient(t), startClient(t)
	renames := startClient(t)
	quiet := filepath.Join(x.Dir, "group", "quiet")
	reader.do("write", quiet)
	reader.do("stat", quiet)
	reader.do("write", block)
	reader.do("read", block)
	reader.do("open", block)
	writer.do("create", filepath.Join(x.Dir, "group", "half"))
	writer.do("write-held", "")
	renames.do("create", filepath.Join(x.Dir, "group", "whole.tmp"))
	renames.do("write-held", "")
	inside.do("chdir", filepath.Join(x.Dir, "group"))
	asker.begin("get", "fresh "+stuck)
	if got := first.says(); got != "stuck" {
		t.Fatal(got)
	}
	first.stop()
	late.begin("read", filepath.Join(x.Dir, "group", "..", "group", "block"))
	reader.begin("fails", filepath.Join(x.Dir, "absent"))
	waiting(t, x.Dir, 3)
	first.kill()
	waiting(t, x.Dir, 3) // nobody got an answer by that

	mounts := &Mounts{}
	engine := sharedEngine(t, mounts, mem.Options{ID: "takeover", Dir: store})
	o := attachOptions()
	o.Control = []control.File{{Name: "stuck", Text: o.Status}}
	x.Epoch, x.Init = 2, first.init
	s, err := Attach(engine, mounts, x, o)
	must(t, err)
	t.Cleanup(s.Detach)
	asker.end("ok")
	late.end("ok")
	reader.end("ok")
	if s.ReadPath() != "passthrough" {
		t.Errorf("no passthrough: %s", s.PathReason())
	}
	reader.do("read-held", "")
	reader.do("close-held", "")
	before := s.Ops()
	reader.do("read", block)
	if got := since(s, before); got["OPEN"] == 0 || got["READ"] != 0 {
		t.Errorf("a read after the takeover: requests %v", got)
	}

	before = s.Ops()
	reader.do("stat", quiet)
	if got := since(s, before); got["LOOKUP"] == 0 {
		t.Errorf("the kernel believes what an earlier owner said of names: requests %v", got)
	}

	writer.do("write-held", "")
	writer.begin("close-held", "")
	writer.end("close " + filepath.Join(x.Dir, "group", "half") + ": input/output error")
	writer.do("fails", filepath.Join(x.Dir, "group", "half"))

	renames.do("close-held", "")
	renames.do("rename", filepath.Join(x.Dir, "group", "whole.tmp")+" "+filepath.Join(x.Dir, "group", "whole"))
	late.do("read", filepath.Join(x.Dir, "group", "whole"))

	inside.begin("stat", "block")
	inside.end("stale file handle")
	inside.do("chdir", filepath.Join(x.Dir, "group"))
	inside.do("read", "block")
	inside.do("write", filepath.Join(x.Dir, "group", "after"))
	inside.do("rename", "after moved")
	late.do("read", filepath.Join(x.Dir, "group", "moved"))

	freed(t, engine, store, s)
	late.do("fails", block)
}

// freed evicts all there is, and waits until nothing of it is in the memory of a store.
func freed(t *testing.T, engine *tiers.Engine, store string, s *Server) {
	t.Helper()
	waitFor(t, func() string {
		if _, err := engine.EvictFrom(t.Context(), tiers.EvictRequest{Tier: "memory", All: true, Force: true}); err != nil {
			t.Fatal(err)
		}
		var fs unix.Statfs_t
		must(t, unix.Statfs(store, &fs))
		used := int64(fs.Blocks-fs.Bfree) * fs.Bsize
		if used < int64(len(clientBytes)) && engine.Stats().PinnedBytes == 0 {
			return ""
		}
		return fmt.Sprintf("%d bytes in memory, %+v", used, engine.Stats())
	})
	s.files.kernel.Flush(t.Context())
}
