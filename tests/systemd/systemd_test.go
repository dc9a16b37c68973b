// Package systemd runs the units of deploy under a real systemd: process 1 of name spaces of its own, with a control
// group of its own, and nothing but these units.
package systemd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// Helpers: a machine is a process in a mount name space with the control group, and its child, which becomes systemd.
const (
	machineHelper = "systemd-machine"
	bootHelper    = "systemd-boot"
)

func TestMain(m *testing.M) {
	harness.Helper(machineHelper, machineMain)
	harness.Helper(bootHelper, bootMain)
	os.Exit(harness.Main(m))
}

const program = "/usr/lib/systemd/systemd"

// groupPrefix is how the names of the control groups begin; the rest is the process that made it.
const groupPrefix = "kvfs-test-systemd-"

// machineMain makes a control group and starts bootMain in it, as process 1. It prints its number. args: the kvfs
// binary, the directory of the units.
func machineMain(args []string) int {
	err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "")
	if err != nil {
		fmt.Println("no cgroup2:", err)
		return 1
	}
	sweepGroups()
	group := filepath.Join("/sys/fs/cgroup", groupPrefix+strconv.Itoa(os.Getpid()))
	defer removeGroup(group)
	if err := errors.Join(os.Mkdir(group, 0o755), os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0o644)); err != nil {
		fmt.Println("control group:", err)
		return 1
	}
	defer os.WriteFile("/sys/fs/cgroup/cgroup.procs", []byte("0"), 0o644) // leave it, so that it can be removed
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "KVFS_TEST_HELPER="+bootHelper)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		fmt.Println("start:", err)
		return 1
	}
	fmt.Println("pid", cmd.Process.Pid)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // with all of its name space
	return 0
}

// sweepGroups removes the control groups of dead processes.
func sweepGroups() {
	groups, _ := filepath.Glob("/sys/fs/cgroup/" + groupPrefix + "*") // the pattern is valid
	for _, g := range groups {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(g), groupPrefix))
		if err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			removeGroup(g)
		}
	}
}

// removeGroup removes a control group with those below it.
func removeGroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	if err := os.Remove(dir); err != nil {
		fmt.Fprintln(os.Stderr, "control group:", err)
	}
}

// bootMain makes the file systems of a machine and becomes systemd.
func bootMain(args []string) int {
	mount := func(err error, kind, dir string) error {
		if err == nil {
			err = os.MkdirAll(dir, 0o755)
		}
		if err == nil {
			err = unix.Mount(kind, dir, kind, 0, "")
		}
		return err
	}
	kvfs, err := os.ReadFile(args[0])
	units, globErr := filepath.Glob(filepath.Join(args[1], "*.service"))
	texts := map[string][]byte{}
	for _, name := range units {
		text, readErr := os.ReadFile(name)
		texts[filepath.Base(name)], err = text, errors.Join(err, readErr)
	}
	err = errors.Join(err, globErr, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH)) // that of machineMain
	for _, m := range [][2]string{
		{"proc", "/proc"}, {"cgroup2", "/sys/fs/cgroup"}, {"tmpfs", "/run"}, {"tmpfs", "/etc/systemd/system"}, {"tmpfs", "/mnt"},
		{"tmpfs", "/usr/local/bin"}, {"tmpfs", "/srv"},
	} {
		err = mount(err, m[0], m[1])
	}
	write := func(name string, text []byte, mode os.FileMode) {
		if err == nil {
			err = os.WriteFile(name, text, mode)
		}
	}
	write("/srv/kvfs.yaml", []byte("version: 1\nmemory: {size: 64MiB, keep: true}\n"), 0o644)
	write("/usr/local/bin/kvfs", kvfs, 0o755)
	for name, text := range texts {
		// The machine has no other units, and no /etc/kvfs of its own.
		own := strings.ReplaceAll(string(text), "/etc/kvfs/kvfs.yaml", "/srv/kvfs.yaml")
		write("/etc/systemd/system/"+name, []byte(strings.Replace(own, "[Unit]\n", "[Unit]\nDefaultDependencies=no\n", 1)), 0o644)
	}
	write("/etc/systemd/system/kvfs-test.target", []byte("[Unit]\nDefaultDependencies=no\n"), 0o644)
	if err = errors.Join(err, os.MkdirAll("/mnt/kv", 0o755)); err == nil {
		err = unix.Exec(program, []string{program, "--system", "--unit=kvfs-test.target", "--log-target=console"}, []string{"container=test", "PATH=/usr/bin:/bin"})
	}
	fmt.Fprintln(os.Stderr, "boot:", err)
	return 1
}

