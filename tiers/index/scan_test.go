package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// scan reads dir in steps of n entries, calling between before each further
// step, and returns how often it saw which entry.
func scan(x *Index, dir ID, n int, between func(last ID)) map[ID]int {
	seen := map[ID]int{}
	var after uint64
	var last ID
	for {
		got := 0
		x.ReadDir(dir, after, last, func(id ID, _ *Entry, cookie uint64) bool {
			seen[id]++
			after, last = cookie, id
			got++
			return got < n
		})
		if got < n {
			return seen
		}
		between(last)
	}
}

// TestReadDirResume: a scan resumes behind every cookie, present or gone, with
// a right, a wrong and no hint, and stops when told to.
func TestReadDirResume(t *testing.T) {
	x := New()
	dir := add(x, Root, "dir", dirMode)
	other := add(x, Root, "other", fileMode)
	var ids []ID
	var cookies []uint64
	for i := range 20 {
		ids = append(ids, add(x, dir, fmt.Sprint(i), fileMode))
	}
	x.ReadDir(dir, 0, 0, func(_ ID, _ *Entry, c uint64) bool { cookies = append(cookies, c); return true })
	if len(cookies) != 20 || cookies[0] < 1 || !slices.IsSorted(cookies) {
		t.Fatalf("cookies: got %v, want 20 that ascend from 1", cookies)
	}
	for _, gone := range []int{-1, 0, 7, 12, 19} {
		if gone >= 0 {
			x.Unlink(ids[gone])
		}
		for i, after := range cookies {
			var want []ID
			for j := i + 1; j < len(ids); j++ {
				if x.Linked(ids[j]) {
					want = append(want, ids[j])
				}
			}
			for _, hint := range []ID{0, ids[i], ids[(i+3)%20], other, dir, Root, 1 << 30} {
				var got []ID
				x.ReadDir(dir, after, hint, func(id ID, _ *Entry, _ uint64) bool {
					got = append(got, id)
					return true
				})
				if !slices.Equal(got, want) {
					t.Fatalf("without %d, after %d, hint %d: got %v, want %v", gone, after, hint, got, want)
				}
			}
		}
	}
	x.ReadDir(dir, 1<<60, 0, func(id ID, _ *Entry, _ uint64) bool {
		t.Errorf("child %d past the end", id)
		return true
	})
	calls := 0
	x.ReadDir(dir, 0, 0, func(ID, *Entry, uint64) bool { calls++; return false })
	if calls != 1 {
		t.Errorf("scan went on for %d calls, want 1", calls)
	}
}

// TestReadDirMoved: a hint that keeps its cookie in no directory, or was moved
// to another one, does not lead the scan astray.
func TestReadDirMoved(t *testing.T) {
	x := New()
	from, to := add(x, Root, "from", dirMode), add(x, Root, "to", dirMode)
	a, b := add(x, from, "a", fileMode), add(x, from, "b", fileMode)
	cookie := x.At(a).order()
	x.Rename(a, to, "a")
	var got []ID
	x.ReadDir(from, cookie, a, func(id ID, _ *Entry, _ uint64) bool { got = append(got, id); return true })
	if !slices.Equal(got, []ID{b}) {
		t.Errorf("got %v, want %v", got, []ID{b})
	}
	// A cookie of another directory: its hint is linked and matches.
	x.ReadDir(from, x.At(a).order(), a, func(id ID, _ *Entry, _ uint64) bool {
		t.Errorf("child %d", id)
		return true
	})
}

// TestReadDirStable: while others come and go between the steps of a scan, the
// one just seen included, each entry that stays is seen exactly once, and none
// is seen twice.
func TestReadDirStable(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, rand.Uint64()} {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			x := New()
			var stay, leave []ID
			for i := range 500 {
				id := add(x, Root, fmt.Sprint(i), fileMode)
				if r.IntN(2) == 0 {
					stay = append(stay, id)
				} else {
					leave = append(leave, id)
				}
			}
			fresh := 0
			seen := scan(x, Root, 1+r.IntN(20), func(last ID) {
				if i := slices.Index(leave, last); i >= 0 {
					x.Unlink(last) // kept unlinked: a freed ID may be seen again as another entry
					leave = slices.Delete(leave, i, i+1)
				}
				for range min(len(leave), r.IntN(10)) {
					x.Unlink(leave[len(leave)-1])
					leave = leave[:len(leave)-1]
				}
				if fresh < 200 {
					fresh++
					stay = append(stay, add(x, Root, fmt.Sprint("fresh", fresh), fileMode))
				}
			})
			for _, id := range stay {
				if seen[id] != 1 {
					t.Errorf("entry %d, which stayed, was seen %d times", id, seen[id])
				}
			}
			for id, n := range seen {
				if n != 1 {
					t.Errorf("entry %d was seen %d times", id, n)
				}
			}
		})
	}
}

// TestDescend: order of the walk, its bounds, and that it stops when told to.
func TestDescend(t *testing.T) {
	x, ids := grow(t)
	tests := []struct {
		dir  string
		stop int // entries after which fn returns false
		want string
	}{
		{"", 99, "[a a/b a/b/c a/b/d a/e f]"},
		{"a", 99, "[a/b a/b/c a/b/d a/e]"},
		{"a/b", 99, "[a/b/c a/b/d]"},
		{"f", 99, "[]"},
		{"", 3, "[a a/b a/b/c]"},
		{"", 1, "[a]"},
	}
	for _, test := range tests {
		var got []string
		x.Descend(ids[test.dir], func(id ID, _ *Entry) bool {
			got = append(got, x.Path(id))
			return len(got) < test.stop
		})
		if fmt.Sprint(got) != test.want {
			t.Errorf("below %q: got %v, want %s", test.dir, got, test.want)
		}
	}
}

// TestDeep: a tree of 10,000 levels needs no stack.
func TestDeep(t *testing.T) {
	x := New()
	id := Root
	for range 10000 {
		id = add(x, id, "d", dirMode)
	}
	path := x.Path(id)
	if len(path) != 2*10000-1 || x.Walk(path) != id {
		t.Errorf("path of %d bytes does not lead back", len(path))
	}
	n := 0
	x.Descend(Root, func(ID, *Entry) bool { n++; return true })
	if n != 10000 {
		t.Errorf("Descend: got %d entries, want 10000", n)
	}
}
