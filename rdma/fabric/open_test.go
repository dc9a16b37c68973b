//go:build ofi && cgo

package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvfs/kvfs/rdma"
)

// fails checks an error of Open.
func fails(t *testing.T, what string, err error, unavailable bool, words ...string) {
	t.Helper()
	if err == nil || errors.Is(err, ErrUnavailable) != unavailable {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("%s: %v: says nothing of %q", what, err, w)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     Options
		words []string
	}{
		{"no provider", Options{}, []string{`""`, Verbs}},
		{"unknown provider", Options{Provider: "ucx"}, []string{`"ucx"`, Verbs}},
		{"device twice", Options{Provider: TCP, Devices: []string{"lo", "lo"}}, []string{"lo", "twice"}},
		{"device without name", Options{Provider: TCP, Devices: []string{"lo", ""}}, []string{"device 1"}},
		{"too many devices", Options{Provider: TCP, Devices: make([]string, MaxRails+1)}, []string{"33", "32"}},
		{"host", Options{Provider: TCP, Host: "localhost"}, []string{`"localhost"`}},
		{"stripe", Options{Provider: TCP, Stripe: 5}, []string{"5"}},
		{"cache", Options{Provider: TCP, CacheBytes: -1}, []string{"-1"}},
		{"timeout", Options{Provider: TCP, StallTimeout: -1}, []string{"-1ns"}},
	} {
		_, err := Open(c.o)
		fails(t, c.name, err, false, c.words...)
	}
	needLibrary(t)
	_, err := Open(Options{Provider: TCP, Devices: []string{"nic7"}})
	fails(t, "unknown device", err, true, "nic7", "lo")
	_, err = Open(Options{Provider: TCP, Devices: []string{"lo"}, Host: "203.0.113.7"})
	fails(t, "host of nobody", err, true, "203.0.113.7")
	if lib, _ := Probe(); strings.HasPrefix(lib.Version, "1.") {
		_, err = Open(Options{Provider: Verbs})
		fails(t, "verbs with 1.x", err, true, "2.0", lib.Version, libraryVar)
	}
}

// TestNoLibrary opens a transport in a process whose library is missing or is another one.
func TestNoLibrary(t *testing.T) {
	for _, c := range []struct {
		path  string
		words []string
	}{
		{"/nonexistent/libfabric.so.1", []string{"/nonexistent/libfabric.so.1", libraryVar}},
		{"libc.so.6", []string{"no libfabric", libraryVar}},
	} {
		cmd := child("open")
		cmd.Env = append(cmd.Env, libraryVar+"="+c.path)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("%s: %v: %s", c.path, err, out)
		}
		fails(t, c.path, fmt.Errorf("%w: %s", ErrUnavailable, out), true, c.words...)
	}
}

func TestLimits(t *testing.T) {
	status := filepath.Join(t.TempDir(), "status")
	for caps, want := range map[string]bool{"0000000000004000": true, "0000000000003fff": false, "000001ffffffffff": true, "x": false} {
		must(t, os.WriteFile(status, []byte("Name:\tkvfs\nCapPrm:\tffff\nCapEff:\t"+caps+"\n"), 0o600))
		if mayLock(status) != want {
			t.Errorf("capabilities %s: %v", caps, !want)
		}
	}
	fails(t, "memlock", whyNoMemory("register", code(syscall.ENOMEM)), false, "ulimit -l", "LimitMEMLOCK")

	dir := t.TempDir()
	if err := checkCharDevices(dir); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"uverbs0", "issm0"} { // links to nowhere cannot be opened, by root neither
		must(t, os.Symlink("/nonexistent", filepath.Join(dir, name)))
	}
	err := checkCharDevices(dir)
	fails(t, "devices", err, true, filepath.Join(dir, "uverbs0"), "permission")
	if strings.Contains(fmt.Sprint(err), "issm0") {
		t.Errorf("says something of a device that is not needed: %v", err)
	}
}

