package nic

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// names splits an entry into the devices that it joins.
func names(entry string) []string {
	names := strings.Split(entry, "+")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// Plan applies a policy. list is rdma.devices: nil leaves the choice to the policy, but ByGPUIndex
// needs a list. A list of one entry needs no GPU. The error is one of this package, with list, GPU
// and reason.
//
// The plan has between 1 and MaxRails rails, and no device twice. With ByGPUIndex and ByAffinity
// they are in the order of the GPUs, so machines of one kind have the same order. Otherwise they
// are in the order of the list or of the names.
func (inv *Inventory) Plan(p Policy, list []string) (*Plan, error) {
	pl := &planner{inv: inv, gpus: inv.visible(), plan: &Plan{Policy: p, Notes: slices.Clone(inv.notes)}}
	if inv.GPUError != "" && len(inv.GPUs) > 0 {
		pl.note("not all GPUs are known: %s", inv.GPUError)
	}
	entries, err := pl.resolve(list)
	if err != nil {
		return nil, err
	}
	switch p {
	case ByGPUIndex:
		err = pl.byGPUIndex(list, entries)
	case ByAffinity:
		pl.byAffinity(pl.candidates(entries))
	case All:
		for _, d := range pl.candidates(entries) {
			pl.add(d, nil)
		}
	case Single:
		if devices := pl.candidates(entries); len(devices) > 0 {
			pl.add(devices[0], nil)
		}
	default:
		err = fmt.Errorf("%w: %q: one of %s, %s, %s, %s", ErrPolicy, p, ByGPUIndex, ByAffinity, All, Single)
	}
	if err != nil {
		return nil, err
	}
	return pl.finish()
}

// planner makes one Plan.
type planner struct {
	inv  *Inventory
	gpus []*GPU // local ones
	plan *Plan
	down []string // devices left out, with the state of their port
}

func (pl *planner) note(format string, args ...any) {
	pl.plan.Notes = append(pl.plan.Notes, fmt.Sprintf(format, args...))
}

// resolve finds the devices that the entries of a list name. It leaves out devices that are down.
func (pl *planner) resolve(list []string) ([][]*Device, error) {
	entries := make([][]*Device, len(list))
	for i, entry := range list {
		for _, name := range names(entry) {
			if name == "" {
				return nil, fmt.Errorf("device list %q %w", strings.Join(list, ","), ErrEmptyEntry)
			}
			d := pl.find(name)
			switch {
			case d == nil:
				return nil, fmt.Errorf("%w: %q: there are %s", ErrNoDevice, name, pl.inv.deviceNames())
			case !d.Active():
				pl.leaveOut(d)
			default:
				entries[i] = append(entries[i], d)
			}
		}
	}
	return entries, nil
}

// find returns the port that "name:port" or "name" names. For a device with several ports it is the
// first usable one. It returns nil if there is none.
func (pl *planner) find(name string) *Device {
	name, port, exact := strings.Cut(name, ":")
	var found *Device
	for i := range pl.inv.Devices {
		d := &pl.inv.Devices[i]
		if d.Name != name {
			continue
		}
		if exact && strconv.Itoa(d.Port) == port {
			return d
		}
		if !exact && (found == nil || !found.usable() && d.usable() || !found.Active() && d.Active()) {
			found = d
		}
	}
	return found
}

// usable reports whether d can be chosen without being named: it is active, and on Ethernet it has
// an address.
func (d *Device) usable() bool {
	return d.Active() && (d.LinkLayer != "Ethernet" || d.iwarp || d.GIDIndex >= 0)
}

// leaveOut notes that d is not active.
func (pl *planner) leaveOut(d *Device) {
	if text := fmt.Sprintf("%s is %s", d, cmp.Or(d.State, "in no state")); !slices.Contains(pl.down, text) {
		pl.down = append(pl.down, text)
	}
}

// candidates returns the active devices of a list, or without a list all usable devices, one port
// of each.
func (pl *planner) candidates(entries [][]*Device) []*Device {
	if len(entries) > 0 {
		return slices.Concat(entries...)
	}
	var devices []*Device
	for i := range pl.inv.Devices {
		d := &pl.inv.Devices[i]
		switch {
		case !d.Active():
			pl.leaveOut(d)
		case !d.usable():
			pl.note("%s has no RoCE v2 GID and is left out: give %s an IP address", d, cmp.Or(d.Netdev, "its network interface"))
		default:
			devices = append(devices, d)
		}
	}
	return devices
}

// byGPUIndex takes for each local GPU the entry at its index; a list of one entry is for all.
func (pl *planner) byGPUIndex(list []string, entries [][]*Device) error {
	text := strings.Join(list, ",")
	switch {
	case len(list) == 0:
		return ErrNoList
	case len(list) > 1 && len(pl.gpus) == 0:
		return fmt.Errorf("%w, for the device list %s: %s", ErrNoGPU, text, pl.inv.whyNoGPU())
	case len(pl.gpus) == 0:
		for _, d := range entries[0] {
			pl.add(d, nil)
		}
	}
	for _, g := range pl.gpus {
		i := g.Index
		if len(list) == 1 {
			i = 0
		}
		if i < 0 || i >= len(list) {
			return fmt.Errorf("%w %d: %s", ErrNotCovered, g.Index, text)
		}
		for _, d := range entries[i] {
			pl.add(d, g)
		}
		if len(entries[i]) == 0 {
			pl.note("GPU %d has no device of its own: %s is down", g.Index, list[i])
		}
	}
	return nil
}

// byAffinity takes for each local GPU the nearest of devices, or all devices if there is no GPU.
func (pl *planner) byAffinity(devices []*Device) {
	if len(devices) > 0 && len(pl.gpus) == 0 {
		pl.note("no GPU to be near to, all devices are used: %s", pl.inv.whyNoGPU())
		for _, d := range devices {
			pl.add(d, nil)
		}
	}
	for _, g := range pl.gpus {
		nearest, how := pl.inv.nearest(g, devices)
		for _, d := range nearest {
			pl.add(d, g)
		}
		if how.class == classSYS {
			pl.note("GPU %d is far from any device: the nearest, %s, is on another NUMA node", g.Index, nearest[0])
		}
	}
}

// add makes d a rail for g; nil: for no particular GPU.
func (pl *planner) add(d *Device, g *GPU) {
	rails := pl.plan.Rails
	i := slices.IndexFunc(rails, func(r Rail) bool { return r.Device.Name == d.Name })
	switch {
	case i < 0:
		i = len(rails)
		rails = append(rails, Rail{Device: *d})
	case rails[i].Device.Port != d.Port:
		pl.note("%s is left out: one port of each device is used", d)
		return
	}
	pl.plan.Rails = rails
	r := &rails[i]
	if g == nil || slices.Contains(r.GPUs, g.Index) {
		return
	}
	if path := classNames[pl.inv.nearness(g, d).class]; len(r.GPUs) == 0 || farther(path, r.Path) {
		r.Path = path
	}
	r.GPUs = append(r.GPUs, g.Index)
}

// farther reports whether class name a is farther than b.
func farther(a, b string) bool {
	return slices.Index(classNames[:], a) > slices.Index(classNames[:], b)
}

// finish checks the rails and adds notes for the operator.
func (pl *planner) finish() (*Plan, error) {
	down := strings.Join(pl.down, ", ")
	p := pl.plan
	switch {
	case len(p.Rails) > 0:
	case len(pl.inv.Devices) == 0:
		return nil, fmt.Errorf("%w: there are none", ErrNoDevice)
	default:
		return nil, fmt.Errorf("%w that can be used: %s", ErrNoDevice, strings.Join(append(slices.Clone(pl.down), p.Notes...), "; "))
	}
	if down != "" {
		pl.note("left out: %s", down)
	}
	if n := len(p.Rails); n > MaxRails {
		pl.note("the first %d of %d devices are used: name those that you want", MaxRails, n)
		p.Rails = p.Rails[:MaxRails]
	}
	p.Striped = p.Policy == All && len(p.Rails) > 1
	for i := range p.Rails {
		pl.addressNotes(&p.Rails[i].Device)
	}
	first := &p.Rails[0].Device
	if i := slices.IndexFunc(p.Rails, func(r Rail) bool { return r.Device.LinkLayer != first.LinkLayer }); i > 0 {
		d := &p.Rails[i].Device
		pl.note("%s is %s and %s is %s: peers may not reach one from the other, name the devices of one network", first, first.LinkLayer, d, d.LinkLayer)
	}
	return p, nil
}

// addressNotes adds a note if peers may not reach d by its addresses. EFA needs none.
func (pl *planner) addressNotes(d *Device) {
	netdev := cmp.Or(d.Netdev, "its network interface")
	roce := d.LinkLayer == "Ethernet" && !d.iwarp
	switch {
	case d.Driver == "efa":
	case roce && d.GIDIndex < 0:
		pl.note("%s has no RoCE v2 GID: give %s an IP address", d, netdev)
	case roce && len(d.Addrs) > 0 && rank(d.Addrs[0]) == 2:
		pl.note("%s has only a link-local address: peers of other subnets cannot reach it, give %s an IP address", d, netdev)
	case pl.inv.addrs && len(d.Addrs) == 0:
		pl.note("%s has no IP address, by which connections are made: give %s one", d, netdev)
	}
}

// deviceNames returns the names of all devices, for messages.
func (inv *Inventory) deviceNames() string {
	var names []string
	for i := range inv.Devices {
		names = append(names, inv.Devices[i].Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(slices.Compact(names), ", ")
}
