package control

import (
	"slices"
	"sync"
)

// maxFeeds bounds the calls of one peer that follow the feed at a time.
const maxFeeds = 4

// Followers holds the calls that follow the feed. A peer has one call, plus calls of broken
// connections that are not yet known to be dead. Two nodes with the same name are a mistake in
// the configuration. Both keep their calls and do not cut each other off.
//
// The zero Followers is empty. Its methods may be called in parallel. They do not block.
type Followers struct {
	mu struct {
		sync.Mutex
		byName map[string][]*follower // oldest first, at most maxFeeds
	}
}

type follower struct{ cancel func() }

// Enter adds a call of a peer. Beyond four calls it ends the oldest one with its cancel, which must
// not block. leave removes the call.
func (f *Followers) Enter(name string, cancel func()) (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.byName == nil {
		f.mu.byName = map[string][]*follower{}
	}
	one := &follower{cancel}
	list := append(f.mu.byName[name], one)
	if len(list) > maxFeeds {
		list[0].cancel()
		list = slices.Delete(list, 0, 1)
	}
	f.mu.byName[name] = list
	return func() { f.leave(name, one) }
}

func (f *Followers) leave(name string, one *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.DeleteFunc(f.mu.byName[name], func(k *follower) bool { return k == one })
	if len(list) == 0 {
		delete(f.mu.byName, name)
	} else {
		f.mu.byName[name] = list
	}
}

// Count returns how many peers follow the feed.
func (f *Followers) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.byName)
}
