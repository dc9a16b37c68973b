package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// slack is how long an operation may take beyond its deadline: the promised second, and the time that a machine with
// few processors adds when all nodes, and other programs, share them.
const slack = time.Second + 9*time.Second

// patient is the deadline of the peers where nothing happens to any of them: one that is
// slow for a while is waited for, not a miss.
const patient = 20 * time.Second

// group is the directory of most blocks.
const group = "kv"

// world is a cluster and what was ever written into it.
type world struct {
	*harness.Cluster
	t *testing.T

	mu struct {
		sync.Mutex
		next    uint64
		written map[string][]uint64 // versions that may have been committed, by name
		moved   map[string]string   // new name to the one under which it was written
	}
}

// newWorld starts a cluster in which each node has the directory of the blocks.
func newWorld(t *testing.T, opts harness.ClusterOptions) *world {
	t.Helper()
	if opts.PeerTimeout == patient {
		opts.PeerSilence = patient / 4
	}
	w := &world{Cluster: harness.NewCluster(t, opts), t: t}
	w.mu.written, w.mu.moved = map[string][]uint64{}, map[string]string{}
	for _, n := range w.Nodes {
		// A node that holds a block in the directory holds the directory.
		must(t, os.MkdirAll(n.Path(group), 0o755))
		w.mustWrite(n, group+"/first-of-"+n.Name, 4*kib)
	}
	w.WaitQuiet()
	return w
}

// rounds returns the rounds of a test: all, or fewer in a short run.
func rounds(t *testing.T, all, short int) int {
	t.Helper()
	n := few(all, short)
	if s := os.Getenv("KVFS_TEST_ROUNDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			t.Fatalf("KVFS_TEST_ROUNDS: %q", s)
		}
	}
	t.Logf("KVFS_TEST_ROUNDS=%d", n)
	return n
}

// few is a number of rounds or nodes: all, or fewer in a short run.
func few(all, short int) int {
	if testing.Short() || harness.RaceEnabled {
		return short
	}
	return all
}

// A block's contents: this header, then bytes that its name and version make.
const (
	magic       = 0x6b766673626c6b31
	headerBytes = 56 // magic, version, size, hash of the name
)

// content returns the bytes of one version of a name; size is headerBytes or more.
func content(name string, version uint64, size int) []byte {
	b := make([]byte, size)
	sum := sha256.Sum256([]byte(name))
	binary.LittleEndian.PutUint64(b, magic)
	binary.LittleEndian.PutUint64(b[8:], version)
	binary.LittleEndian.PutUint64(b[16:], uint64(size))
	copy(b[24:], sum[:])
	var seed [32]byte
	copy(seed[:], sum[:24])
	binary.LittleEndian.PutUint64(seed[24:], version)
	rand.NewChaCha8(seed).Read(b[headerBytes:])
	return b
}

// versionOf returns which version of the name b is. It fails unless b is all of it.
func versionOf(name string, b []byte) (uint64, error) {
	if len(b) < headerBytes {
		return 0, fmt.Errorf("%s: %d bytes, too few for any version", name, len(b))
	}
	version := binary.LittleEndian.Uint64(b[8:])
	want := content(name, version, len(b))
	for i := range b {
		if b[i] != want[i] {
			return 0, fmt.Errorf("%s: wrong bytes: byte %d of %d is the first that is not of version %d", name, i, len(b), version)
		}
	}
	return version, nil
}

// begin notes a version of a name that may be committed from now on.
func (w *world) begin(name string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.next++
	w.mu.written[name] = append(w.mu.written[name], w.mu.next)
	return w.mu.next
}

// names returns all that were ever written.
func (w *world) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for name := range w.mu.written {
		out = append(out, name)
	}
	return out
}

// rename moves a block on a node. It has the contents of its first name.
func (w *world) rename(n *harness.Node, from, to string) {
	w.t.Helper()
	w.mu.Lock()
	w.mu.moved[to] = from
	w.mu.Unlock()
	err := w.timed("rename "+from+" on "+n.Name, func() error { return os.Rename(n.Path(from), n.Path(to)) })
	if err != nil {
		w.t.Fatalf("rename on %s: %v", n.Name, err)
	}
}

// origin returns the name under which b was written, if it was moved to name.
func (w *world) origin(name string, b []byte) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	from, ok := w.mu.moved[name]
	sum := sha256.Sum256([]byte(from))
	if ok && len(b) >= headerBytes && bytes.Equal(b[24:headerBytes], sum[:]) {
		return from
	}
	return name
}

// known reports whether a version of a name was written.
func (w *world) known(name string, version uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, v := range w.mu.written[name] {
		if v == version {
			return true
		}
	}
	return false
}

// limit is the time that any operation may take.
func (w *world) limit() time.Duration { return w.PeerTimeout() + slack }

// timed does an operation and complains if it takes longer than its deadline. One
// that hangs fails the test while it hangs, with what the nodes print then.
func (w *world) timed(what string, op func() error) error {
	begin := time.Now()
	hanging := time.AfterFunc(harness.Deadline, func() { w.hang(what) })
	err := op()
	hanging.Stop()
	if took := time.Since(begin); took > w.limit() {
		w.t.Errorf("%s: took %v, the deadline is %v and the slack %v", what, took, w.PeerTimeout(), slack)
	}
	return err
}

