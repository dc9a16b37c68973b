package mount

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A model of what files are, with which the differential test tells where kvfs
// may differ from ext4. Without the rules of kvfs it is plain POSIX, and must
// answer as ext4 does. A name is one file. With the rules:
//
//  1. Private: a new block is found by its maker, and by who has it open for writing, until the last close by
//     its maker, fsync or rename. O_CREAT without O_TRUNC joins.
//  2. O_TRUNC of a block makes a new file, which is private and has the name.
//  3. So does O_TRUNC of a private file of another process. Of a temporary file that another process has open for
//     writing it makes a new one, which has the name.
//  4. After a rename to the name of a block nobody finds a file that another process writes, until that closes it.
//  5. A writer that is killed before the commit leaves nothing.
//
// Where the rules leave open what happens, the model picks: each pick makes a
// state of its own, and a state that did not foresee an answer is dropped.

// differRule is a bit for each reason to differ.
type differRule uint

const (
	rulePrivate differRule = 1 << iota
	ruleTemporary
	ruleKilled
	ruleCrash
	ruleSynced
	ruleFallocate
)

var differRuleNames = []string{
	"private until the commit", "a temporary name is taken", "killed writer", "killed daemon", "committed by fsync", "fallocate within the size",
}

func (r differRule) String() string {
	var names []string
	for i, name := range differRuleNames {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " + ")
}

// none is in place of the number of a file or of a process.
const none = -1

// modelFile is an inode. Its bytes are never changed in place.
type modelFile struct {
	data   []byte
	mode   uint32
	mtime  int64
	rule   differRule    // why it may differ from what ext4 has
	maker  int           // the process whose last close commits it; none: it is everybody's
	moved  bool          // another process has renamed it: its maker does not find it either
	stable []modelStable // what it may be after a crash: as committed, or as synced since
	dirty  bool          // changed since
	silent int           // the process of whose close the kernel tells when no mapping is left; or none
	late   int           // the process that has closed it, of which kvfs may not have heard yet; or none
}

// keep notes that a crash leaves the file as it is now.
func (f *modelFile) keep() {
	f.stable, f.dirty = []modelStable{{f.data, f.mtime}}, false
}

// modelStable is what a crash leaves of a file.
type modelStable struct {
	data  []byte
	mtime int64
}

// modelOpen is an open file.
type modelOpen struct {
	p, file, flags int
	off            int64
	lock           int // of flock: unix.LOCK_SH, unix.LOCK_EX, or 0
}

func (o modelOpen) writes() bool { return o.flags&unix.O_ACCMODE != unix.O_RDONLY }
func (o modelOpen) reads() bool  { return o.flags&unix.O_ACCMODE != unix.O_WRONLY }

// slotKey is a slot of a process.
type slotKey struct{ p, slot int }

// model is one state.
type model struct {
	rules  bool
	disk   bool // a synced file survives the daemon
	direct bool // the kernel writes by itself, and tells of the close of a new temporary file a moment later
	files  []modelFile
	opens  []modelOpen
	slots  map[slotKey]int       // to opens
	maps   map[slotKey]int       // to files
	names  map[string]int        // to files
	dirs   map[string]uint32     // their modes
	why    map[string]differRule // why a name, or a slot, may differ

	picks    []int // what to pick, in order
	picked   []int // of how many each was
	reason   []string
	seen     differRule // why the answer under way may differ
	looked   []string   // directories that it looks into
	touch    []string   // keys of why that it has to do with
	involved []int      // files that it has to do with
}

func newModel(rules, disk, direct bool) *model {
	return &model{
		rules: rules, disk: disk, direct: direct,
		slots: map[slotKey]int{}, maps: map[slotKey]int{},
		names: map[string]int{}, dirs: map[string]uint32{".": 0o755}, why: map[string]differRule{},
	}
}

func (m *model) clone() *model {
	c := *m
	c.files, c.opens = slices.Clone(m.files), slices.Clone(m.opens)
	c.slots, c.maps = maps.Clone(m.slots), maps.Clone(m.maps)
	c.names, c.dirs, c.why = maps.Clone(m.names), maps.Clone(m.dirs), maps.Clone(m.why)
	return &c
}

// pick returns one of n numbers, as told, or the first. what says what is left
// open.
func (m *model) pick(n int, what string) int {
	i := len(m.picked)
	m.picked = append(m.picked, n)
	m.reason = append(m.reason, what)
	if i < len(m.picks) {
		return m.picks[i]
	}
	return 0
}

// modelAnswer is what a state foresees.
type modelAnswer struct {
	differResult
	anyLinks bool
	rule     differRule
	reasons  []string
}

func (a modelAnswer) foresees(got differResult) bool {
	want := a.differResult
	if a.anyLinks {
		want.Stat.Nlink = got.Stat.Nlink
	}
	return got.matches(want)
}

// modelBranch is one thing that may happen.
type modelBranch struct {
	answer modelAnswer
	next   *model
}

