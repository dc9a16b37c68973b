package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// ClusterStatus is the entry "cluster" of .kvfs/status.
type ClusterStatus struct {
	Members  []Member        `json:"members"`
	Rejected json.RawMessage `json:"rejected"`
	RDMA     RDMAStatus      `json:"rdma"`
	Node     struct {
		FabricFetches   uint64 `json:"fabric_fetched_blocks"`
		FabricBytes     uint64 `json:"fabric_fetched_bytes"`
		FabricFallbacks uint64 `json:"fabric_fallback_blocks"`
	} `json:"node"`
}

// RDMAStatus is the state of a node's RDMA.
type RDMAStatus struct {
	Transport string `json:"transport"`
	Provider  string `json:"provider"`
	Error     string `json:"error"`
	Stats     *struct {
		ReadBytes   int64 `json:"read_bytes"`
		Regions     int64 `json:"regions"`
		PinnedBytes int64 `json:"pinned_bytes"`
		CachedBytes int64 `json:"cached_bytes"`
	} `json:"stats"`
}

// Member is an entry of .kvfs/members: another node, or the node itself.
type Member struct {
	Name        string   `json:"name"`
	State       string   `json:"state"`
	Reason      string   `json:"reason"`
	Self        bool     `json:"self"`
	GossipAddr  string   `json:"gossip_addr"`
	ControlAddr string   `json:"control_addr"`
	BulkAddr    string   `json:"bulk_addr"`
	Version     string   `json:"version"`
	Features    []string `json:"features"`
	Missing     []string `json:"missing"`
	Path        string   `json:"path"`
	PathReason  string   `json:"path_reason"`
	Blocks      int64    `json:"blocks"`
	Feed        string   `json:"feed"`
	Snapshots   uint64   `json:"snapshots"`
	Breaker     string   `json:"breaker"`
	Failures    uint64   `json:"failures"`
	LastError   string   `json:"last_error"`
	FetchedKeys uint64   `json:"fetched_blocks"`
	FetchedSize uint64   `json:"fetched_bytes"`

	SettingsDiffer bool    `json:"settings_differ"`
	ClockAhead     float64 `json:"clock_ahead_seconds"`
	ClockError     float64 `json:"clock_error_seconds"`
}

// Cluster reads the entry of the cluster in the node's status.
func (n *Node) Cluster() ClusterStatus {
	n.tb.Helper()
	b, err := os.ReadFile(n.Path(".kvfs", "status"))
	if err != nil {
		n.tb.Fatal(err)
	}
	var doc struct {
		Cluster ClusterStatus `json:"cluster"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		n.tb.Fatalf("status: %v\n%s", err, b)
	}
	return doc.Cluster
}

// Rejected returns how many messages of strangers the node has refused since it started.
func (n *Node) Rejected() uint64 {
	n.tb.Helper()
	raw := n.Cluster().Rejected
	var one uint64
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var many map[string]uint64
	if err := json.Unmarshal(raw, &many); err != nil {
		n.tb.Fatalf("rejected of status: %v: %s", err, raw)
	}
	for _, v := range many {
		one += v
	}
	return one
}

// Members reads .kvfs/members: an array, or one member a line.
func (n *Node) Members() []Member {
	n.tb.Helper()
	b, err := os.ReadFile(n.Path(".kvfs", "members"))
	if err != nil {
		n.tb.Fatal(err)
	}
	members, err := parseMembers(b)
	if err != nil {
		n.tb.Fatalf("members: %v\n%s", err, b)
	}
	return members
}

// parseMembers reads an array or lines.
func parseMembers(b []byte) ([]Member, error) {
	b = bytes.TrimSpace(b)
	var members []Member
	if bytes.HasPrefix(b, []byte("[")) {
		err := json.Unmarshal(b, &members)
		return members, err
	}
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var m Member
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return members, nil
		} else if err != nil {
			return nil, err
		}
		members = append(members, m)
	}
}

// Member returns the entry of the member with that name in the list of the node, or the zero Member.
func (n *Node) Member(name string) Member {
	n.tb.Helper()
	for _, m := range n.Members() {
		if m.Name == name {
			return m
		}
	}
	return Member{}
}

// WaitState waits until the node has seen another one in one of the states.
func (n *Node) WaitState(other *Node, states ...string) {
	n.tb.Helper()
	n.cluster.poll(func() string {
		if m := n.Member(other.Name); !slices.Contains(states, m.State) {
			return fmt.Sprintf("%s has %s as %q (%s), want %q", n.Name, other.Name, m.State, m.Reason, states)
		}
		return ""
	})
}

// Running returns the nodes whose daemons run.
func (c *Cluster) Running() []*Node {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(n *Node) bool { return !n.Daemon.Running() })
}

// WaitJoined waits until all running nodes see each other as alive and follow the feeds of each other.
func (c *Cluster) WaitJoined() {
	c.tb.Helper()
	c.poll(func() string { return c.disagreement(false) })
}

// WaitQuiet also waits until each node has in its index as many blocks and directories of each
// other node as that node holds.
func (c *Cluster) WaitQuiet() {
	c.tb.Helper()
	c.poll(func() string { return c.disagreement(!c.opts.Owned) })
}

// disagreement returns the first thing on which the running nodes do not agree yet, or "".
func (c *Cluster) disagreement(blocks bool) string {
	nodes := c.Running()
	var slack int64 // earlier versions count the directory of the blocks, too
	if c.opts.Binary != nil {
		slack = 1
	}
	views := map[string]map[string]Member{}
	for _, n := range nodes {
		views[n.Name] = map[string]Member{}
		for _, m := range n.Members() {
			views[n.Name][m.Name] = m
		}
	}
	for _, n := range nodes {
		for _, other := range nodes {
			m := views[n.Name][other.Name]
			if m.State != "alive" {
				return fmt.Sprintf("%s has %s as %q (%s)", n.Name, other.Name, m.State, m.Reason)
			}
			if n != other && m.Feed != "following" {
				return fmt.Sprintf("%s has the feed of %s as %q (%s)", n.Name, other.Name, m.Feed, m.LastError)
			}
			if holds := views[other.Name][other.Name].Blocks; blocks && max(m.Blocks-holds, holds-m.Blocks) > slack {
				return fmt.Sprintf("%s knows %d blocks of %s, which holds %d", n.Name, m.Blocks, other.Name, holds)
			}
		}
	}
	return ""
}

// poll calls check until it returns "". If that takes longer than Deadline it fails the test with
// the last result.
func (c *Cluster) poll(check func() string) {
	c.tb.Helper()
	deadline := time.After(Deadline)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		why := check()
		if why == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.tb.Fatalf("after %v still: %s", Deadline, why)
		}
	}
}
