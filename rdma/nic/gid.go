package nic

import (
	"net/netip"
	"slices"
	"strconv"
)

// gid is a RoCE v2 entry of the GID table of a port.
type gid struct {
	index  int
	addr   netip.Addr // as in the table: an IPv4 address is mapped
	netdev string
}

// gids returns the RoCE v2 entries of the GID table of a port, in the order of their
// indexes.
func (fs *sysfs) gids(port string) []gid {
	var gids []gid
	for _, name := range fs.list(port + "/gids") {
		index, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// An empty entry is all zero, and has no type.
		addr, err := netip.ParseAddr(fs.read(port + "/gids/" + name))
		if err != nil || addr.IsUnspecified() || fs.read(port+"/gid_attrs/types/"+name) != "RoCE v2" {
			continue
		}
		gids = append(gids, gid{index, addr, fs.read(port + "/gid_attrs/ndevs/" + name)})
	}
	return gids
}

// rank orders addresses by their reach. A link-local address stays in the subnet. Most fabrics
// route IPv4.
func rank(addr netip.Addr) int {
	switch addr = addr.Unmap(); {
	case addr.IsLinkLocalUnicast():
		return 2
	case addr.Is4():
		return 0
	}
	return 1
}

// bestGID returns the entry to send from: an IPv4 address, else a global IPv6 one, else a
// link-local one; of several the first. It returns nil if there is none.
func bestGID(gids []gid) *gid {
	var best *gid
	for i := range gids {
		if best == nil || rank(gids[i].addr) < rank(best.addr) {
			best = &gids[i]
		}
	}
	return best
}

// addrsOf returns the addresses of a network interface in a GID table.
func addrsOf(gids []gid, netdev string) []netip.Addr {
	var addrs []netip.Addr
	for _, g := range gids {
		if addr := g.addr.Unmap(); g.netdev == netdev && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
