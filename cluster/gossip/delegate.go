package gossip

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

const (
	// goodbyeMsg begins a message that says: the node of this name leaves on purpose.
	goodbyeMsg = 'L'

	// goodbyeGrace is how long the loss of a node is kept back. Its goodbye may come after the
	// news of its end.
	goodbyeGrace = 200 * time.Millisecond

	// maxLost and lostLife bound the addresses of lost members that are kept, to try them
	// again after a partition.
	maxLost  = 1024
	lostLife = 24 * time.Hour

	// maxConflicts bounds the conflicts that are counted separately.
	maxConflicts = 256
)

// members receives what memberlist tells this node of the others. It keeps its own table,
// because memberlist changes the nodes that it hands out while they are read.
//
// It is memberlist's Delegate, EventDelegate, ConflictDelegate and AliveDelegate. Memberlist
// calls those with its own lock held, so they must neither block nor call memberlist. A
// goroutine of ours reports the events. Pending news are kept per name, so a slow listener
// costs at most one change for each node.
type members struct {
	self   string
	events Events // nil: none
	log    *zap.Logger
	wake   chan struct{} // capacity one: a change may be due

	// mu guards the fields below. It is held only briefly.
	mu        sync.Mutex
	meta      []byte              // of this node
	live      map[string]Node     // without this node
	goodbyes  map[string]bool     // live nodes that have announced their leave
	lost      map[string]lostNode // lost without a goodbye, and not back yet
	told      map[string]Node     // what the listener knows
	changes   map[string]*change  // pending news for the listener
	order     []string            // names in changes, oldest first
	conflicts map[conflict]struct{}
	conflictN uint64
	contested time.Time // when a node last had this node's name at another address
	contester string    // that address
	contestOn time.Time // when that began
	blamed    time.Time // when the log was last told of it
}

type lostNode struct {
	addr  netip.AddrPort
	since time.Time
}

// change says that a node may differ from what the listener knows.
type change struct {
	due    time.Time
	failed bool // if it is gone: it sent no goodbye
}

// conflict is a node that used the name of another one.
type conflict struct{ name, addr string }

func newMembers(self string, meta []byte, events Events, log *zap.Logger) *members {
	return &members{
		self: self, meta: bytes.Clone(meta), events: events, log: log,
		wake: make(chan struct{}, 1),
		live: map[string]Node{}, goodbyes: map[string]bool{}, lost: map[string]lostNode{},
		told: map[string]Node{}, changes: map[string]*change{}, conflicts: map[conflict]struct{}{},
	}
}

// goodbye returns the message that a leaving node sends.
func goodbye(name string) []byte { return append([]byte{goodbyeMsg}, name...) }

// NodeMeta is of memberlist's Delegate.
func (m *members) NodeMeta(int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.meta)
}

// NotifyMsg is of memberlist's Delegate. It ignores messages of other kinds, which later
// versions send.
func (m *members) NotifyMsg(msg []byte) {
	if len(msg) < 2 || len(msg) > 1+maxName || msg[0] != goodbyeMsg {
		return
	}
	name := string(msg[1:])
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.live[name]; ok {
		m.goodbyes[name] = true
		return
	}
	delete(m.lost, name)
	if c := m.changes[name]; c != nil {
		c.failed, c.due = false, time.Now()
		m.nudge()
	}
}

// GetBroadcasts is of memberlist's Delegate. There are none.
func (m *members) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState is of memberlist's Delegate. There is none.
func (m *members) LocalState(bool) []byte { return nil }

// MergeRemoteState is of memberlist's Delegate. That of later versions is ignored.
func (m *members) MergeRemoteState([]byte, bool) {}