// branches returns all that may happen when op is done in state m.
func (m *model) branches(op differOp) (all []modelBranch) {
	picks := []int{}
	for {
		c := m.clone()
		c.picks, c.picked, c.reason, c.seen, c.touch, c.looked, c.involved = picks, nil, nil, 0, nil, nil, nil
		a := modelAnswer{}
		a.Errno = c.do(op, &a)
		if a.Errno != 0 {
			a.differResult = differResult{Errno: a.Errno}
		}
		a.rule, a.reasons = c.settle(), c.reason
		all = append(all, modelBranch{a, c})
		// The next picks are those after these, as in counting.
		picks = append(slices.Clone(picks), make([]int, len(c.picked)-len(picks))...)
		for len(picks) > 0 && picks[len(picks)-1]+1 == c.picked[len(picks)-1] {
			picks = picks[:len(picks)-1]
		}
		if len(picks) == 0 {
			return all
		}
		picks[len(picks)-1]++
	}
}

// settle gives all that the answer had to do with the reasons to differ that any
// of it has, and returns them.
func (m *model) settle() differRule {
	for _, key := range m.touch {
		m.seen |= m.why[key]
	}
	for _, dir := range m.looked {
		for key, rule := range m.why {
			if path.Dir(key) == dir {
				m.seen |= rule
			}
		}
	}
	for _, f := range m.involved {
		m.seen |= m.files[f].rule
	}
	for _, key := range m.touch {
		m.why[key] = m.seen
	}
	for _, f := range m.involved {
		m.files[f].rule = m.seen
	}
	return m.seen
}

// note adds a rule by which the answer, and the files that it is about, may differ.
func (m *model) note(rule differRule) {
	if m.rules {
		m.seen |= rule
	}
}

// print returns a text that equal states have in common.
func (m *model) print() string {
	var b strings.Builder
	number := map[int]int{}
	file := func(f int) {
		if f == none {
			b.WriteString(" -")
			return
		}
		n, old := number[f]
		if !old {
			n = len(number)
			number[f] = n
			v := m.files[f]
			fmt.Fprintf(&b, " {%d:%x %o %d %d %t %d %d %v %t}", len(v.data), crc32.ChecksumIEEE(v.data), v.mode, v.mtime, v.maker,
				v.moved, v.silent, v.late, v.stable, v.dirty)
		}
		fmt.Fprintf(&b, " %d", n)
	}
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		b.WriteString(name)
		file(m.names[name])
	}
	opens := map[int]int{}
	for p := range differWorkers {
		for s := range differSlots {
			if o, ok := m.slots[slotKey{p, s}]; ok {
				if _, old := opens[o]; !old {
					opens[o] = len(opens)
				}
				x := m.opens[o]
				fmt.Fprintf(&b, " s%d.%d=%d,%d,%d,%d", p, s, opens[o], x.flags, x.off, x.lock)
				file(x.file)
			}
			if f, ok := m.maps[slotKey{p, s}]; ok {
				fmt.Fprintf(&b, " m%d.%d=", p, s)
				file(f)
			}
		}
	}
	return b.String() + fmt.Sprint(m.dirs)
}

// Names.

// name returns the file of a name, or none.
func (m *model) name(name string) int {
	if f, ok := m.names[name]; ok {
		return f
	}
	return none
}

// temporary reports whether a name looks temporary.
func (m *model) temporary(name string) bool {
	return m.rules && strings.HasSuffix(name, ".tmp")
}

// plain reports whether a name means the same to everybody.
func (m *model) plain(name string) bool {
	return !m.rules || m.temporary(name) || strings.HasSuffix(name, ".lock")
}

// about says that the answer has to do with a name, and with where it is.
func (m *model) about(name string) {
	for ; name != "."; name = path.Dir(name) {
		m.touch = append(m.touch, name)
	}
}

// parent returns ENOENT if there is no directory for name.
func (m *model) parent(name string) unix.Errno {
	if _, ok := m.dirs[path.Dir(name)]; !ok {
		return unix.ENOENT
	}
	return 0
}

// nameOf returns the name of f.
func (m *model) nameOf(f int) (string, bool) {
	for name, g := range m.names {
		if f == g {
			return name, true
		}
	}
	return "", false
}

func (m *model) newFile(f modelFile) int {
	f.silent, f.late = none, none
	m.files = append(m.files, f)
	m.involved = append(m.involved, len(m.files)-1)
	return len(m.files) - 1
}

// writers reports whether a process other than p has f open for writing.
func (m *model) writers(f, p int) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(m.slots)), func(o int) bool {
		return m.opens[o].file == f && m.opens[o].p != p && m.opens[o].writes()
	})
}

// resized returns b with n bytes.
func resized(b []byte, n int64) []byte {
	if int64(len(b)) >= n {
		return b[:n:n]
	}
	return append(bytes.Clone(b), make([]byte, n-int64(len(b)))...)
}
