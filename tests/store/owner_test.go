package store

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// owner is a process of kvfs serve.
type owner struct {
	socket string
	pid    int

	tb     testing.TB
	flags  []string
	logs   string
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has been waited for
}

// serve starts an owner and waits until mounts can attach. It ends with the test.
func serve(tb testing.TB, flags ...string) *owner {
	tb.Helper()
	o := newOwner(tb, flags...)
	o.start()
	return o
}

func newOwner(tb testing.TB, flags ...string) *owner {
	tb.Helper()
	harness.KvfsOnly(tb, "no owner to start")
	harness.NeedFuse(tb)
	if os.Geteuid() != 0 {
		harness.Skip(tb, "needs root, to mount without fusermount3")
	}
	dir, err := harness.ProcessDir("store")
	if err != nil {
		tb.Fatal(err)
	}
	memory, err := harness.MemoryDir("store")
	if err != nil {
		tb.Fatal(err)
	}
	o := &owner{tb: tb, socket: filepath.Join(dir, "run", "store.sock"), logs: filepath.Join(dir, "log")}
	o.flags = append([]string{"serve", "--ready-fd", "3", "--memory-size", "64MiB", "--memory-dir", memory, "--store-socket", o.socket}, flags...)
	tb.Cleanup(func() {
		if o.running() {
			o.stop()
		}
		if log := o.log(); tb.Failed() {
			tb.Logf("log of the owner:\n%s", log)
		} else if strings.Contains(log, "panic: ") || strings.Contains(log, "DATA RACE") {
			tb.Errorf("log of the owner:\n%s", log)
		}
		for _, point := range harness.MountPoints(memory) { // of an owner that was killed
			if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
				tb.Error(err)
			}
		}
		if err := errors.Join(os.RemoveAll(memory), os.RemoveAll(dir)); err != nil {
			tb.Error(err)
		}
	})
	return o
}

// start starts the owner, also one that has ended.
func (o *owner) start() {
	o.tb.Helper()
	if line, err := o.launch(); err != nil {
		o.tb.Fatalf("the owner is not ready: %v\n%s", err, o.log())
	} else if line != "ready "+o.socket+"\n" {
		o.tb.Fatalf("the owner said %q", line)
	}
}

// launch starts the owner and returns the line that it prints when it is ready.
func (o *owner) launch() (line string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	log, err := os.OpenFile(o.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.Command(harness.Binary(o.tb), o.flags...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return "", err
	}
	o.cmd, o.pid, o.exited = cmd, cmd.Process.Pid, make(chan struct{})
	go func(exited chan struct{}) { // ends with the owner
		cmd.Wait()
		close(exited)
	}(o.exited)
	r.SetReadDeadline(time.Now().Add(harness.Deadline))
	return bufio.NewReader(r).ReadString('\n')
}

func (o *owner) running() bool {
	if o.cmd == nil {
		return false
	}
	select {
	case <-o.exited:
		return false
	default:
		return true
	}
}

// kill ends the owner as a crash would.
func (o *owner) kill() {
	unix.Kill(o.pid, unix.SIGKILL)
	<-o.exited
}

// stop asks the owner to end and returns its exit code.
func (o *owner) stop() int {
	o.tb.Helper()
	unix.Kill(o.pid, unix.SIGTERM)
	select {
	case <-o.exited:
	case <-time.After(harness.Deadline):
		unix.Kill(o.pid, unix.SIGQUIT)
		<-o.exited
		o.tb.Errorf("the owner did not stop within %v\n%s", harness.Deadline, o.log())
	}
	return o.cmd.ProcessState.ExitCode()
}

func (o *owner) log() string {
	text, _ := os.ReadFile(o.logs)
	return string(text)
}

// options are those of a mount that attaches to the owner.
func (o *owner) options(flags ...string) harness.Options {
	return harness.Options{
		MemorySize: "-", Flags: append([]string{"--mode", "standalone-store", "--store-socket", o.socket}, flags...),
	}
}

// patient are the flags of a mount whose operations wait for the next owner as long as a test does.
var patient = []string{"--store-owner-timeout", "300s"}

// mount mounts and attaches.
func (o *owner) mount(flags ...string) *harness.Daemon {
	o.tb.Helper()
	return harness.Mount(o.tb, o.options(flags...))
}

// status asks over the socket.
func (o *owner) status() harness.Status {
	o.tb.Helper()
	return harness.StatusOf(o.tb, "--store", o.socket)
}

// block returns the bytes of block i.
func block(i int) []byte {
	b := make([]byte, 64<<10)
	for j := range b {
		b[j] = byte(i*31 + j + j>>8)
	}
	return b
}

// write commits block i below a mount as an engine does: a temporary file, then rename.
func write(tb testing.TB, d *harness.Daemon, i int) {
	tb.Helper()
	name := d.Path("g", fmt.Sprintf("%04d", i))
	if err := os.MkdirAll(d.Path("g"), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(name+".tmp", block(i), 0o644); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		tb.Fatal(err)
	}
}

// check reads block i.
func check(tb testing.TB, d *harness.Daemon, i int) {
	tb.Helper()
	got, err := os.ReadFile(d.Path("g", fmt.Sprintf("%04d", i)))
	if err != nil {
		tb.Errorf("block %d: %v", i, err)
	} else if string(got) != string(block(i)) {
		tb.Errorf("block %d: wrong bytes", i)
	}
}
