package owner

import (
	"context"
	"slices"
	"time"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
)

const (
	// askPatience is how long an owner has to answer before the next one is asked, too.
	askPatience = 100 * time.Millisecond
	// askLimit is how long a question takes at most.
	askLimit = 400 * time.Millisecond
	// askPaths is the most paths in one call, and askBytes the most bytes of them: the owner refuses longer calls.
	askPaths = 1024
	askBytes = control.MaxStatBytes
)

// Call asks an owner about some paths. It returns the holders of each path that has any, the best first, and the numbers of
// the paths of which the owner does not know all.
type Call[H any] func(ctx context.Context, owner string, paths []string) (found []Holders[H], unsure []uint32, err error)

// Holders are the holders of a path.
type Holders[H any] struct {
	Path uint32 // its number in the call
	List []H
}

// question is a path that no owner has answered yet.
type question struct {
	path     string
	owners   []string // not asked yet, the best first
	answered bool
}

// reply is the result of one call.
type reply[H any] struct {
	questions []*question
	found     []Holders[H]
	unsure    []uint32
	err       error
}

// Ask asks the owners of paths, other than self, and calls answer for each path that one of them has answered, from this
// goroutine, with no holders if nobody has it. An owner that fails, or does not know, is followed by the next one. Ask returns
// when all paths are answered or no owner is left, after 0.4 s at most, or when ctx ends.
func Ask[H any](ctx context.Context, t *Table, self string, paths []string, call Call[H], answer func(path string, holders []H)) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	open := make([]*question, 0, len(paths))
	for _, path := range paths {
		owners := t.Owners(location.HashPath(path), nil)
		open = append(open, &question{path: path, owners: slices.DeleteFunc(owners, func(o string) bool { return o == self })})
	}
	replies := make(chan reply[H], Copies*len(paths)) // no sender waits
	under := start(ctx, open, call, replies)
	patience := time.NewTimer(askPatience)
	defer patience.Stop()
	for answered := 0; under > 0 && answered < len(open); {
		select {
		case r := <-replies:
			again, n := r.settle(answer)
			answered += n
			under += start(ctx, again, call, replies) - 1
		case <-patience.C:
			patience.Reset(askPatience)
			under += start(ctx, open, call, replies)
		case <-ctx.Done():
			return
		}
	}
}

// start asks the next owner of each question, and returns the number of calls that it has begun.
func start[H any](ctx context.Context, questions []*question, call Call[H], replies chan<- reply[H]) (calls int) {
	byOwner := map[string][]*question{}
	for _, q := range questions {
		if !q.answered && len(q.owners) > 0 {
			byOwner[q.owners[0]] = append(byOwner[q.owners[0]], q)
			q.owners = q.owners[1:]
		}
	}
	for owner, all := range byOwner {
		for len(all) > 0 {
			list := oneCall(all)
			some := all[:len(list)]
			all = all[len(list):]
			calls++
			go func() { // ends with ctx, which call heeds
				r := reply[H]{questions: some}
				r.found, r.unsure, r.err = call(ctx, owner, list)
				replies <- r
			}()
		}
	}
	return calls
}

// oneCall returns the paths of the first of some questions: at least one, and no more than fit into a call.
func oneCall(all []*question) (paths []string) {
	bytes := 0
	for _, q := range all[:min(len(all), askPaths)] {
		if bytes += len(q.path); bytes > askBytes && len(paths) > 0 {
			break
		}
		paths = append(paths, q.path)
	}
	return paths
}

// settle passes on the answers. It returns the questions of the call that are still open, and how many it has answered.
func (r *reply[H]) settle(answer func(path string, holders []H)) (open []*question, answered int) {
	if r.err != nil {
		return r.questions, 0
	}
	unsure := make([]bool, len(r.questions))
	for _, i := range r.unsure {
		if int(i) < len(unsure) && !unsure[i] {
			unsure[i], open = true, append(open, r.questions[i])
		}
	}
	for _, h := range r.found {
		if int(h.Path) < len(unsure) && !unsure[h.Path] && !r.questions[h.Path].answered {
			r.questions[h.Path].answered = true
			answered++
			answer(r.questions[h.Path].path, h.List)
		}
	}
	for i, q := range r.questions {
		if !q.answered && !unsure[i] { // nobody has it
			q.answered = true
			answered++
			answer(q.path, nil)
		}
	}
	return open, answered
}
