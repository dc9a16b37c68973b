package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Points returns the mount points of the kvfs mounts, sorted. A mount that is at several points counts once, and one
// that lies below another mount does not count.
func (c *Controls) Points() []string {
	var points []string
	seen := map[[2]int]bool{}
	for _, m := range c.Mounts {
		device := [2]int{m.Major, m.Minor}
		_, below, err := mountOf(c.Mounts, m.Mountpoint)
		if m.FSType != mounts.Type || err != nil || below != "." || seen[device] || slices.Contains(points, m.Mountpoint) {
			continue
		}
		seen[device] = true
		points = append(points, m.Mountpoint)
	}
	slices.Sort(points)
	return points
}

// Only returns the only kvfs mount, with the path in the mount table. If there are several, it names them.
func (c *Controls) Only() (string, error) {
	points := c.Points()
	switch len(points) {
	case 0:
		return "", exit.With(exit.NotMount, errors.New("there is no kvfs mount here; to make one, run: kvfs mount DIR"))
	case 1:
		return points[0], nil
	}
	for i, p := range points {
		points[i] = show.Text(p)
	}
	return "", exit.With(exit.Usage, fmt.Errorf("there are %d kvfs mounts; name one of them: %s", len(points), strings.Join(points, ", ")))
}
