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

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Helpers: a container is a process in mount and pid name spaces of its own, whose root has
// nothing but the programs, the directory of the socket and /dev/fuse.
const (
	containerHelper = "store-container"
	insideHelper    = "store-inside"
)

// containerMain makes the root of a container and runs insideMain in it, as process 1.
// args: an empty directory, the directory of the socket, the kvfs binary, what to do.
func containerMain(args []string) int {
	root := args[0]
	self, err := os.Readlink("/proc/self/exe") // which is of the name space that started this one
	if err == nil {
		err = unix.Mount("root", root, "tmpfs", 0, "size=1m,mode=755")
	}
	bind := func(from, to string) {
		if err != nil {
			return
		}
		to = filepath.Join(root, to)
		var st os.FileInfo
		if st, err = os.Stat(from); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				err = nil // not every machine has each of them
			}
			return
		}
		if err = os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return
		}
		if st.IsDir() {
			err = os.MkdirAll(to, 0o755)
		} else {
			err = os.WriteFile(to, nil, 0o755)
		}
		if err == nil {
			err = unix.Mount(from, to, "", unix.MS_BIND, "")
		}
	}
	for _, lib := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64"} { // of programs with the race detector
		bind(lib, lib)
	}
	bind("/dev/null", "/dev/null") // which every container has
	bind("/dev/fuse", "/dev/fuse")
	bind(args[1], "/run/kvfs")
	bind(args[2], "/kvfs")
	bind(self, "/test")
	for _, dir := range []string{"/proc", "/mnt", "/tmp"} {
		if err == nil {
			err = os.MkdirAll(filepath.Join(root, dir), 0o755)
		}
	}
	if err != nil {
		fmt.Println("container:", err)
		return 1
	}
	cmd := exec.Command("/test", args[3:]...)
	cmd.Env = append(os.Environ(), "KVFS_TEST_HELPER="+insideHelper)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", os.Stdout, os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Println("container:", err)
		return 1
	}
	return 0
}

// insideMain mounts in a container, reads block 1, which is there, writes block 2 as an engine
// does, with two descriptors, and stops the mount.
func insideMain([]string) int {
	if err := inside(); err != nil {
		fmt.Println("inside:", err)
		return 1
	}
	fmt.Println("inside: fine")
	return 0
}

func inside() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("pid %d", os.Getpid())
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command("/kvfs", "mount", "--mode", "standalone-store", "--store-socket", "/run/kvfs/store.sock", "--ready-fd", "3", "/mnt")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{w}, os.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "ready /mnt\n" {
		return fmt.Errorf("the mount said %q: %w", line, err)
	}
	got, err := os.ReadFile("/mnt/g/0001")
	if err != nil || string(got) != string(block(1)) {
		return fmt.Errorf("block 1: %d bytes, %w", len(got), err)
	}
	f, err := os.Create("/mnt/g/0002.tmp")
	if err != nil {
		return err
	}
	// A second descriptor of the same process: which process that is, the owner has to look up
	// in the pid name space of the mount.
	again, err := os.OpenFile("/mnt/g/0002.tmp", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("a second descriptor: %w", err)
	}
	if _, err := f.Write(block(2)); err != nil {
		return err
	}
	if err := errors.Join(again.Close(), f.Close(), os.Rename("/mnt/g/0002.tmp", "/mnt/g/0002")); err != nil {
		return err
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return cmd.Wait()
}

// TestContainer shows that a mount works in name spaces of its own, with the socket and
// /dev/fuse bound in and nothing else of the owner's (B1).
func TestContainer(t *testing.T) {
	o := serve(t)
	d := o.Attach()
	write(t, d, 1)
	root, err := harness.ProcessDir("root")
	must(t, err)
	defer os.Remove(root)
	for range 3 {
		out, stderr, code := harness.RunHelper(t, harness.ProcessOptions{Unshare: unix.CLONE_NEWNS},
			containerHelper, root, filepath.Dir(o.Socket), harness.Binary(t))
		if code != 0 || !strings.Contains(out, "inside: fine") {
			t.Fatalf("exit code %d\n%s%s", code, out, stderr)
		}
		check(t, d, 2)
	}
	harness.Poll(t, "the owner has let go", func() bool { return len(statusOf(t, o).Store.Mounts) == 1 })
}
