// Package netns makes networks of Linux network namespaces, in which daemons and their peers meet
// as on separate machines. It also breaks them: partitions, also in one direction, and links that
// are down.
//
// It changes nothing in the namespace of the caller. It needs root, ip and nft.
package netns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	prefix = "kvt-"       // of all names: kvt-<pid>-<network>-<node>
	dir    = "/run/netns" // where ip keeps its namespaces
	device = "eth0"       // of each node
	maxARP = 30           // nodes that ask each other's hardware addresses
)

// Net is a network of nodes, numbered from 0. A pair of veth joins two nodes; a bridge in a
// separate namespace joins more. Methods for different nodes may be called in parallel.
type Net struct {
	nodes  int
	name   string // prefix of the names of its namespaces
	subnet string // first three bytes of the addresses
}

// networks counts the networks of this process.
var networks atomic.Int32

// Lacks returns why New cannot work here; "" if no reason is known beforehand.
func Lacks() string {
	if os.Getuid() != 0 {
		return "network namespaces need root"
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is not installed"
		}
	}
	if _, err := os.Stat("/proc/self/ns/net"); err != nil {
		return fmt.Sprintf("no network namespaces: %v", err)
	}
	return ""
}

// New makes a network. The caller must close it.
func New(nodes int) (*Net, error) {
	if nodes < 2 || nodes > 200 {
		return nil, fmt.Errorf("network of %d nodes: want 2 to 200", nodes)
	}
	pid, number := os.Getpid(), networks.Add(1)
	n := &Net{nodes: nodes, name: fmt.Sprintf("%s%d-%d", prefix, pid, number)}
	// Networks cannot see each other; their addresses differ only for people.
	n.subnet = fmt.Sprintf("10.97.%d", (pid+int(number))%256)
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Net) build() error {
	for i := range n.nodes {
		if err := n.add(n.Name(i)); err != nil {
			return err
		}
	}
	if n.nodes == 2 {
		err := ip("-n", n.Name(0), "link", "add", device, "type", "veth", "peer", "name", device, "netns", n.Name(1))
		if err != nil {
			return err
		}
	} else if err := n.bridge(); err != nil {
		return err
	}
	for i := range n.nodes {
		err := errors.Join(
			ip("-n", n.Name(i), "address", "add", n.Addr(i)+"/24", "dev", device),
			ip("-n", n.Name(i), "link", "set", device, "up"),
			n.neighbours(i),
			n.rules(i))
		if err != nil {
			return err
		}
	}
	return nil
}

// add makes a namespace whose loopback works.
func (n *Net) add(name string) error {
	if err := ip("netns", "add", name); err != nil {
		return err
	}
	return ip("-n", name, "link", "set", "lo", "up")
}

// bridge joins the nodes in a separate namespace.
func (n *Net) bridge() error {
	hub := n.hub()
	err := n.add(hub)
	if err == nil {
		err = ip("-n", hub, "link", "add", "br0", "type", "bridge")
	}
	if err == nil {
		err = ip("-n", hub, "link", "set", "br0", "up")
	}
	for i := 0; i < n.nodes && err == nil; i++ {
		port := portName(i)
		err = ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", device, "address", hardware(i), "netns", n.Name(i))
		if err == nil {
			err = ip("-n", hub, "link", "set", port, "master", "br0", "up")
		}
	}
	return err
}

// neighbours tells a node of a large network the hardware addresses of the others. The kernel has one table of learned ones
// for all namespaces, of 1,024 by default.
func (n *Net) neighbours(i int) error {
	if n.nodes <= maxARP {
		return nil
	}
	var lines strings.Builder
	for j := range n.nodes {
		if j != i {
			fmt.Fprintf(&lines, "neigh add %s lladdr %s dev %s nud permanent\n", n.Addr(j), hardware(j), device)
		}
	}
	_, err := n.run(i, lines.String(), "ip", "-batch", "-")
	return err
}

// hardware returns the hardware address of a node.
func hardware(i int) string { return fmt.Sprintf("02:00:00:00:00:%02x", i) }

func (n *Net) hub() string { return n.name + "-hub" }

func portName(i int) string { return "port" + strconv.Itoa(i) }

// Name returns ip's name of a node's namespace.
func (n *Net) Name(i int) string { return fmt.Sprintf("%s-%d", n.name, i) }

// Path returns the file of a node's namespace, as for nsenter.
func (n *Net) Path(i int) string { return filepath.Join(dir, n.Name(i)) }

// Addr returns the IPv4 address of a node.
func (n *Net) Addr(i int) string { return fmt.Sprintf("%s.%d", n.subnet, i+1) }

// far returns the arguments of ip that name the other end of a node's link.
func (n *Net) far(i int) []string {
	if n.nodes == 2 {
		return []string{"-n", n.Name(1 - i), "link", "set", device}
	}
	return []string{"-n", n.hub(), "link", "set", portName(i)}
}

// LinkDown removes the carrier of a node's link.
func (n *Net) LinkDown(i int) error { return ip(append(n.far(i), "down")...) }

// LinkUp undoes LinkDown.
func (n *Net) LinkUp(i int) error { return ip(append(n.far(i), "up")...) }

// Close removes the network. Processes still in it keep their namespace until they end.
func (n *Net) Close() error {
	names := []string{n.hub()}
	for i := range n.nodes {
		names = append(names, n.Name(i))
	}
	var errs []error
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			errs = append(errs, ip("netns", "delete", name))
		}
	}
	return errors.Join(errs...)
}

// Sweep removes the networks of dead processes. Several processes may call it at once.
func Sweep() error {
	return sweep(func(pid int) bool { return unix.Kill(pid, 0) == unix.ESRCH })
}

// SweepOwn removes the namespaces of this process.
func SweepOwn() error {
	return sweep(func(pid int) bool { return pid == os.Getpid() })
}

// sweep removes the namespaces of some processes.
func sweep(of func(pid int) bool) error {
	found, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	errs := []error{err}
	for _, path := range found {
		name := filepath.Base(path)
		digits, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		pid, err := strconv.Atoi(digits)
		if err != nil || !of(pid) {
			continue
		}
		err = ip("netns", "delete", name)
		if _, gone := os.Lstat(path); errors.Is(gone, os.ErrNotExist) {
			err = nil // if not by this process, then by another
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Do calls fn with the thread of the calling goroutine in a node's namespace. Sockets and processes
// that fn makes stay there. They use the mounts of the caller. Goroutines that fn starts are not
// there.
func (n *Net) Do(i int, fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if err := enter(n.Path(i)); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() { // also when fn ends the goroutine, as a failing test does
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			panic(fmt.Sprintf("return from namespace %s: %v", n.Name(i), back)) // this thread must not go on
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

func enter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

// Run runs a command in a node's namespace and returns its output.
func (n *Net) Run(i int, name string, args ...string) (string, error) {
	return n.run(i, "", name, args...)
}

func (n *Net) run(i int, stdin, name string, args ...string) (out string, err error) {
	err = n.Do(i, func() error {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		out = stdout.String()
		if err != nil {
			return fmt.Errorf("%q in %s: %w\n%s%s", cmd.Args, n.Name(i), err, out, stderr.String())
		}
		return nil
	})
	return out, err
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
