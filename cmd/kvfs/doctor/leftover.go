package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// leftoverChecks are about what dead daemons have left.
func leftoverChecks() []Check {
	return []Check{
		{Name: "daemon", Run: checkDaemon},
		{Name: "mounts", Run: checkMounts},
		{Name: "memory without daemon", Run: checkStores},
	}
}

func checkDaemon(_ context.Context, e *Env) Result {
	switch {
	case e.Mount == "":
		return skip("no mount is named: kvfs doctor MOUNT")
	case e.Status == nil:
		return fail("see docs/operations.md: Nothing answers", "%v", e.StatusErr)
	}
	for _, t := range e.Status.Tiers {
		if t.State != "" && t.State != "online" {
			return warn("kvfs status "+e.Mount, "the daemon answers; its tier %s is %s", t.Name, show.State(t.State, t.Reason))
		}
	}
	return ok("the daemon answers, and its tiers are online")
}

func checkMounts(_ context.Context, e *Env) Result {
	var points, faults []string
	for _, m := range e.Table {
		if mounts.IsOurs(m) {
			points = append(points, m.Mountpoint)
			if e.Abandoned(m) { // not asked: the answer might never come
				faults = append(faults, m.Mountpoint)
			}
		}
	}
	if len(points) == 0 {
		return skip("this machine has no kvfs mount")
	}
	if len(faults) == 0 {
		faults = e.silent(points)
	}
	if len(faults) > 0 {
		return fail("kvfs mount "+faults[0]+", with the settings it had, which starts it again with its blocks; kvfs umount "+faults[0]+" gives them up", "%d of %d kvfs mounts have no daemon that answers: %s", len(faults), len(points), strings.Join(faults, ", "))
	}
	return ok("the daemons of all %d kvfs mounts answer", len(points))
}

// silent returns the mounts whose daemon is dead or does not answer.
func (e *Env) silent(points []string) []string {
	bad := make([]bool, len(points))
	var asked sync.WaitGroup
	for i, point := range points {
		asked.Go(func() {
			err := e.Answers(point)
			bad[i] = mounts.Dead(err) || errors.Is(err, mounts.ErrSilent)
		})
	}
	asked.Wait()
	var found []string
	for i, point := range points {
		if bad[i] {
			found = append(found, point)
		}
	}
	return found
}

func checkStores(_ context.Context, e *Env) Result {
	all, err := e.Stores()
	if err != nil {
		return skip("the memory of daemons cannot be listed: %v", err)
	}
	var left []string
	remedy := ""
	for _, s := range all {
		if s.Alive || s.Problem != "" && !s.Mounted { // the latter is another directory, as that of sockets
			continue
		}
		text := fmt.Sprintf("%s has %s", s.Dir, show.Bytes(s.Bytes))
		if s.Label != "" {
			text += " of the mount " + s.Label
		}
		left = append(left, text)
		if remedy == "" && s.Mounted {
			remedy = "kvfs mount on that directory adopts the blocks; umount " + s.Dir + " drops them"
		} else if remedy == "" {
			remedy = "kvfs mount on that directory adopts the blocks; rm -r " + s.Dir + " drops them"
		}
	}
	if len(left) > 0 {
		return warn(remedy, "no daemon uses this memory: %s", strings.Join(left, "; "))
	}
	return ok("no memory of a dead daemon is left")
}
