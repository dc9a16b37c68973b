package peer

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// addHint adds a hint of a kind about version 1.
func addHint(x *hintTable, kind hintKind, p member, path string, now time.Time) {
	h := hint{kind: kind, until: now.Add(hintTime), holder: holder{p, entryOf(path, 1)}}
	switch kind {
	case offered, copied:
		x.add(path, h, now)
	case answered:
		x.answer(path, []holder{h.holder}, now)
	default:
		x.list(path, h, now)
	}
}

// TestHintBound shows that copies and answers are bounded, that the latest stay for their time, that neither pushes out
// the other or an offer, and that nothing but the offer is left when they have lapsed.
func TestHintBound(t *testing.T) {
	for _, c := range []struct {
		kind hintKind
		most int64
	}{{copied, maxCopies}, {answered, maxAnswers}, {listed, maxAnswers}} {
		x, p := newHintTable(), newStubNode().addPeer("a")
		now := time.Now()
		others := []hintKind{offered, copied, answered}
		for _, kind := range others {
			addHint(x, kind, p, fmt.Sprint("other", kind), now)
		}
		n := int(c.most) + 100
		for i := range n {
			addHint(x, c.kind, p, fmt.Sprint(i), now)
		}
		if got := x.count.Load(); got > c.most+2 || got < c.most/2 {
			t.Errorf("kind %d: %d hints, want %d at most", c.kind, got, c.most)
		}
		for _, kind := range others {
			pushed := kind == c.kind || kind == answered && c.kind == listed
			if got := x.get(fmt.Sprint("other", kind), now, nil); !pushed && (len(got) != 1 || got[0].kind != kind) {
				t.Errorf("kind %d pushed out kind %d", c.kind, kind)
			}
		}
		for i := n - int(c.most)/2; i < n; i++ {
			if len(x.get(fmt.Sprint(i), now.Add(hintTime-1), nil)) != 1 {
				t.Fatalf("kind %d: number %d of %d has gone", c.kind, i, n)
			}
		}
		if len(x.get(fmt.Sprint(n-1), now.Add(hintTime), nil)) != 0 {
			t.Errorf("kind %d: a hint did not lapse", c.kind)
		}
		end := now.Add(2 * hintTime)
		if len(x.get("other0", end, nil)) != 1 || len(x.copied(end)) != 0 || x.count.Load() != 1 {
			t.Errorf("kind %d: %d hints when they have lapsed, want the offer", c.kind, x.count.Load())
		}
	}
}

// TestHintsInOrder shows which hints about one path a table keeps, and in which order they come, in sequence: "+kind peer
// version" adds one, "answer peers" is the answer of an owner, "-peer" drops version 1, "wait" lets most of the time pass.
func TestHintsInOrder(t *testing.T) {
	kinds := map[string]hintKind{"+offer": offered, "+copy": copied, "+listed": listed, "+farther": farther}
	for _, c := range []struct{ steps, want string }{
		{"answer bac", "b1 a1 c1"},
		{"answer bac, answer cb", "c1 b1"},
		{"+farther a 1, +listed b 1, answer c, +listed b 1, +farther d 1, +listed e 1", "c1 b1 e1 d1"},
		{"answer ab, +copy c 1, +offer d 1", "d1 c1 a1 b1"},
		{"answer ab, +copy b 1", "b1 a1 b1"}, // withHints takes the first
		{"answer ab, +listed b 2", "a1 b2"},
		{"answer ab, +listed b 2, +listed b 1", "a1 b2"},
		{"answer ba, +listed b 1", "a1 b1"},
		{"answer abc, -b", "a1 c1"},
		{"+copy a 1, +offer a 1, -a", "a1"},
		{"+copy a 1, wait, wait", ""},
		{"+copy a 1, wait, +copy a 1, wait", "a1"},
		{"answer a, wait, +listed a 1, wait", "a1"},
		{"answer ab, wait, +listed c 1, wait", "c1"},
		{"answer ab, wait, answer b, wait", "b1"},
	} {
		n, x, now := newStubNode(), newHintTable(), time.Now()
		peers := map[string]member{}
		for _, name := range strings.Split("abcde", "") {
			peers[name] = n.addPeer(name)
		}
		for _, step := range strings.Split(c.steps, ", ") {
			word := strings.Fields(step)
			switch {
			case word[0] == "wait":
				now = now.Add(hintTime * 2 / 3)
			case word[0] == "answer":
				var list []holder
				for _, name := range strings.Split(word[1], "") {
					list = append(list, holder{peers[name], entryOf("x", 1)})
				}
				x.answer("x", list, now)
			case word[0][0] == '-':
				x.drop("x", word[0][1:], 1, now)
			default:
				h := hint{kind: kinds[word[0]], until: now.Add(hintTime), holder: holder{peers[word[1]], entryOf("x", uint64(word[2][0]-'0'))}}
				if h.kind > answered {
					x.list("x", h, now)
				} else {
					x.add("x", h, now)
				}
			}
		}
		var got []string
		for _, h := range x.get("x", now, nil) {
			got = append(got, fmt.Sprint(h.peer.Name(), h.Seq))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.steps, s, c.want)
		}
	}
	x, n, now := newHintTable(), newStubNode(), time.Now()
	for i := range 3 * maxAnswersOf {
		addHint(x, listed, n.addPeer(fmt.Sprint("p", i)), "x", now)
	}
	if got := len(x.get("x", now, nil)); got != maxAnswersOf {
		t.Errorf("%d answers about one path, want %d", got, maxAnswersOf)
	}
}
