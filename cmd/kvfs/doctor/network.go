package doctor

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
)

// networkChecks are about the network of this machine.
func networkChecks() []Check {
	return []Check{
		{Name: "cards and GPUs", Run: needConfig(checkRDMA)},
		{Name: "ports", Run: needConfig(checkPorts)},
		{Name: "clock", Run: needConfig(checkClock)},
	}
}

func checkRDMA(ctx context.Context, e *Env, cfg *config.Config) Result {
	switch {
	case cfg.Bind == "":
		return skip("there are no peers: bind is not set")
	case cfg.Peer.Transport == config.TransportTCP:
		return skip("peer.transport is tcp")
	}
	r, err := e.RDMA(ctx)
	if err != nil {
		return fail("kvfs doctor rdma", "%v", err)
	}
	found := fmt.Sprintf("%d cards, %d GPUs", len(r.Devices), len(r.GPUs))
	if r.Plan != nil {
		found += ", plan " + cmp.Or(strings.Join(rails.Describe(r.Plan), "; "), "of no card")
	}
	switch {
	case r.Usable:
		return ok("RDMA works: %s", found)
	case cfg.Peer.Transport == config.TransportRDMA:
		return fail("kvfs doctor rdma", "%s; RDMA cannot be used: %s", found, r.Error)
	case len(r.Devices) == 0:
		return ok("%s: blocks of peers come by TCP", found)
	}
	return warn("kvfs doctor rdma", "%s; blocks of peers come by TCP, because RDMA cannot be used: %s", found, r.Error)
}

func checkClock(_ context.Context, e *Env, cfg *config.Config) Result {
	if cfg.Bind == "" {
		return skip("there are no peers: bind is not set")
	}
	synced, err := e.Synced()
	switch {
	case err != nil:
		return skip("the kernel does not tell: %v", err)
	case !synced:
		return warn("run chronyd or another client of NTP", "nothing sets the clock of this machine")
	}
	return ok("the clock of this machine is set by another one")
}

// listener is a socket that waits for others.
type listener struct {
	udp   bool
	at    netip.AddrPort
	inode string
}

func checkPorts(_ context.Context, e *Env, cfg *config.Config) Result {
	var wanted []port
	for _, w := range []struct {
		setting, address string
		udp              bool
	}{
		{"bind", cfg.Bind, false}, {"bind", cfg.Bind, true}, {"peer.control", cfg.Peer.Control, false}, {"peer.bulk", cfg.Peer.Bulk, false},
		{"http", cfg.HTTP, false}, {"events.zmq.bind", cfg.Events.ZMQ.Bind, false}, {"events.zmq.replay", cfg.Events.ZMQ.Replay, false},
	} {
		if p, fixed := parsePort(w.setting, w.address, w.udp); fixed {
			wanted = append(wanted, p)
		}
	}
	if len(wanted) == 0 {
		return skip("the configuration has no port of its own")
	}
	taken, err := e.listeners()
	if err != nil {
		return skip("the sockets of this machine cannot be read: %v", err)
	}
	var all []Result
	for _, p := range wanted {
		all = append(all, e.checkPort(p, taken))
	}
	return worst(all)
}

// port is a port that a daemon opens.
type port struct {
	setting string
	addr    netip.Addr // not valid: of a name, or all
	number  uint16
	udp     bool
}

// parsePort reads an address of the configuration. It returns false if there is no fixed port.
func parsePort(setting, address string, udp bool) (port, bool) {
	address, isTCP := strings.CutPrefix(address, "tcp://")
	if address == "" || !isTCP && strings.Contains(address, "://") {
		return port{}, false
	}
	host, n, err := scalar.HostPort(address)
	if err != nil { // host:port may have no host
		var text string
		if host, text, err = net.SplitHostPort(address); err == nil {
			n, err = strconv.Atoi(text)
		}
	}
	if err != nil || n <= 0 || n > 65535 {
		return port{}, false
	}
	addr, _ := netip.ParseAddr(host)
	return port{setting, addr.Unmap(), uint16(n), udp}, true
}

// excludes reports whether p cannot be opened while l is there.
func (p port) excludes(l listener) bool {
	all := !p.addr.IsValid() || p.addr.IsUnspecified() || l.at.Addr().IsUnspecified()
	return p.udp == l.udp && p.number == l.at.Port() && (all || p.addr == l.at.Addr())
}

// checkPort looks whether a port is free, or of the daemon of the mount.
func (e *Env) checkPort(p port, taken []listener) Result {
	kind := map[bool]string{false: "TCP", true: "UDP"}[p.udp]
	for _, l := range taken {
		if !p.excludes(l) {
			continue
		}
		if e.PID > 0 && e.owns(e.PID, l.inode) {
			return ok("%s %s %d is open in the daemon", p.setting, kind, p.number)
		}
		if e.PID > 0 && e.UID != 0 {
			return ok("%s %s %d is open; only root sees by whom", p.setting, kind, p.number)
		}
		return fail("end the other process (ss -lntup), or set another port", "%s %s %d is in use by another process", p.setting, kind, p.number)
	}
	if e.PID > 0 {
		return warn("kvfs status --json MOUNT", "%s %s %d is not open in the daemon, which may have other settings", p.setting, kind, p.number)
	}
	return ok("%s %s %d is free", p.setting, kind, p.number)
}

// owns reports whether a process has a socket open.
func (e *Env) owns(pid int, inode string) bool {
	dir := e.path("proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && target == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

// listeners reads the sockets that wait for others.
//
// Source: Documentation/networking/proc_net_tcp.rst of Linux.
func (e *Env) listeners() ([]listener, error) {
	var all []listener
	for _, table := range []struct {
		name, state string
		udp         bool
	}{{"tcp", "0A", false}, {"tcp6", "0A", false}, {"udp", "07", true}, {"udp6", "07", true}} {
		text, err := os.ReadFile(e.path("proc/net", table.name))
		if err != nil {
			if strings.HasSuffix(table.name, "6") {
				continue // no IPv6
			}
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != table.state {
				continue
			}
			if at, ok := parseHexAddr(f[1]); ok {
				all = append(all, listener{table.udp, at, f[9]})
			}
		}
	}
	return all, nil
}

// parseHexAddr reads "0100007F:1F0A": words in the order of bytes of the machine, which is little-endian.
func parseHexAddr(s string) (netip.AddrPort, bool) {
	host, text, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	n, errPort := strconv.ParseUint(text, 16, 16)
	if err != nil || errPort != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		raw[i], raw[i+1], raw[i+2], raw[i+3] = raw[i+3], raw[i+2], raw[i+1], raw[i]
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok
}
