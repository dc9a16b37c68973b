package location

import (
	"sync"
	"sync/atomic"
)

// attrs are attributes that many entries have in common: a cluster has few different ones.
type attrs struct {
	mode, uid, gid uint32
}

// otherClass is the class of entries whose attributes have no number. They are in shard.others.
const otherClass = classMask

// classes gives attributes numbers from 1 to otherClass-1. A number never changes.
type classes struct {
	mu  sync.Mutex // makes numbers
	now atomic.Pointer[classTable]
}

// classTable does not change once it is published.
type classTable struct {
	numbers map[attrs]uint16
	list    []attrs // by number; the first is unused
}

// number returns the class of a, a new one if there is none; otherClass if no number is left.
func (c *classes) number(a attrs) uint16 {
	if t := c.now.Load(); t != nil {
		if n, ok := t.numbers[a]; ok {
			return n
		}
		if len(t.list) == otherClass {
			return otherClass
		}
	}
	return c.add(a)
}

func (c *classes) add(a attrs) uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.now.Load()
	if old == nil {
		old = &classTable{list: make([]attrs, 1)}
	}
	if n, ok := old.numbers[a]; ok {
		return n
	}
	if len(old.list) == otherClass {
		return otherClass
	}
	// A new copy each time: this happens at most otherClass times.
	t := &classTable{numbers: make(map[attrs]uint16, len(old.list))}
	for k, n := range old.numbers {
		t.numbers[k] = n
	}
	n := uint16(len(old.list))
	t.numbers[a] = n
	t.list = append(append(make([]attrs, 0, len(old.list)+1), old.list...), a)
	c.now.Store(t)
	return n
}

// attrs returns the attributes of n, a number that was given out. A caller that has n from an entry
// sees the table of that entry, or a later one.
func (c *classes) attrs(n uint16) attrs { return c.now.Load().list[n] }

func (c *classes) bytes() int64 {
	t := c.now.Load()
	if t == nil {
		return 0
	}
	return int64(len(t.list)) * (12 + 2*(12+2+1))
}
