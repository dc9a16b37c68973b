package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var names = []string{"lru", "arc", "mq", "s3fifo"}

func open(t testing.TB, name string, capacityBytes int64) Policy {
	t.Helper()
	p, err := New(name, capacityBytes)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestNew shows feature A29: the primary tier's policy is lru, arc, mq or
// s3fifo; each by its name, and no other name is taken for one of them.
func TestNew(t *testing.T) {
	for _, name := range names {
		p, err := New(name, 1<<30)
		if err != nil {
			t.Errorf("New(%q): %v", name, err)
			continue
		}
		if got := fmt.Sprintf("%T", p); !strings.EqualFold(got, "*policy."+name) {
			t.Errorf("New(%q): got %s", name, got)
		}
	}
	bad := []struct {
		name     string
		capacity int64
	}{{"", 1}, {"LRU", 1}, {"tinylfu", 1}, {"lru", 0}, {"arc", -1}, {"s3fifo", 0}}
	for _, b := range bad {
		if p, err := New(b.name, b.capacity); err == nil {
			t.Errorf("New(%q, %d): got %v, want an error", b.name, b.capacity, p)
		}
	}
}

// run applies a script to p and returns the blocks evicted, in order. Words:
//
//	+7     add block 7, hash 7, of 1 byte     +7*5  the same of 5 bytes
//	7      touch it                           -7    remove it
//	e      evict one                          e*5   evict five
//	pin7   skip it from here on               unpin7
func run(t *testing.T, p Policy, script string) (evicted []uint32) {
	t.Helper()
	pinned := map[uint32]bool{}
	for _, word := range strings.Fields(script) {
		op := strings.TrimRight(word, "0123456789*")
		first, second, _ := strings.Cut(word[len(op):], "*")
		id, n := number(t, first, 0), number(t, second, 1)
		switch op {
		case "+":
			p.Add(uint32(id), uint64(id), int64(n))
		case "":
			p.Touch(uint32(id), 0)
		case "-":
			p.Remove(uint32(id))
		case "pin", "unpin":
			pinned[uint32(id)] = op == "pin"
		case "e":
			evicted = append(evicted, evict(p, n, pinned)...)
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return evicted
}

func number(t *testing.T, s string, unset int) int {
	if s == "" {
		return unset
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// evict evicts up to n blocks that are not pinned.
func evict(p Policy, n int, pinned map[uint32]bool) (evicted []uint32) {
	p.Victims(func(id uint32) Verdict {
		switch {
		case len(evicted) == n:
			return Stop
		case pinned[id]:
			return Skip
		}
		evicted = append(evicted, id)
		return Evict
	})
	return evicted
}

// TestOrder gives exact eviction orders, worked out by hand from the papers.
// The capacity is 10 bytes, so S3FIFO's small queue has a target of 1.
func TestOrder(t *testing.T) {
	tests := []struct {
		policy, name, script, want string
	}{
		{"lru", "oldest first", "+1 +2 +3 e*9", "[1 2 3]"},
		{"lru", "touch", "+1 +2 +3 1 2 e*9", "[3 1 2]"},
		{"lru", "remove", "+1 +2 +3 -2 e*9", "[1 3]"},
		{"lru", "add again", "+1 +2 -1 +1 e*9", "[2 1]"},
		{"lru", "skip counts as use", "+1 +2 +3 pin1 e unpin1 e*9", "[2 3 1]"},
		{"lru", "scan pushes everything out", "+1 +2 1 2 1 2 +3 +4 +5 e*3", "[1 2 3]"},
		{"lru", "unknown", "7 -7 +0 7 -7 e*9", "[0]"},

		{"arc", "used once before used again", "+1 +2 +3 +4 1 3 e*9", "[2 4 1 3]"},
		{"arc", "second use makes recent", "+1 +2 1 2 1 e*9", "[2 1]"},
		{"arc", "remove leaves no ghost", "+1 +2 -1 +1 +3 e*9", "[2 1 3]"},
		// 1 comes back from B1 into T2 and raises the target to 1, so that T1
		// may keep one block: 3 goes, then T2's 1 before T1's 4.
		{"arc", "ghost in B1 raises the target", "+1 +2 +3 +4 e*2 +1 e*9", "[1 2 3 1 4]"},
		// 1 and 2 come back from B1: target 2. Then 1 goes into B2 and comes
		// back from there: target 1, so T1 has to go down to 1: 3 and 4 go.
		{"arc", "ghost in B2 lowers it", "+1 +2 e*2 +1 +2 +3 +4 e +1 e +5 e*9", "[1 2 1 3 4 2 1 5]"},
		// The same, but the Add in B2 is the last one: at the target, T1 gives.
		{"arc", "ghost in B2 decides a tie", "+1 +2 e*2 +1 +2 +3 +4 e +1 e e*9", "[1 2 1 3 4 2 1]"},
		{"arc", "skip keeps the queue", "+1 +2 +3 1 pin2 e unpin2 e*9", "[3 2 1]"},
		{"arc", "skip in both queues", "+1 +2 +3 +4 1 2 pin1 pin3 e*9 unpin1 unpin3 e*9", "[4 2 3 1]"},

		{"mq", "used once before used again", "+1 +2 +3 +4 1 3 e*9", "[2 4 1 3]"},
		{"mq", "three uses are as two", "+1 +2 1 2 1 e*9", "[2 1]"},
		{"mq", "four are more", "+1 +2 1 1 1 2 2 e*9", "[2 1]"},
		// 1 has ten more bytes of uses to rest than blocks that were used once: 2 to 10 are nine, and its own use is one.
		{"mq", "in its time", "+1 1 +2 +3 +4 +5 +6 +7 +8 +9 +10 -2 -3 -4 -5 -6 -7 -8 -9 +11 e*9", "[10 11 1]"},
		{"mq", "outlives its time", "+1 1 +2 +3 +4 +5 +6 +7 +8 +9 +10 -2 -3 -4 -5 -6 -7 -8 -9 -10 +11 +12 +13 e*9", "[11 1 12 13]"},
		{"mq", "ghost remembers uses", "+1 1 1 1 -2 e +1 +2 2 e*9", "[1 2 1]"},
		{"mq", "remove leaves no ghost", "+1 1 -1 +1 +2 e*9", "[1 2]"},
		{"mq", "skip counts for its queue", "+1 +2 +3 pin1 e unpin1 e*9", "[2 3 1]"},
		{"mq", "skip in two queues", "+1 +2 +3 +4 1 2 pin1 pin3 e*9 unpin1 unpin3 e*9", "[4 2 3 1]"},

		{"s3fifo", "one-hit wonders first", "+1 +2 +3 +4 1 1 2 2 e*9", "[3 4 1 2]"},
		{"s3fifo", "one use is not enough", "+1 +2 +3 1 e*9", "[1 2 3]"},
		{"s3fifo", "touch does not reorder", "+1 +2 +3 3 2 e*9", "[1 2 3]"},
		{"s3fifo", "ghost goes to main", "+1 +2 +3 e +1 e*9", "[1 2 3 1]"},
		{"s3fifo", "remove leaves no ghost", "+1 +2 -1 +1 e*9", "[2 1]"},
		{"s3fifo", "main leaves no ghost", "+1 e +1 e +1 +2 e*9", "[1 1 1 2]"},
		// 1 and 2 are moved to main by e, with their uses reset; then 1 is
		// used and goes round once.
		{"s3fifo", "main goes round", "+1 +2 +3 1 1 2 2 e 1 e*9", "[3 2 1]"},
		// Seven uses count as three, so 1, which came first, goes before 2.
		{"s3fifo", "uses are capped",
			"+1 +2 +3 1 1 2 2 e 1 1 1 1 1 1 1 2 2 2 e*9", "[3 1 2]"},
		{"s3fifo", "skip counts as use", "+1 +2 +3 pin1 e unpin1 e*9", "[2 3 1]"},
		{"s3fifo", "skipped twice goes to main", "+1 +2 +3 pin1 e*9 e*9 unpin1 +4 +5 e*9", "[2 3 4 5 1]"},
	}
	for _, test := range tests {
		t.Run(test.policy+"/"+test.name, func(t *testing.T) {
			p := open(t, test.policy, 10)
			if got := fmt.Sprint(run(t, p, test.script)); got != test.want {
				t.Errorf("%s: got %s, want %s", test.script, got, test.want)
			}
			verify(t, p)
		})
	}
}

// TestTarget follows ARC's target, in bytes of a capacity of 100, through hits
// in its ghost queues.
func TestTarget(t *testing.T) {
	tests := []struct {
		name, script string
		want         int64
	}{
		{"no hit", "+1*10 +2*10 e*2 +3*10", 0},
		{"B1, by the size", "+1*10 +2*10 e*2 +1*10", 10},
		{"B1, by the new size", "+1*10 +2*10 e*2 +1*30", 30},
		{"B1 twice", "+1*10 +2*10 e*2 +1*10 +2*10", 20},
		{"B1, never over the capacity", "+1*60 e +1*60 -1 +2*60 e +2*60", 100},
		// B1 = {3} and B2 = {1 2}: a hit in B1 weighs double.
		{"B1 shorter than B2", "+1*10 +2*10 1 2 e*2 +3*10 e +3*10", 20},
		// B1 = {3 4} and B2 = {1}: a hit in B2 takes away double, from 20.
		{"B2 shorter than B1", "+5*20 e +5*20 -5 +1*10 1 +3*10 +4*10 +6*20 e*3 +1*10", 0},
		{"B2, never below 0", "+1*10 1 e +1*10", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := NewARC(100)
			run(t, p, test.script)
			if p.target != test.want {
				t.Errorf("%s: target: got %d, want %d", test.script, p.target, test.want)
			}
			verify(t, p)
		})
	}
}

// TestSmallShare: with a capacity of 100 bytes the small queue gives way while it
// has 10 or more, then the main queue does.
func TestSmallShare(t *testing.T) {
	p := NewS3FIFO(100)
	got := run(t, p, "+1 +2 e*2 +1 +2 +3*2 +4*9 e*9") // 1 and 2 are in main
	if want := []uint32{1, 2, 3, 1, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	verify(t, p)
}

// TestMisuse: adding a present block, or the one number that does not fit,
// panics with that number.
func TestMisuse(t *testing.T) {
	for _, name := range names {
		for _, id := range []uint32{7, 1<<32 - 1} {
			func() {
				defer func() {
					msg, ok := recover().(string)
					if !ok || !strings.Contains(msg, strconv.FormatUint(uint64(id), 10)) {
						t.Errorf("%s: got panic %q, want one that names block %d", name, msg, id)
					}
				}()
				p := open(t, name, 100)
				p.Add(7, 7, 1)
				p.Add(id, 8, 1)
			}()
		}
	}
}
