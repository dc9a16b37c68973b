package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
)

// crowdModel drives a crowd at random.
type crowdModel struct {
	t     *testing.T
	rng   *rand.Rand
	clock *testClock
	c     *crowd
	trace

	dirs    []string
	written map[string]bool // contents
	version uint64
}

// modelFiles is how many names there are in each directory.
const modelFiles = 3

// crowdOps are what a step does, the more often the more often it stands here.
var crowdOps = []struct {
	name string
	do   func(m *crowdModel, nd *node) (what string, err error)
}{
	{"put", (*crowdModel).put}, {"put", (*crowdModel).put}, {"put by rename", (*crowdModel).putByRename},
	{"unlink", (*crowdModel).unlink}, {"rename", (*crowdModel).rename}, {"evict", (*crowdModel).evict},
	{"tell", (*crowdModel).tell}, {"tell", (*crowdModel).tell},
	{"read", (*crowdModel).read}, {"read", (*crowdModel).read}, {"read", (*crowdModel).read},
	{"mkdir", (*crowdModel).mkdir}, {"rmdir", (*crowdModel).rmdir}, {"rename dir", (*crowdModel).renameDir},
	{"fsync", (*crowdModel).fsync}, {"take", (*crowdModel).take}, {"truncate", (*crowdModel).truncate},
	{"resolve", (*crowdModel).resolve}, {"let go", (*crowdModel).letGo}, {"open to empty", (*crowdModel).openToEmpty},
	{"expire", (*crowdModel).expire}, {"attributes", (*crowdModel).attributes},
}

// TestCrowdModel: whatever some nodes do to a few names and directories, and whenever they
// tell each other of it, a read returns what somebody wrote, whole, and no operation fails
// as it may not; once all is told, a name that one of them can read all can; and nothing is
// left of names that nobody uses.
func TestCrowdModel(t *testing.T) { crowdRounds(t, 4) }

func TestCrowdModelLong(t *testing.T) { crowdRounds(t, 24) }

func crowdRounds(t *testing.T, rounds int) {
	s := seed(t)
	for round := range rounds {
		m := &crowdModel{
			t: t, rng: rand.New(rand.NewPCG(s, uint64(round))), clock: newTestClock(),
			dirs: []string{"g", "h", "g/s", "g/t", "h/s"}, written: map[string]bool{"": true},
		}
		m.run(round)
		if t.Failed() {
			t.Fatalf("round %d:\n%s", round, strings.Join(m.trace, "\n"))
		}
	}
}

func (m *crowdModel) run(round int) {
	o := state.Options{CapacityBytes: 12 * page, Now: m.clock.now, PromoteTimeout: patience}
	cascade := state.CascadeOff
	if round%2 == 1 {
		cascade = state.CascadeAsync
	}
	m.c = newCrowdOf(m.t, cascade, o, o, o, o)
	defer m.c.close()
	must(m.t, m.c.nodes[0].mkdir("g"), m.c.nodes[1].mkdir("h"))
	m.c.tell()
	for step := range 250 {
		m.clock.add(time.Millisecond)
		nd, op := m.c.nodes[m.rng.IntN(4)], &crowdOps[m.rng.IntN(len(crowdOps))]
		what, err := op.do(m, nd)
		m.logf("%d: node %d: %s %s: %v", step, nd.n, op.name, what, err)
		if step%10 == 0 {
			for _, nd := range m.c.nodes {
				nd.audit()
			}
		}
		if m.t.Failed() {
			return
		}
	}
	m.settle()
	m.agree()
}

// settle has all that goes by itself go.
func (m *crowdModel) settle() {
	m.c.tell()
	for _, nd := range m.c.nodes {
		nd.letGo()
		m.clock.add(5 * time.Second)
		nd.e.Expire()
	}
	m.c.tell()
}

// agree checks that all nodes can read the same names, and that no account is wrong.
func (m *crowdModel) agree() {
	for _, dir := range m.dirs {
		for i := range modelFiles {
			name := fmt.Sprintf("%s/%d", dir, i)
			var with, without []int
			for _, nd := range m.c.nodes {
				switch got := nd.content(name); {
				case got == "ErrNotFound":
					without = append(without, nd.n)
				case !m.written[got]:
					m.t.Errorf("in the end node %d reads %.60q of %s", nd.n, got, name)
				default:
					with = append(with, nd.n)
				}
				m.c.tell()
			}
			if len(with) > 0 && len(without) > 0 {
				m.t.Errorf("%s is read by %v, and not by %v", name, with, without)
			}
		}
	}
	for _, nd := range m.c.nodes {
		nd.letGo()
		nd.audit()
	}
}

func (m *crowdModel) dir() string  { return m.dirs[m.rng.IntN(len(m.dirs))] }
func (m *crowdModel) file() string { return fmt.Sprintf("%s/%d", m.dir(), m.rng.IntN(modelFiles)) }

// check fails the test if err is of none of the kinds.
func (m *crowdModel) check(err error, kinds ...error) error {
	if err != nil && !slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) }) {
		m.t.Errorf("not allowed here: %v", err)
	}
	return err
}

func (m *crowdModel) content() []byte {
	m.version++
	data := payload(0, m.version, 24+m.rng.IntN(page))
	m.written[string(data)] = true
	return data
}

func (m *crowdModel) put(nd *node) (string, error) {
	name := m.file()
	return name, m.check(nd.put(10, name, m.content()), block.ErrNoSpace, block.ErrNotFound)
}

