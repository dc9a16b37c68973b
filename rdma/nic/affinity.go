package nic

import (
	"cmp"
	"math"
	"strings"
)

// Classes of nearness, nearest first. The last class is for devices of which nothing is known. It
// has no name.
const (
	classPIX = iota
	classPXB
	classPHB
	classNODE
	classSYS
	classUnknown
)

var classNames = [...]string{classPIX: "PIX", classPXB: "PXB", classPHB: "PHB", classNODE: "NODE", classSYS: "SYS", classUnknown: ""}

// nearness is how near a device is to a GPU; see the package comment.
type nearness struct {
	class    int
	common   int // length of the common path
	distance int // between their NUMA nodes
}

// nearness returns how near d is to g.
func (inv *Inventory) nearness(g *GPU, d *Device) nearness {
	if common, rest := part(g.path, d.path); common > 0 {
		switch {
		case common == 1:
			return nearness{class: classPHB, common: common}
		case rest > 2:
			return nearness{class: classPXB, common: common}
		}
		return nearness{class: classPIX, common: common}
	}
	switch {
	case g.NUMA < 0 || d.NUMA < 0:
		return nearness{class: classUnknown}
	case g.NUMA == d.NUMA:
		return nearness{class: classNODE}
	}
	n := nearness{class: classSYS, distance: math.MaxInt}
	if distance, ok := inv.distances[[2]int{g.NUMA, d.NUMA}]; ok {
		n.distance = distance
	}
	return n
}

// compare is below 0 if n is nearer than m, 0 if they are equally near.
func (n nearness) compare(m nearness) int {
	return cmp.Or(
		cmp.Compare(n.class, m.class),
		cmp.Compare(m.common, n.common),
		cmp.Compare(n.distance, m.distance))
}

// part returns how many elements two paths have in common from the start, and how many more the
// longer one has: 1 for functions of one card, 2 if each has its own bridge.
func part(a, b string) (common, rest int) {
	if a == "" || b == "" {
		return 0, 0
	}
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	for common < min(len(as), len(bs)) && as[common] == bs[common] {
		common++
	}
	return common, max(len(as), len(bs)) - common
}

// nearest returns the devices that are nearest to g, and how near they are.
func (inv *Inventory) nearest(g *GPU, devices []*Device) (nearest []*Device, how nearness) {
	for _, d := range devices {
		n := inv.nearness(g, d)
		c := -1
		if nearest != nil {
			c = n.compare(how)
		}
		switch {
		case c < 0:
			nearest, how = []*Device{d}, n
		case c == 0:
			nearest = append(nearest, d)
		}
	}
	return nearest, how
}
