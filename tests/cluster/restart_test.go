package cluster

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestRestarts kills and stops nodes in turn while all of them write, read and remove.
// What is read is right, also while nodes are down, and in the end all agree.
func TestRestarts(t *testing.T) {
	underLoad(t, harness.ClusterOptions{}, rounds(t, 3, 3), func(l *load, round int) {
		l.restart(l.Nodes[round%len(l.Nodes)], round%2 == 0, (*harness.Node).Restart)
	})
}

// TestNextMount shows that the SSD of a daemon that is still leaving the cluster can be mounted elsewhere at once: with the
// SSD, its addresses are free.
func TestNextMount(t *testing.T) {
	events := []string{"--events-zmq-bind", "tcp://*:5557", "--events-zmq-replay", "tcp://*:5558"}
	w := newWorld(t, harness.ClusterOptions{Nodes: 2, Options: harness.Options{Disk: "256MiB", Flags: events}})
	old := w.Nodes[0]
	o := w.Options(0)
	o.DiskDir = old.DiskDir
	unix.Kill(old.Pid, unix.SIGTERM)
	w.Net.In(0, func() { harness.Mount(t, o) })
	<-old.Exited()
	if old.ExitCode != 0 {
		t.Errorf("the daemon before ended with %d", old.ExitCode)
	}
}

// underLoad does something n times while all nodes write, read and remove. In the end all agree.
func underLoad(t *testing.T, opts harness.ClusterOptions, n int, do func(l *load, round int)) {
	opts.Options, opts.Flags = harness.Options{Disk: "256MiB"}, withFlags(opts.Flags, "--replicas", "1")
	w := newWorld(t, opts)
	l := &load{
		world: w, stop: make(chan struct{}), down: make([]atomic.Int64, len(w.Nodes)), lock: make([]sync.RWMutex, len(w.Nodes)),
	}
	for i := range w.Nodes {
		l.workers.Go(func() { l.work(i) }) // Ends with stop.
	}
	for round := range n {
		for range 10 { // However slow it is, as long as it goes on.
			target := l.done.Load() + 100
			harness.Poll(t, "the load goes on", func() bool { return l.done.Load() >= target || t.Failed() })
		}
		do(l, round)
		if t.Failed() {
			break
		}
	}
	close(l.stop)
	l.workers.Wait()
	w.WaitJoined()
	w.agree()
}

type load struct {
	*world
	stop    chan struct{}
	workers sync.WaitGroup
	done    atomic.Int64 // operations
	// down is odd while a node is going down, down or starting: then its operations
	// may fail, and those of which it was so at one of their ends.
	down []atomic.Int64
	lock []sync.RWMutex // held for reading by operations on a node, for writing while its Daemon changes
}

// restart takes a node down in the middle of its operations, and start brings it back.
func (l *load) restart(n *harness.Node, kill bool, start func(n *harness.Node)) {
	l.t.Helper()
	l.down[n.Index].Add(1)
	if kill {
		n.Kill()
	} else {
		n.Stop()
	}
	l.lock[n.Index].Lock()
	start(n)
	l.lock[n.Index].Unlock()
	l.down[n.Index].Add(1)
	l.WaitJoined()
}

// work is one client on each node. It writes and removes names of its own and reads
// everybody's.
func (l *load) work(i int) {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	n := l.Nodes[i]
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		l.lock[i].RLock()
		before := l.down[i].Load()
		err := l.step(n, random)
		if err != nil && before%2 == 0 && l.down[i].Load() == before && n.Daemon.Running() {
			l.t.Errorf("on %s: %v", n.Name, err)
		}
		l.lock[i].RUnlock()
		l.done.Add(1)
	}
}

func (l *load) step(n *harness.Node, random *rand.Rand) error {
	name := block("load-%s-%d", n.Name, random.IntN(20))
	switch random.IntN(8) {
	case 0, 1:
		_, err := l.write(n, name, 1000+random.IntN(200_000))
		return err
	case 2:
		return ignoreAbsent(l.timed("remove "+name, func() error { return removeFile(n, name) }))
	default:
		name = block("load-%s-%d", l.Nodes[random.IntN(len(l.Nodes))].Name, random.IntN(20))
		_, err := l.read(n, name)
		return err
	}
}