// TestEnvironment shows that the library's own cache of registrations is off, whatever the user
// has set, and that the log says so.
func TestEnvironment(t *testing.T) {
	needLibrary(t)
	cmd := child("environment")
	cmd.Env = append(cmd.Env, cacheVar+"=1024")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// environment is the child of TestEnvironment.
func environment() error {
	core, logs := observer.New(zap.WarnLevel)
	t, err := Open(Options{Provider: TCP, Devices: []string{"lo"}, Host: "127.0.0.1", Logger: zap.New(core)})
	if err != nil {
		return err
	}
	if was := os.Getenv(cacheVar); was != cacheOff {
		return fmt.Errorf("%s is %s", cacheVar, was)
	}
	if all := logs.All(); len(all) != 1 || all[0].ContextMap()["was"] != cacheVar+"=1024" {
		return fmt.Errorf("the log says %v", all)
	}
	return t.Close()
}

// TestOwnName shows the message for a host whose name does not resolve.
func TestOwnName(t *testing.T) {
	host := func() (string, error) { return "kvfs.invalid", nil }
	if got := ownName(Options{Provider: Verbs}, host); !strings.Contains(got, "kvfs.invalid") {
		t.Errorf("says %q", got)
	}
	if got := ownName(Options{Provider: Verbs, Host: "10.0.0.1"}, host); got != "" {
		t.Errorf("with an address says %q", got)
	}
	if got := ownName(Options{Provider: Verbs}, func() (string, error) { return "localhost", nil }); got != "" {
		t.Errorf("of localhost says %q", got)
	}
}

// TestTwoRails opens two rails in a network namespace of its own (B28).
func TestTwoRails(t *testing.T) {
	needLibrary(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip, to make interfaces with: install the package iproute2")
	}
	cmd := child("rails")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Skipf("network namespaces are not allowed: %v", err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// twoRails is the child of TestTwoRails.
func twoRails() error {
	for _, args := range []string{
		"link set lo up", "link add d0 type veth peer name d1", "addr add 10.9.0.1/24 dev d0",
		"addr add 10.9.1.1/24 dev d1", "link set d0 up", "link set d1 up",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	both := Options{Provider: TCP, Devices: []string{"d0", "d1"}, Stripe: mib, StallTimeout: patience}
	a, err := Open(both)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := Open(both)
	if err != nil {
		return err
	}
	defer b.Close()
	one, err := Open(Options{Provider: TCP, Devices: []string{"d1"}, StallTimeout: patience})
	if err != nil {
		return err
	}
	defer one.Close()
	if c := a.Caps(); len(c.Rails) != 2 || c.Rails[0] != "d0" || c.Rails[1] != "d1" {
		return fmt.Errorf("rails %v", c.Rails)
	}
	for _, c := range []struct {
		name           string
		reader, holder *Transport
		rails          int
	}{{"two and two", b, a, 2}, {"two and one", b, one, 2}, {"one and two", one, a, 1}} {
		if err := oneRead(c.reader, c.holder, 10*mib+5, c.rails); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	unstriped := both
	unstriped.Stripe = 0
	c, err := Open(unstriped)
	if err != nil {
		return err
	}
	defer c.Close()
	for bad, reader := range []*Transport{c, b} {
		if err := deadRail(reader, a, bad); err != nil {
			return fmt.Errorf("rail %d of the peer is dead, pieces of %d: %w", bad, reader.opts.Stripe, err)
		}
	}
	return nil
}

// deadRail reads from a peer without a listener on one of two rails: by the other rail, from the
// first read on. The bad rail is skipped until a Probe finds it well.
func deadRail(reader, holder *Transport, bad int) error {
	const n = 4 * mib
	want := pattern(1, n)
	src, err := memFile()
	if err != nil {
		return err
	}
	defer src.Close()
	if _, err := src.WriteAt(want, 0); err != nil {
		return err
	}
	r, err := holder.Register(src, n)
	if err != nil {
		return err
	}
	defer r.Close()
	a, err := parseAddress(holder.Addr())
	if err != nil {
		return err
	}
	good := a.rails[bad].endpoint
	a.rails[bad].endpoint = bytes.Clone(good)
	a.rails[bad].endpoint[2], a.rails[bad].endpoint[3] = 0, 9
	p, err := reader.connect(a.String())
	if err != nil {
		return err
	}
	defer p.Close()
	p.turn.Store(uint32(bad))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var stalls int64
	for i := range 5 {
		if err := p.try(ctx, r.Remote(), want, nil); err != nil {
			return fmt.Errorf("read %d: %w", i, err)
		}
		if s := reader.Stats().Stalls; i == 0 {
			stalls = s
		} else if s != stalls {
			return fmt.Errorf("read %d tried the bad rail again", i)
		}
	}
	if err := p.Probe(ctx); !errors.Is(err, rdma.ErrUnavailable) || p.rails[bad].good() || !p.rails[1-bad].good() {
		return fmt.Errorf("probe of the bad rail: %w", err)
	}
	p.addr.rails[bad].endpoint = good
	if err := p.Probe(ctx); err != nil || !p.rails[bad].good() {
		return fmt.Errorf("probe of the rail that is well again: %w", err)
	}
	return nil
}

// oneRead reads n bytes and checks by which rails they came.
func oneRead(reader, holder *Transport, n, rails int) error {
	want := pattern(1, n)
	src, err := memFile()
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := memFile()
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := src.WriteAt(want, 0); err != nil {
		return err
	}
	r, err := holder.Register(src, int64(n))
	if err != nil {
		return err
	}
	p, err := reader.Connect(holder.Addr())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.(*Peer).Probe(ctx); err != nil {
		return err
	}
	before := reader.Stats().RailBytes
	if err := p.Read(ctx, r.Remote(), 0, int64(n), rdma.Dest{File: dst}); err != nil {
		return err
	}
	got := make([]byte, n)
	if _, err := dst.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("wrong bytes")
	}
	for i, after := range reader.Stats().RailBytes {
		if d := after - before[i]; d < int64(n/rails-mib) {
			return fmt.Errorf("%d bytes by rail %d of %d", d, i, rails)
		}
	}
	return nil
}