// hang ends all daemons, which print their goroutines, so that what hangs comes back,
// and keeps their logs.
func (w *world) hang(what string) {
	w.t.Errorf("%s: not done after %v", what, harness.Deadline)
	for _, n := range w.Nodes {
		unix.Kill(n.Pid, unix.SIGQUIT)
	}
	for _, n := range w.Nodes {
		select {
		case <-n.Exited():
		case <-time.After(10 * time.Second): // It cannot die, as a thread of it waits for its own mount.
			n.Abort()
			<-n.Exited()
			w.t.Errorf("%s did not die of SIGQUIT", n.Name)
		}
		path := filepath.Join(os.TempDir(), "kvfs-hang-"+n.Name+".log")
		if err := os.WriteFile(path, []byte(n.LastLog()), 0o644); err == nil {
			w.t.Logf("goroutines of %s: %s", n.Name, path)
		}
	}
}

// write commits a new version of a name on a node and returns it. Every other one is
// written as vLLM does: under a temporary name, then renamed.
func (w *world) write(n *harness.Node, name string, size int) (uint64, error) {
	version := w.begin(name)
	b := content(name, version, size)
	path := n.Path(name)
	err := w.timed("write "+name+" on "+n.Name, func() error {
		if version%2 == 0 {
			return os.WriteFile(path, b, 0o644)
		}
		tmp := fmt.Sprintf("%s.tmp.%d", path, version)
		if err := os.WriteFile(tmp, b, 0o644); err != nil {
			return err
		}
		return os.Rename(tmp, path)
	})
	return version, err
}

func (w *world) mustWrite(n *harness.Node, name string, size int) uint64 {
	w.t.Helper()
	version, err := w.write(n, name, size)
	if err != nil {
		w.t.Fatalf("write %s on %s: %v", name, n.Name, err)
	}
	return version
}

// read reads a name on a node and returns its version, 0 if there is no such file. Other bytes and other errors are
// errors.
func (w *world) read(n *harness.Node, name string) (uint64, error) {
	var b []byte
	err := w.timed("read "+name+" on "+n.Name, func() (err error) {
		b, err = os.ReadFile(n.Path(name))
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	origin := w.origin(name, b)
	version, err := versionOf(origin, b)
	if err != nil {
		return 0, fmt.Errorf("%s on %s: %w", name, n.Name, err)
	}
	if !w.known(origin, version) {
		return 0, fmt.Errorf("%s on %s: version %d, which nobody wrote", name, n.Name, version)
	}
	return version, nil
}

func (w *world) mustRead(n *harness.Node, name string) uint64 {
	w.t.Helper()
	version, err := w.read(n, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return version
}

// wantVersion waits until a node reads that version of a name; 0: no such file.
func (w *world) wantVersion(n *harness.Node, name string, version uint64) {
	w.t.Helper()
	harness.Poll(w.t, fmt.Sprintf("%s has version %d of %s", n.Name, version, name), func() bool {
		return w.mustRead(n, name) == version
	})
}

// wantEverywhere is wantVersion on all nodes that run.
func (w *world) wantEverywhere(name string, version uint64) {
	w.t.Helper()
	for _, n := range w.Running() {
		w.wantVersion(n, name, version)
	}
}

// remove removes a name on a node.
func (w *world) remove(n *harness.Node, name string) {
	w.t.Helper()
	err := w.timed("remove "+name+" on "+n.Name, func() error { return os.Remove(n.Path(name)) })
	if err != nil {
		w.t.Fatalf("remove on %s: %v", n.Name, err)
	}
}

// exists reports whether a name can be found on a node.
func (w *world) exists(n *harness.Node, name string) bool {
	w.t.Helper()
	err := w.timed("stat "+name+" on "+n.Name, func() error {
		_, err := os.Stat(n.Path(name))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatalf("stat on %s: %v", n.Name, err)
	}
	return err == nil
}

// agree waits until the indexes agree with what the holders have, then reads every
// name on every node: all of them have it, or none has.
func (w *world) agree() {
	w.t.Helper()
	w.WaitQuiet()
	nodes := w.Running()
	for _, name := range w.names() {
		w.agreeOn(name, nodes)
	}
}

// agreeOn waits until all nodes have a name, or none has: a peer that did not answer
// lately is not asked for a while, which is a miss until then.
func (w *world) agreeOn(name string, nodes []*harness.Node) {
	w.t.Helper()
	var found map[bool][]string
	defer func() {
		if len(found[true]) > 0 && len(found[false]) > 0 {
			w.t.Errorf("%s: found on %v, not on %v", name, found[true], found[false])
		}
	}()
	harness.Poll(w.t, fmt.Sprintf("stat and read of %s agree on all nodes", name), func() bool {
		found = map[bool][]string{}
		same := true
		for _, n := range nodes {
			has := w.mustRead(n, name) != 0
			found[has] = append(found[has], n.Name)
			same = same && w.exists(n, name) == has
		}
		return same && len(found) == 1
	})
}

// list returns the names in a directory on a node.
func (w *world) list(n *harness.Node, dir string) []string {
	w.t.Helper()
	var names []string
	err := w.timed("list "+dir+" on "+n.Name, func() error {
		entries, err := os.ReadDir(n.Path(dir))
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

// copies returns how many blocks are in the memory of a node.
func copies(n *harness.Node) int64 { return n.Status().Tiers[0].Blocks }

// waitCopies waits until the nodes together have this number of blocks in memory.
func (w *world) waitCopies(blocks int64, nodes ...*harness.Node) {
	w.t.Helper()
	harness.Poll(w.t, fmt.Sprintf("%d blocks in memory", blocks), func() bool {
		var sum int64
		for _, n := range nodes {
			sum += copies(n)
		}
		return sum >= blocks
	})
}

// block returns a path of a block in the group.
func block(format string, args ...any) string {
	return filepath.Join(group, fmt.Sprintf(format, args...))
}

func removeFile(n *harness.Node, name string) error { return os.Remove(n.Path(name)) }

// ignoreAbsent returns err unless it says that there is no such file.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