// machine is a running systemd.
type machine struct {
	tb  testing.TB
	pid int
}

// boot starts a machine, which ends with the test. It skips the test where there is no systemd or no way to run it.
func boot(t *testing.T) *machine {
	t.Helper()
	harness.KvfsOnly(t, "no units")
	harness.NeedFuse(t)
	if os.Geteuid() != 0 {
		harness.Skip(t, "needs root, to run systemd")
	}
	for _, name := range []string{program, "/usr/bin/systemctl", "/usr/bin/nsenter"} {
		if _, err := os.Stat(name); err != nil {
			harness.Skip(t, "no %s", name)
		}
	}
	units, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	p := harness.StartHelper(t, harness.ProcessOptions{Unshare: unix.CLONE_NEWNS}, machineHelper, harness.Binary(t), units)
	t.Cleanup(func() {
		p.Stdin.Close()
		p.Wait()
	})
	m := &machine{tb: t}
	if n, err := fmt.Fscanf(p.Stdout, "pid %d\n", &m.pid); n != 1 {
		harness.Skip(t, "no control group for systemd: %v", err)
	}
	harness.Poll(t, "systemd answers", func() bool { _, err := m.run("systemctl", "is-active", "kvfs-test.target"); return err == nil })
	return m
}

// run runs a command in the machine.
func (m *machine) run(args ...string) (string, error) {
	enter := []string{"-t", strconv.Itoa(m.pid), "-p", "-m", "-C", "-n", "-i", "-u"}
	cmd := exec.CommandContext(m.tb.Context(), "/usr/bin/nsenter", append(enter, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SYSTEMD_PAGER="}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// must is run for what must work.
func (m *machine) must(args ...string) string {
	m.tb.Helper()
	out, err := m.run(args...)
	if err != nil {
		m.tb.Fatalf("%q: %v: %s", args, err, out)
	}
	return out
}

// show returns a property of a unit.
func (m *machine) show(unit, property string) string {
	m.tb.Helper()
	return m.must("systemctl", "show", "--value", "-p", property, unit)
}

// TestUnits shows both units under systemd: they become ready, are started again after a crash with the blocks, stop
// cleanly, and kvfs.service reloads by a takeover, with the mount and the blocks.
func TestUnits(t *testing.T) {
	m := boot(t)
	for unit, status := range map[string]string{"kvfs-serve": "serving at /run/kvfs/0/store.sock", "kvfs": "mounted on /mnt/kv"} {
		m.must("systemctl", "start", unit)
		if got := m.show(unit, "StatusText"); got != status {
			t.Errorf("%s: status %q", unit, got)
		}
		if got := m.show(unit, "WatchdogUSec"); got != "1min" {
			t.Errorf("%s: watchdog %s", unit, got)
		}
		if unit == "kvfs" {
			m.must("cp", "/srv/kvfs.yaml", "/mnt/kv/block")
		}
		m.must("kill", "-9", m.show(unit, "MainPID"))
		harness.Poll(t, unit+" is started again", func() bool {
			return m.show(unit, "NRestarts") == "1" && m.show(unit, "ActiveState") == "active"
		})
		if unit == "kvfs" {
			m.must("cmp", "/srv/kvfs.yaml", "/mnt/kv/block")
			before := m.show(unit, "MainPID")
			m.must("systemctl", "reload", unit)
			if after := m.show(unit, "MainPID"); after == before || after == "0" {
				t.Errorf("main process %s before the reload, %s after it", before, after)
			}
			m.must("cmp", "/srv/kvfs.yaml", "/mnt/kv/block")
		}
		m.must("systemctl", "stop", unit)
		if state, result := m.show(unit, "ActiveState"), m.show(unit, "Result"); state != "inactive" || result != "success" {
			t.Errorf("%s: %s, %s", unit, state, result)
		}
	}
}

// TestVerify shows that systemd understands every line of the units.
func TestVerify(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		harness.Skip(t, "no systemd-analyze")
	}
	dir := t.TempDir()
	for _, unit := range []string{"kvfs.service", "kvfs-serve.service"} {
		text, err := os.ReadFile(filepath.Join("../../deploy", unit))
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, unit)
		if err := os.WriteFile(at, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/kvfs", "/bin/true")), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("systemd-analyze", "verify", "--man=no", at).CombinedOutput(); err != nil || strings.Contains(string(out), unit+":") {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}
