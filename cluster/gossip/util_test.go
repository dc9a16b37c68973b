package gossip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/sets"
)

// patience bounds every wait. It is generous: the machine may be busy.
const patience = time.Minute

// TestMain shows that no goroutine of a Gossip, memberlist's included, outlives it.
func TestMain(m *testing.M) {
	sets.Select()
	code := m.Run()
	deadline := time.Now().Add(patience)
	for code == 0 {
		left := running()
		if left == "" {
			break
		}
		if time.Now().After(deadline) {
			fmt.Printf("goroutines are left:\n%s\n", left)
			code = 1
		}
		time.Sleep(20 * time.Millisecond) // reason: goroutines of others tell nobody of their end
	}
	os.Exit(code)
}

// running returns the stacks of goroutines that are ours or memberlist's.
func running() string {
	buf := make([]byte, 16<<20)
	var left []string
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if (strings.Contains(g, "memberlist.") || strings.Contains(g, "cluster/gossip")) && !strings.Contains(g, "TestMain") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond) // reason: the cluster has no event for every state; in synctest the clock is not real
	}
}

// unhurried has streams take their time: on a busy machine those of members are not to be
// counted as rejected.
func unhurried(c *memberlist.Config) { c.TCPTimeout = patience }

// calm besides has nobody found dead, for tests in which nobody is.
func calm(c *memberlist.Config) {
	unhurried(c)
	c.SuspicionMult = int(patience / c.ProbeInterval)
}

// refusing returns an address at which no stream is taken, nor can be by others meanwhile.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

// recorder keeps events as lines.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

func (r *recorder) Joined(n Node)            { r.add("joined %s %s", n.Name, n.Meta) }
func (r *recorder) Updated(n Node)           { r.add("updated %s %s", n.Name, n.Meta) }
func (r *recorder) Left(n Node, failed bool) { r.add("left %s failed=%v", n.Name, failed) }

func (r *recorder) has(event string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.events, event)
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// node is a Gossip under test.
type node struct {
	*Gossip
	events *recorder
	logs   *observer.ObservedLogs
}

// start opens a node on loopback, not yet joined; change may alter its options.
func start(t *testing.T, name string, d deps, change func(o *Options)) *node {
	t.Helper()
	n, err := tryStart(t, name, d, change)
	must(t, err)
	return n
}

func tryStart(t *testing.T, name string, d deps, change func(o *Options)) (*node, error) {
	core, logs := observer.New(zap.DebugLevel)
	n := &node{events: &recorder{}, logs: logs}
	o := Options{
		Name: name, Bind: "127.0.0.1:0", Profile: "local", Rejoin: 200 * time.Millisecond,
		Events: n.events, Logger: zap.New(core),
	}
	if change != nil {
		change(&o)
	}
	var err error
	if n.Gossip, err = open(o, d); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		check(t, n.Close())
	})
	return n, nil
}

func (n *node) join(t *testing.T) *node {
	t.Helper()
	must(t, n.Join(t.Context()))
	return n
}

// sees reports whether a node's view is exactly these others.
func (n *node) sees(names ...string) bool {
	var have []string
	for _, o := range n.Nodes() {
		have = append(have, o.Name)
	}
	slices.Sort(names)
	return slices.Equal(have, names)
}

// waitSees waits until every node sees all others and no one else.
func waitSees(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		var others []string
		for _, o := range nodes {
			if o != n {
				others = append(others, o.name)
			}
		}
		eventually(t, fmt.Sprintf("%s sees %v", n.name, others), func() bool { return n.sees(others...) })
	}
}

// warned counts the warnings with a text in it.
func (n *node) warned(text string) int {
	c := 0
	for _, e := range n.logs.All() {
		if e.Level >= zap.WarnLevel && strings.Contains(e.Message+fmt.Sprint(e.ContextMap()), text) {
			c++
		}
	}
	return c
}

// names is a resolver whose answers can change.
type names struct {
	mu    sync.Mutex
	addrs map[string][]netip.Addr
	asked map[string]int
}

func (n *names) set(host string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.addrs == nil {
		n.addrs, n.asked = map[string][]netip.Addr{}, map[string]int{}
	}
	n.addrs[host] = nil
	for _, a := range addrs {
		n.addrs[host] = append(n.addrs[host], netip.MustParseAddr(a))
	}
}

func (n *names) count(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[host]
}

func (n *names) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[host]++
	if a := n.addrs[host]; len(a) > 0 {
		return slices.Clone(a), nil
	}
	return nil, errors.New("no such host")
}

// keyFile makes a file with n new keys.
func keyFile(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	must(t, CreateKeyring(path))
	for range n - 1 {
		must(t, AddKey(path, newKey(t)))
	}
	return path
}

func newKey(t *testing.T) string {
	t.Helper()
	key, err := GenerateKey()
	must(t, err)
	return key
}

func load(t *testing.T, path string) *Keyring {
	t.Helper()
	k, err := LoadKeyring(path)
	must(t, err)
	return k
}

func testLog(t *testing.T) *zap.Logger { return zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)) }

// printOf returns the fingerprint of a line.
func printOf(line string) string {
	key, err := parseKey(line)
	if err != nil {
		return err.Error()
	}
	return fingerprint(key)
}

func stat(info os.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// Nodes returns the live nodes without this one, by name.
func (g *Gossip) Nodes() []Node { return g.members.nodes() }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check reports an error, and lets the test go on.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
