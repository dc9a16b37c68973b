package nic

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// sysfs reads what the kernel reports about devices.
//
// Source: Documentation/ABI/stable/sysfs-class-infiniband of Linux.
type sysfs struct {
	root  string // without symbolic links
	addrs func(netdev string) []netip.Addr
	nodes []int // NUMA nodes
}

var (
	hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`)
	pciDevice  = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
)

func openSysfs(o Options) (*sysfs, error) {
	fs := &sysfs{root: o.Sysfs, addrs: o.addrs}
	if fs.root == "" {
		fs.root = "/sys"
		if fs.addrs == nil {
			fs.addrs = interfaceAddrs
		}
	}
	var err error
	if fs.root, err = filepath.EvalSymlinks(fs.root); err != nil {
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	if _, err = os.ReadDir(fs.root); err != nil {
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	fs.nodes = parseNodes(fs.read("devices/system/node/online"))
	return fs, nil
}

// read returns the content of file name, trimmed; "" if it cannot be read. Some files of sysfs fail
// if there is nothing to report, such as those of an empty GID.
func (fs *sysfs) read(name string) string {
	text, err := os.ReadFile(filepath.Join(fs.root, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// list returns the names in directory name, in natural order, or none if there is no such
// directory.
func (fs *sysfs) list(name string) []string {
	entries, err := os.ReadDir(filepath.Join(fs.root, name))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	slices.SortFunc(names, natural)
	return names
}

// devices returns the ports of all RDMA devices.
func (fs *sysfs) devices() ([]Device, error) {
	const class = "class/infiniband"
	if _, err := os.ReadDir(filepath.Join(fs.root, class)); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	devices := []Device{}
	for _, name := range fs.list(class) {
		dir := class + "/" + name
		for _, port := range fs.list(dir + "/ports") {
			// Port 0 manages a switch.
			if n, err := strconv.Atoi(port); err == nil && n > 0 {
				devices = append(devices, fs.device(dir, name, n))
			}
		}
	}
	return devices, nil
}

// device reads port n of the RDMA device in dir.
func (fs *sysfs) device(dir, name string, n int) Device {
	port := dir + "/ports/" + strconv.Itoa(n)
	d := Device{
		Name:      name,
		Port:      n,
		Driver:    fs.driver(dir),
		State:     afterColon(fs.read(port + "/state")),
		LinkLayer: fs.read(port + "/link_layer"),
		Rate:      fs.read(port + "/rate"),
		GIDIndex:  -1,
		iwarp:     afterColon(fs.read(dir+"/node_type")) == "RNIC",
	}
	d.path, d.NUMA = fs.pci(dir + "/device")
	if d.path != "" {
		d.PCI = filepath.Base(d.path)
	}
	var gids []gid
	if d.LinkLayer == "Ethernet" && !d.iwarp {
		gids = fs.gids(port)
		if best := bestGID(gids); best != nil {
			d.GIDIndex, d.GID, d.Netdev = best.index, best.addr.String(), best.netdev
		}
	}
	if d.Netdev == "" {
		d.Netdev = fs.netdev(dir, n)
	}
	if fs.addrs != nil && d.Netdev != "" {
		d.Addrs = fs.addrs(d.Netdev)
	} else {
		d.Addrs = addrsOf(gids, d.Netdev)
	}
	slices.SortStableFunc(d.Addrs, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	return d
}

// driver returns the name of the driver of the RDMA device in dir. The two software drivers belong
// to no device with a driver. rxe names its network interface in a file of its own; the other one
// is siw.
func (fs *sysfs) driver(dir string) string {
	if fs.read(dir+"/parent") != "" {
		return "rdma_rxe"
	}
	link, err := os.Readlink(filepath.Join(fs.root, dir, "device/driver"))
	if err == nil {
		return filepath.Base(link)
	}
	if afterColon(fs.read(dir+"/node_type")) == "RNIC" {
		return "siw"
	}
	return ""
}

// netdev returns the network interface of port n of the RDMA device in dir. It is the interface of
// the PCI function that the driver gives the number of the port. A function may have more, for
// virtual ones or partitions; those are later in order.
func (fs *sysfs) netdev(dir string, n int) string {
	if parent := fs.read(dir + "/parent"); parent != "" {
		return parent
	}
	names := fs.list(dir + "/device/net")
	for _, name := range names {
		if devPort, err := strconv.Atoi(fs.read(dir + "/device/net/" + name + "/dev_port")); err == nil && devPort == n-1 {
			return name
		}
	}
	if len(names) > 0 && n == 1 {
		return names[0]
	}
	return ""
}

// pci follows the link dir to a device. It returns the path from the host bridge down to the PCI
// function, "" if the device is not on PCI, and the NUMA node, -1 if unknown. The device may be a
// part of the function, as those of mlx5 sub-functions are.
func (fs *sysfs) pci(dir string) (path string, node int) {
	node = -1
	if len(fs.nodes) == 1 {
		// A machine with one node does not always report it for each device.
		node = fs.nodes[0]
	}
	resolved, err := filepath.EvalSymlinks(filepath.Join(fs.root, dir))
	if err != nil {
		return "", node
	}
	rel, err := filepath.Rel(filepath.Join(fs.root, "devices"), resolved)
	if err != nil {
		return "", node
	}
	parts := strings.Split(rel, "/")
	first := slices.IndexFunc(parts, hostBridge.MatchString)
	last := -1
	for i, part := range parts {
		if pciDevice.MatchString(part) {
			last = i
		}
	}
	if first < 0 || last < first {
		return "", node
	}
	function := "devices/" + strings.Join(parts[:last+1], "/")
	if n, err := strconv.Atoi(fs.read(function + "/numa_node")); err == nil && n >= 0 {
		node = n
	}
	return strings.Join(parts[first:last+1], "/"), node
}

// distances returns how far NUMA nodes are from each other, as the firmware says.
func (fs *sysfs) distances() map[[2]int]int {
	distances := map[[2]int]int{}
	for _, from := range fs.nodes {
		row := strings.Fields(fs.read(fmt.Sprintf("devices/system/node/node%d/distance", from)))
		for i, to := range fs.nodes {
			if i >= len(row) {
				break
			}
			if n, err := strconv.Atoi(row[i]); err == nil {
				distances[[2]int{from, to}] = n
			}
		}
	}
	return distances
}

// parseNodes reads a list of NUMA nodes: "0-1,4".
func parseNodes(text string) []int {
	const maxNodes = 1024 // of Linux
	var nodes []int
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(low)
		if err != nil {
			continue
		}
		to := from
		if isRange {
			if to, err = strconv.Atoi(high); err != nil {
				continue
			}
		}
		for n := max(from, 0); n <= to && len(nodes) < maxNodes; n++ {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// normalPCI writes a PCI address as sysfs does. The NVIDIA library uses eight digits of domain, and
// capitals.
func normalPCI(address string) string {
	address = strings.ToLower(address)
	domain, rest, ok := strings.Cut(address, ":")
	n, err := strconv.ParseUint(domain, 16, 32)
	if !ok || err != nil {
		return address
	}
	return fmt.Sprintf("%04x:%s", n, rest)
}

// afterColon returns the word of a value like "4: ACTIVE".
func afterColon(value string) string {
	if _, word, ok := strings.Cut(value, ":"); ok {
		return strings.TrimSpace(word)
	}
	return value
}

// interfaceAddrs returns the IP addresses of a network interface of this machine.
func interfaceAddrs(netdev string) []netip.Addr {
	ifi, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil
	}
	all, err := ifi.Addrs()
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for _, a := range all {
		if ipnet, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ipnet.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs
}
