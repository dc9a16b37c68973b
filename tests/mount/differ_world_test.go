package mount

import (
	"bufio"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// differDeadline is how long one operation may take.
const differDeadline = 30 * time.Second

// errDifferHang is of an operation that took longer.
var errDifferHang = errors.New("it hangs")

// differWorld is a file system, and processes that work on it, one operation at a time, so that the results of a
// sequence depend on nothing else.
type differWorld struct {
	t       testing.TB
	base    string          // directory of the directories of sequences
	d       *harness.Daemon // nil: the reference
	disk    bool            // kvfs has a disk tier
	root    string          // directory of the sequence
	count   int
	evicted int // blocks
	procs   [differWalker + 1]*differProc
}

type differProc struct {
	*harness.Process
	enc *gob.Encoder
	dec *gob.Decoder
}

func newDifferWorld(t testing.TB, base string) *differWorld {
	t.Helper()
	w := &differWorld{t: t, base: base}
	for p := range w.procs {
		w.start(p)
	}
	return w
}

// start starts a process, in place of one that is gone.
func (w *differWorld) start(p int) {
	w.t.Helper()
	// A signal of the Go runtime interrupts system calls.
	h := harness.StartHelper(w.t, harness.ProcessOptions{Env: []string{"GODEBUG=asyncpreemptoff=1"}}, differHelper)
	w.procs[p] = &differProc{Process: h, enc: gob.NewEncoder(h.Stdin), dec: gob.NewDecoder(bufio.NewReader(h.Stdout))}
	if w.root != "" {
		w.askOne(differOp{P: p, Do: "root", A: w.root})
	}
}

// begin makes the directory of a new sequence.
func (w *differWorld) begin() {
	w.t.Helper()
	w.root = filepath.Join(w.base, fmt.Sprintf("sequence%d", w.count))
	w.count++
	must(w.t, "mkdir", again(func() error { return unix.Mkdir(w.root, 0o755) }))
	w.enter(w.root)
}

func (w *differWorld) enter(root string) {
	w.t.Helper()
	for p := range w.procs {
		if _, err := w.askOne(differOp{P: p, Do: "root", A: root}); err != nil {
			w.t.Fatalf("process %d: %v", p, err)
		}
	}
}

// end closes what the sequence left open and removes its directory.
func (w *differWorld) end() error {
	w.t.Helper()
	w.enter("")
	root := w.root
	w.root = ""
	return os.RemoveAll(root)
}

// run does operations, in this order, and returns what came of each until an error.
func (w *differWorld) run(ops []differOp) (all []differResult, err error) {
	w.t.Helper()
	for len(ops) > 0 && err == nil {
		var rs []differResult
		n := differBatch(ops)
		if n > 0 {
			rs, err = w.ask(ops[:n])
		} else {
			var r differResult
			n = 1
			r, err = w.special(ops[0])
			rs = []differResult{r}
		}
		all, ops = append(all, rs...), ops[n:]
	}
	return all, err
}

// differBatch returns how many operations a process can be told at once.
func differBatch(ops []differOp) int {
	for i, op := range ops {
		if op.P != ops[0].P || slices.Contains([]string{"kill", "evict", "same", "crash"}, op.Do) {
			return i
		}
	}
	return len(ops)
}

// special does what is not a system call of one process.
func (w *differWorld) special(op differOp) (differResult, error) {
	w.t.Helper()
	switch op.Do {
	case "kill":
		w.procs[op.P].Kill()
		w.start(op.P)
	case "crash":
		w.crash()
	case "evict":
		w.evict()
	case "same":
		return w.same(op)
	}
	return differResult{}, nil
}

// ask has a process do operations. A process that does not answer is dead
// afterwards, and the daemon as well, as it may be what both wait for.
func (w *differWorld) ask(ops []differOp) ([]differResult, error) {
	w.t.Helper()
	p := w.procs[ops[0].P]
	if err := p.enc.Encode(w.translate(ops)); err != nil {
		w.t.Fatalf("process %d: %v", ops[0].P, err)
	}
	results := make([]differResult, len(ops))
	answered := make(chan error)
	go func() { // ends with the process at the latest
		for i := range results {
			err := p.dec.Decode(&results[i])
			answered <- err
			if err != nil {
				return
			}
		}
	}()
	for i := range ops {
		timer := time.NewTimer(differDeadline)
		select {
		case err := <-answered:
			timer.Stop()
			if err != nil {
				return results[:i], fmt.Errorf("process %d: %w", ops[i].P, err)
			}
		case <-timer.C:
			w.abandon(p)
			<-answered
			return results[:i], errDifferHang
		}
	}
	return results, nil
}

func (w *differWorld) askOne(op differOp) (differResult, error) {
	w.t.Helper()
	rs, err := w.ask([]differOp{op})
	if err != nil {
		return differResult{}, err
	}
	return rs[0], nil
}

// translate returns the operation that a process gets. The reference does not sync, because that only costs time.
func (w *differWorld) translate(ops []differOp) []differOp {
	if w.d != nil {
		return ops
	}
	ops = slices.Clone(ops)
	for i := range ops {
		if ops[i].Do == "fsync" || ops[i].Do == "fdatasync" {
			ops[i].Do = "nothing"
		}
	}
	return ops
}

// abandon ends a process that hangs.
func (w *differWorld) abandon(p *differProc) {
	if w.d != nil {
		unix.Kill(w.d.Pid, unix.SIGQUIT) // for the goroutines in the log
		select {
		case <-w.d.Exited():
		case <-time.After(harness.Deadline):
			w.d.Kill()
		}
	}
	p.Kill()
}

// same compares the inodes of descriptors of two processes.
func (w *differWorld) same(op differOp) (differResult, error) {
	a, err := w.askOne(differOp{P: op.P, Do: "fstat", S: op.S})
	if err != nil || a.Errno != 0 {
		return differResult{Errno: a.Errno}, err
	}
	b, err := w.askOne(differOp{P: op.Q, Do: "fstat", S: op.T})
	if err != nil || b.Errno != 0 {
		return differResult{Errno: b.Errno}, err
	}
	if a.Stat.Ino == b.Stat.Ino {
		return differResult{N: 1}, nil
	}
	return differResult{}, nil
}

// evict gives the disk tier the blocks that it lacks, and drops from memory all that it has.
func (w *differWorld) evict() {
	w.t.Helper()
	if !w.disk {
		return
	}
	w.sync()
	c := open(w.t, w.d.Path(".kvfs", "evict"), unix.O_RDWR, 0)
	c.write([]byte(`{"tier": "memory", "all": true}`))
	var answer struct {
		Blocks int `json:"blocks"`
	}
	b, n := make([]byte, 1<<16), 0
	must(w.t, "evict", again(func() (err error) { n, err = unix.Read(c.fd, b); return err })) // it waits
	must(w.t, "evict", json.Unmarshal(b[:n], &answer))
	w.evicted += answer.Blocks
	c.close()
}

// sync makes the disk tier know the names of this moment.
func (w *differWorld) sync() {
	w.t.Helper()
	f := open(w.t, w.base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(w.t, "fsync of the directory", again(func() error { return unix.Fsync(f.fd) }))
	f.close()
}

// crash kills the daemon and starts it again. What was removed or renamed within a moment
// of that may be back on the disk tier, so the directory is synced before. The processes do not outlive it:
// none of their descriptors would be worth anything.
func (w *differWorld) crash() {
	w.t.Helper()
	root := w.root
	if w.disk {
		w.sync()
	}
	if w.d != nil {
		w.d.Kill()
	}
	w.root = ""
	for p, proc := range w.procs {
		proc.Kill()
		if p == 0 && w.d != nil {
			w.d.Restart()
		}
		w.start(p)
	}
	w.root = root
	w.enter(root)
}

// checkEnd fails the test if something of the sequences, all of which are
// removed, is left in the daemon.
func (w *differWorld) checkEnd() {
	w.t.Helper()
	if w.d == nil || w.t.Failed() {
		return
	}
	if w.disk && w.count > 30 && w.evicted == 0 {
		w.t.Log("nothing was evicted")
	}
	harness.Poll(w.t, "the daemon holds nothing of removed files", func() bool {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.d.Pid))
		must(w.t, "descriptors of the daemon", err)
		held := slices.ContainsFunc(fds, func(fd string) bool {
			file, err := os.Readlink(fd)
			return err == nil && strings.HasPrefix(file, w.d.MemoryDir) && strings.HasSuffix(file, " (deleted)")
		})
		return !held && w.d.Status().Tiers[0].UsedBytes == 0
	})
}
