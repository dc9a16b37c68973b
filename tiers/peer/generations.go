package peer

import (
	"slices"
	"time"
)

// generations has hints that lapse hintTime after they came. They are in two maps by path: the young one gets new hints;
// when it is full or hintTime old it becomes the old one, and the old one goes as a whole. So no hint goes before its time
// unless more than limit others came since, and no call takes longer with more hints.
type generations struct {
	young, old generation
	limit      int       // of the hints in each
	turned     time.Time // when young was made
}

type generation struct {
	byPath map[string][]hint
	count  int // of hints
}

// turn drops the old generation if it is time. Every other method wants that done first.
func (g *generations) turn(now time.Time) {
	age := now.Sub(g.turned)
	if age < hintTime && g.young.count < g.limit {
		return
	}
	g.old, g.young, g.turned = g.young, generation{byPath: make(map[string][]hint)}, now
	if age >= 2*hintTime { // the latest came before hintTime, or turn would have been called since
		g.old = generation{}
	}
}

func (g *generations) count() int { return g.young.count + g.old.count }

// get returns the hints of a path: all are in one of the generations. The caller must not change them.
func (g *generations) get(path string) []hint {
	if list := g.young.byPath[path]; len(list) > 0 {
		return list
	}
	return g.old.byPath[path]
}

// set replaces the hints of a path, among which are new ones.
func (g *generations) set(path string, list []hint) {
	g.young.set(path, list)
	g.old.set(path, nil)
}

// remove drops the hints of a path for which gone is true.
func (g *generations) remove(path string, gone func(h *hint) bool) {
	for _, one := range []*generation{&g.young, &g.old} {
		if list := one.byPath[path]; len(list) > 0 {
			one.set(path, slices.DeleteFunc(list, func(h hint) bool { return gone(&h) }))
		}
	}
}

func (g *generation) set(path string, list []hint) {
	g.count += len(list) - len(g.byPath[path])
	if len(list) == 0 {
		delete(g.byPath, path)
	} else {
		g.byPath[path] = list
	}
}
