package main

import (
	"container/heap"
	"math"
)

// optimum returns how many blocks are hit by an order that knows the trace: of the blocks that are there and the
// newcomer, that goes whose next use is farthest away.
func optimum(room int, requests [][]int) (hits int) {
	next := nextUses(requests)
	there := map[int]int{} // the next use of each block that is there
	var order farthest     // may also have former uses of them
	for _, blocks := range requests {
		hit := true
		for _, b := range blocks {
			_, found := there[b]
			if hit = hit && found; hit {
				hits++
			}
			there[b] = next[0]
			heap.Push(&order, use{b, next[0]})
			next = next[1:]
			for len(there) > room {
				u := heap.Pop(&order).(use)
				if at, found := there[u.block]; found && at == u.next {
					delete(there, u.block)
				}
			}
		}
	}
	return hits
}

// nextUses returns for each use of a block in a trace when the block is used next: the number of that use.
func nextUses(requests [][]int) []int {
	var uses []int
	for _, blocks := range requests {
		uses = append(uses, blocks...)
	}
	next, later := make([]int, len(uses)), map[int]int{}
	for i := len(uses) - 1; i >= 0; i-- {
		next[i] = math.MaxInt
		if n, found := later[uses[i]]; found {
			next[i] = n
		}
		later[uses[i]] = i
	}
	return next
}

// use is a block and its next use.
type use struct{ block, next int }

// farthest is a heap of uses.
type farthest []use

func (f farthest) Len() int           { return len(f) }
func (f farthest) Less(i, j int) bool { return f[i].next > f[j].next }
func (f farthest) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *farthest) Push(x any)        { *f = append(*f, x.(use)) }
func (f *farthest) Pop() any {
	last := len(*f) - 1
	u := (*f)[last]
	*f = (*f)[:last]
	return u
}
