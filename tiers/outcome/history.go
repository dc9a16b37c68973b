package outcome

import (
	"hash/maphash"
	"strings"
	"time"
)

// MaxNames bounds the names of which something is remembered, at some 100 bytes each.
const MaxNames = 1 << 16

// chunk is how many outcomes are allocated at a time, so that none is ever copied.
const chunk = 1024

// maxMoved bounds how many renames of directories are followed, one after the other.
const maxMoved = 8

// History remembers what happened to names, the latest outcome of each. It knows a name by the hash of its path: of
// MaxNames names two share one with a probability of 10^-10. When it is full, the name to which something
// happened longest ago is forgotten.
//
// No method blocks, and no two may run in parallel: the owner's lock guards a History.
type History struct {
	seed    maphash.Seed
	kernels bool

	// The outcomes are in a list in the order in which they happened. Position 0 is no outcome but the ends of the list.
	at     map[uint64]uint32 // position in chunks
	chunks [][]node
	n      uint32 // positions in use
	since  int64  // what was forgotten last happened then; before anything was, the begin
}

// node is an outcome in the list.
type node struct {
	before, after uint32 // positions of what happened before and after it
	path          uint64
	Outcome
}

// New returns a History that is empty at a time, in Unix nanoseconds. It hashes paths with seed. With kernels
// the names of threads include their mounts.
func New(seed maphash.Seed, kernels bool, now int64) *History {
	return &History{seed: seed, kernels: kernels, at: map[uint64]uint32{}, since: now}
}

// Hash returns the hash by which a path is known: that of maphash.String with the seed.
func (m *History) Hash(path string) uint64 { return maphash.String(m.seed, path) }

// Of returns what is remembered of the path with a hash, nil if nothing is. The result holds until the next Add.
func (m *History) Of(path uint64) *Outcome {
	if i, ok := m.at[path]; ok {
		return &m.get(i).Outcome
	}
	return nil
}

// Is reports whether what is remembered of the path with a hash came with an event, for a reason.
func (m *History) Is(path, event uint64, r Reason) bool {
	f := m.Of(path)
	return f != nil && f.Event == event && f.Reason == r
}

// Add remembers what happened to the path with a hash, instead of what happened to it before. It allocates a
// chunk at a time, and nothing for a name that is known or once MaxNames names are.
func (m *History) Add(path uint64, f Outcome) {
	if m.n == 0 {
		m.place() // the ends
	}
	ends := m.get(0)
	i, known := m.at[path]
	switch {
	case known:
		m.unlink(i)
	case m.n <= MaxNames:
		i = m.place()
	default:
		i = ends.after
		old := m.get(i)
		m.since = old.Time
		delete(m.at, old.path)
		m.unlink(i)
	}
	*m.get(i) = node{before: ends.before, path: path, Outcome: f}
	m.get(ends.before).after = i
	ends.before = i
	if !known {
		m.at[path] = i
	}
}

func (m *History) get(i uint32) *node { return &m.chunks[i/chunk][i%chunk] }

// place makes room for one more.
func (m *History) place() (i uint32) {
	if i = m.n; i%chunk == 0 {
		m.chunks = append(m.chunks, make([]node, chunk))
	}
	m.n++
	return i
}

// unlink takes one out of the list.
func (m *History) unlink(i uint32) {
	x := m.get(i)
	m.get(x.before).after, m.get(x.after).before = x.after, x.before
}

// Explain puts what is remembered of a path into words. It follows renames of directories above the path. has
// reports whether there is something at a path; it may not call the History. ok is false if nothing is remembered.
func (m *History) Explain(path string, has func(path string) bool) (v Verdict, ok bool) {
	f := m.Of(m.Hash(path))
	if to, moved := m.moved(path, f, has, 0); moved != nil {
		v = moved.Explain(m.kernels)
		v.To, v.Text = to, "renamed to "+to+", with its directory"
		return v, true
	}
	if f == nil {
		return Verdict{}, false
	}
	return f.Explain(m.kernels), true
}

// Nothing returns the verdict on a name of which nothing is remembered.
func (m *History) Nothing() Verdict {
	return Verdict{Kind: NeverStored, Time: time.Unix(0, m.since), Text: "no block of this name was stored here, as far as is remembered"}
}

// moved returns what a path has become by renames of directories above it, and the outcome that says so. The outcome is
// nil if there was no rename since own, which is what happened to the path itself, or if nothing is known of
// what the path has become. depth is how many renames were followed before.
func (m *History) moved(path string, own *Outcome, has func(string) bool, depth int) (to string, f *Outcome) {
	for i := strings.LastIndexByte(path, '/'); i > 0 && depth < maxMoved; i = strings.LastIndexByte(path[:i], '/') {
		f := m.Of(m.Hash(path[:i]))
		if f == nil || f.Kind != Renamed || own != nil && f.Time < own.Time {
			continue
		}
		to := f.To + path[i:]
		if has(to) || m.Of(m.Hash(to)) != nil {
			return to, f
		}
		if to, next := m.moved(to, own, has, depth+1); next != nil {
			return to, f
		}
	}
	return "", nil
}
