package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// table is the name of the nft table in each namespace.
const table = "kvt"

// rules makes the table of a node. Packets from the addresses in the set "from" are dropped on
// arrival, so that the sender gets no error. TCP packets of the ports in the set "ports" are
// counted in both directions, and so are all UDP packets.
func (n *Net) rules(i int) error {
	_, err := n.run(i, `table inet `+table+` {
	set from { type ipv4_addr; }
	set ports { type inet_service; }
	counter tcp_packets {}
	counter udp_packets {}
	chain in {
		type filter hook input priority 0;
		ip saddr @from drop
		tcp dport @ports counter name tcp_packets accept
		tcp sport @ports counter name tcp_packets accept
		meta l4proto udp counter name udp_packets
	}
	chain out {
		type filter hook output priority 0;
		tcp dport @ports counter name tcp_packets accept
		tcp sport @ports counter name tcp_packets accept
		meta l4proto udp counter name udp_packets
	}
}
`, "nft", "-f", "-")
	return err
}

// PartitionOneWay drops packets of node from to node to.
func (n *Net) PartitionOneWay(from, to int) error {
	_, err := n.Run(to, "nft", "add", "element", "inet", table, "from", "{ "+n.Addr(from)+" }")
	return err
}

// Partition drops packets between two nodes.
func (n *Net) Partition(i, j int) error {
	return errors.Join(n.PartitionOneWay(i, j), n.PartitionOneWay(j, i))
}

// Isolate drops packets between a node and all others.
func (n *Net) Isolate(i int) error {
	var errs []error
	for j := range n.nodes {
		if j != i {
			errs = append(errs, n.Partition(i, j))
		}
	}
	return errors.Join(errs...)
}

// Heal ends all partitions.
func (n *Net) Heal() error {
	var errs []error
	for i := range n.nodes {
		_, err := n.Run(i, "nft", "flush", "set", "inet", table, "from")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Count adds to the TCP ports whose packets a node counts.
func (n *Net) Count(i int, ports ...string) error {
	_, err := n.Run(i, "nft", "add", "element", "inet", table, "ports", "{ "+strings.Join(ports, ", ")+" }")
	return err
}

// Counted returns how many packets a node has sent and received: of TCP on the ports
// of Count, and of UDP on all.
func (n *Net) Counted(i int) (tcp, udp uint64, err error) {
	text, err := n.Run(i, "nft", "-j", "list", "counters", "table", "inet", table)
	if err != nil {
		return 0, 0, err
	}
	var doc struct {
		Nftables []struct {
			Counter struct {
				Name    string `json:"name"`
				Packets uint64 `json:"packets"`
			} `json:"counter"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return 0, 0, fmt.Errorf("counters of nft: %w\n%s", err, text)
	}
	for _, o := range doc.Nftables {
		switch o.Counter.Name {
		case "tcp_packets":
			tcp = o.Counter.Packets
		case "udp_packets":
			udp = o.Counter.Packets
		}
	}
	return tcp, udp, nil
}

// Traffic is the traffic of a node's link.
type Traffic struct {
	ReceivedBytes, ReceivedPackets uint64
	SentBytes, SentPackets         uint64
}

// Traffic returns the totals of a node's link since the network was made.
func (n *Net) Traffic(i int) (Traffic, error) {
	var text []byte
	err := n.Do(i, func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return Traffic{}, err
	}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if strings.TrimSpace(name) != device || len(f) < 10 {
			continue
		}
		var v [10]uint64
		for k := range v {
			if v[k], err = strconv.ParseUint(f[k], 10, 64); err != nil {
				return Traffic{}, err
			}
		}
		return Traffic{v[0], v[1], v[8], v[9]}, nil
	}
	return Traffic{}, fmt.Errorf("no %s in /proc/net/dev:\n%s", device, text)
}