// NotifyAlive is of memberlist's AliveDelegate. It refuses nodes whose name, meta or address
// is invalid.
func (m *members) NotifyAlive(n *memberlist.Node) error {
	if err := checkName(n.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if len(n.Meta) > MaxMeta {
		return fmt.Errorf("meta of %d bytes", len(n.Meta))
	}
	addr, ok := addrPortOf(n)
	if !ok || addr.Port() == 0 {
		return errors.New("malformed address")
	}
	if err := usable(addr.Addr()); err != nil {
		return fmt.Errorf("address %s: %w", addr, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.live[n.Name]; !known && (len(m.live) >= maxNodes || len(m.changes) >= 2*maxNodes) {
		return fmt.Errorf("more than %d nodes", maxNodes)
	}
	return nil
}

// NotifyJoin is of memberlist's EventDelegate.
func (m *members) NotifyJoin(n *memberlist.Node) { m.present(n) }

// NotifyUpdate is of memberlist's EventDelegate.
func (m *members) NotifyUpdate(n *memberlist.Node) { m.present(n) }

func (m *members) present(n *memberlist.Node) {
	if n.Name == m.self {
		return
	}
	addr, _ := addrPortOf(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[n.Name] = Node{Name: n.Name, Addr: addr.String(), Meta: bytes.Clone(n.Meta)}
	delete(m.goodbyes, n.Name)
	delete(m.lost, n.Name)
	m.changed(n.Name, change{due: time.Now()})
}

// NotifyLeave is of memberlist's EventDelegate.
func (m *members) NotifyLeave(n *memberlist.Node) {
	if n.Name == m.self {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	said := m.goodbyes[n.Name]
	delete(m.live, n.Name)
	delete(m.goodbyes, n.Name)
	if said {
		m.changed(n.Name, change{due: time.Now()})
		return
	}
	if addr, ok := addrPortOf(n); ok {
		m.remember(n.Name, addr)
	}
	m.changed(n.Name, change{due: time.Now().Add(goodbyeGrace), failed: true})
}

// NotifyConflict is of memberlist's ConflictDelegate.
func (m *members) NotifyConflict(have, other *memberlist.Node) {
	old, _ := addrPortOf(have)
	addr, _ := addrPortOf(other)
	c := conflict{have.Name, addr.String()}
	m.mu.Lock()
	blame := c.name == m.self && m.contestLocked(c.addr)
	_, known := m.conflicts[c]
	if !known {
		if len(m.conflicts) >= maxConflicts {
			clear(m.conflicts)
		}
		m.conflicts[c] = struct{}{}
		m.conflictN++
	}
	m.mu.Unlock()
	if blame {
		m.log.Error("another node has the name of this one: give each its own node_name",
			zap.String("name", c.name), zap.String("other", c.addr))
	}
	if !known {
		m.log.Warn("another node comes with a name that is taken; it stays out until the first one is gone (a node that was restarted with another address comes in when its loss is noticed)",
			zap.String("name", c.name), zap.Stringer("taken_by", old), zap.String("refused", c.addr))
	}
}

// contestLocked records that a node at addr has this node's name. It reports whether to write
// to the log. For a while each restart with another address looks the same, so that is not
// logged.
func (m *members) contestLocked(addr string) (blame bool) {
	now := time.Now()
	if now.Sub(m.contested) > contestLife {
		m.contestOn = now
	}
	m.contested, m.contester = now, addr
	blame = now.Sub(m.contestOn) > contestGrace && now.Sub(m.blamed) > blameEvery
	if blame {
		m.blamed = now
	}
	return blame
}

// contestWarning returns the warning that another node has this node's name, or "". It gives
// the other node time first: it may be an earlier run of this node.
func (m *members) contestWarning() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.contested.Sub(m.contestOn) <= contestGrace || time.Since(m.contested) > contestLife {
		return ""
	}
	return fmt.Sprintf("another node, at %s, has the name %q of this one: give each its own node_name", m.contester, m.self)
}

// remember keeps the address of a lost member. The caller holds mu.
func (m *members) remember(name string, addr netip.AddrPort) {
	if len(m.lost) >= maxLost {
		oldest := ""
		for n, l := range m.lost {
			if oldest == "" || l.since.Before(m.lost[oldest].since) {
				oldest = n
			}
		}
		delete(m.lost, oldest)
	}
	m.lost[name] = lostNode{addr, time.Now()}
}

// someLost returns the addresses of up to n random lost members.
func (m *members) someLost(n int) []netip.AddrPort {
	m.mu.Lock()
	defer m.mu.Unlock()
	addrs := make([]netip.AddrPort, 0, len(m.lost))
	for name, l := range m.lost {
		if time.Since(l.since) > lostLife {
			delete(m.lost, name)
			continue
		}
		addrs = append(addrs, l.addr)
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	return addrs[:min(n, len(addrs))]
}

// contestedFor reports whether another node had this node's name within the last d.
func (m *members) contestedFor(d time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.contested.IsZero() && time.Since(m.contested) < d
}

func (m *members) setMeta(meta []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meta = meta
}

func (m *members) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.live)
}

func (m *members) conflictCount() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conflictN
}

func (m *members) nodes() []Node {
	m.mu.Lock()
	nodes := make([]Node, 0, len(m.live))
	for _, n := range m.live {
		nodes = append(nodes, n)
	}
	m.mu.Unlock()
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// changed records a change for the listener. The caller holds mu.
func (m *members) changed(name string, c change) {
	if m.events == nil {
		return
	}
	if old := m.changes[name]; old != nil {
		*old = c
	} else {
		m.changes[name] = &c
		m.order = append(m.order, name)
	}
	m.nudge()
}

func (m *members) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// tell calls the listener with changes until ctx ends.
func (m *members) tell(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		call, wait := m.next()
		if call != nil {
			call()
			continue
		}
		timer.Reset(wait)
		select {
		case <-m.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// next takes the first change that is due and returns the call that reports it. Without one it
// returns nil and the time until the next change is due.
func (m *members) next() (call func(), wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait = time.Hour
	for i := 0; i < len(m.order); i++ {
		name := m.order[i]
		c := m.changes[name]
		if d := time.Until(c.due); d > 0 {
			wait = min(wait, d)
			continue
		}
		m.order = slices.Delete(m.order, i, i+1)
		i--
		delete(m.changes, name)
		if call := m.callFor(name, c.failed); call != nil {
			return call, 0
		}
	}
	return nil, wait
}

// callFor compares a node with what the listener knows of it. The caller holds mu.
func (m *members) callFor(name string, failed bool) func() {
	now, live := m.live[name]
	old, known := m.told[name]
	switch {
	case live && !known:
		m.told[name] = now
		return func() { m.events.Joined(now) }
	case live && (now.Addr != old.Addr || !bytes.Equal(now.Meta, old.Meta)):
		m.told[name] = now
		return func() { m.events.Updated(now) }
	case !live && known:
		delete(m.told, name)
		return func() { m.events.Left(old, failed) }
	}
	return nil
}

// addrPortOf returns the address of a node, and false if the address is malformed.
func addrPortOf(n *memberlist.Node) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(n.Addr)
	return netip.AddrPortFrom(a.Unmap(), n.Port), ok
}