func (m *crowdModel) putByRename(nd *node) (string, error) {
	name := m.file()
	err := nd.put(10, name+".tmp", m.content())
	if err == nil {
		err = nd.rename(10, name+".tmp", name, false)
	}
	return name, m.check(err, block.ErrNoSpace, block.ErrNotFound)
}

func (m *crowdModel) unlink(nd *node) (string, error) {
	name := m.file()
	return name, m.check(nd.unlink(10, name), block.ErrNotFound)
}

func (m *crowdModel) rename(nd *node) (string, error) {
	from, to, noReplace := m.file(), m.file(), m.rng.IntN(4) == 0
	err := nd.rename(10, from, to, noReplace)
	return from + " " + to, m.check(err, block.ErrNotFound, block.ErrExist, block.ErrNoSpace, unix.EXDEV)
}

func (m *crowdModel) evict(nd *node) (string, error) {
	tier, name, force := []string{"memory", "disk"}[m.rng.IntN(2)], m.file(), m.rng.IntN(3) == 0
	_, err := nd.e.EvictFrom(context.Background(), tiers.EvictRequest{Tier: tier, Paths: []string{name}, Force: force})
	return fmt.Sprint(name, " from ", tier, " force ", force), m.check(err)
}

func (m *crowdModel) tell(nd *node) (string, error) {
	nd.tellOthers()
	if m.rng.IntN(2) == 0 {
		nd.tellLost()
	}
	return "", nil
}

func (m *crowdModel) read(nd *node) (string, error) {
	name := m.file()
	if got := nd.content(name); got != "ErrNotFound" && !m.written[got] {
		m.t.Errorf("node %d reads %d bytes of %s that nobody wrote: %.60q", nd.n, len(got), name, got)
	}
	return name, nil
}

func (m *crowdModel) mkdir(nd *node) (string, error) {
	dir := m.dir()
	return dir, m.check(nd.mkdir(dir), block.ErrExist, block.ErrNotFound)
}

func (m *crowdModel) rmdir(nd *node) (string, error) {
	dir := m.dir()
	return dir, m.check(nd.rmdir(dir), block.ErrNotFound, block.ErrNotEmpty)
}

func (m *crowdModel) renameDir(nd *node) (string, error) {
	from, to := m.dir(), m.dir()
	err := nd.rename(10, from, to, false)
	return from + " " + to, m.check(err, block.ErrNotFound, block.ErrNotEmpty, block.ErrLoop, unix.EXDEV)
}

// found runs do with what a node finds under some name.
func (m *crowdModel) found(nd *node, do func(a *state.Attr) error) (string, error) {
	name := m.file()
	a, err := nd.lookup(10, name)
	if err != nil {
		return name, m.check(err, block.ErrNotFound)
	}
	defer nd.forget(a.ID)
	return name, m.check(do(&a), block.ErrNotFound, block.ErrNoSpace, state.ErrStale)
}

func (m *crowdModel) fsync(nd *node) (string, error) {
	return m.found(nd, func(a *state.Attr) error { return nd.e.Fsync(context.Background(), a.ID) })
}

func (m *crowdModel) take(nd *node) (string, error) {
	name, from := m.file(), m.c.nodes[m.rng.IntN(4)]
	h, ok := from.e.Holding(name)
	if !ok || from == nd {
		return name, nil
	}
	if (&far{nd}).Buried(name) > h.Seq {
		return name, nil // the tier does not offer such a block to the engine
	}
	err := nd.e.Take(context.Background(), &h)
	return fmt.Sprint(name, " of node ", from.n), m.check(err, block.ErrExist, block.ErrNotFound, block.ErrNoSpace)
}

func (m *crowdModel) truncate(nd *node) (string, error) {
	return m.found(nd, func(a *state.Attr) error {
		return nd.e.TruncateName(context.Background(), a.ID, by(10), 0)
	})
}

func (m *crowdModel) resolve(nd *node) (string, error) {
	name := m.file()
	_, err := nd.e.Resolve(context.Background(), name)
	return name, m.check(err, block.ErrNotFound)
}

func (m *crowdModel) letGo(nd *node) (string, error) {
	nd.letGo()
	return "", nil
}

// openToEmpty opens with O_TRUNC, which may be answered that the name has another version
// now; the version that was made for it then goes by itself.
func (m *crowdModel) openToEmpty(nd *node) (string, error) {
	defer func() {
		m.clock.add(5 * time.Second)
		nd.e.Expire()
	}()
	return m.found(nd, func(a *state.Attr) error {
		h, err := nd.e.OpenWrite(context.Background(), a.ID, by(10), openfile.WriteOptions{Truncate: true})
		if err != nil {
			return err
		}
		err = nd.e.Flush(context.Background(), h, by(10), closer{})
		nd.e.Release(h)
		return err
	})
}

func (m *crowdModel) expire(nd *node) (string, error) {
	defer m.c.nodes[m.rng.IntN(4)].e.Expire()
	return m.found(nd, func(a *state.Attr) error { return nd.e.SetTTL(a.ID, 20*time.Millisecond) })
}

func (m *crowdModel) attributes(nd *node) (string, error) {
	mode, mtime := uint32(0o600), int64(m.rng.IntN(1<<40))
	return m.found(nd, func(a *state.Attr) error {
		_, err := nd.e.SetAttr(a.ID, tiers.Change{Mode: &mode, Mtime: &mtime})
		return err
	})
}
