package draft_test

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/draft"
)

const (
	block, temp, plain        = draft.Block, draft.Temp, draft.Plain
	seen, hidden, waits, gone = draft.Seen, draft.Hidden, draft.Waits, draft.Gone
)

// bit reports bit n of x.
func bit(x, n int) bool { return x>>n&1 == 1 }

// eachFile calls fn with every possible file.
func eachFile(fn func(f draft.File)) {
	for _, kind := range []draft.Kind{block, temp, plain} {
		for _, place := range []draft.Place{seen, hidden, waits, gone} {
			for b := range 1 << 3 {
				fn(draft.File{Kind: kind, Place: place, Empty: bit(b, 0), Mine: bit(b, 1), Busy: bit(b, 2)})
			}
		}
	}
}

// eachClose calls fn with every possible close. If no handle of any process is left, none of the
// owner is.
func eachClose(fn func(c draft.Close)) {
	for _, kind := range []draft.Kind{block, temp, plain} {
		for _, place := range []draft.Place{seen, hidden, waits, gone} {
			for b := range 1 << 6 {
				c := draft.Close{
					Kind: kind, Place: place, Owner: bit(b, 0), Mine: bit(b, 1), Last: bit(b, 2),
					Killed: bit(b, 3), Failed: bit(b, 4), Synced: bit(b, 5),
				}
				if !c.Last || c.Mine {
					fn(c)
				}
			}
		}
	}
}

// claims are statements that must hold of one decision.
type claims []struct {
	what string
	ok   bool
}

func (c claims) check(t *testing.T, of string, got any) {
	t.Helper()
	for _, claim := range c {
		if !claim.ok {
			t.Errorf("%s gives %v: %s", of, got, claim.what)
		}
	}
}

// implies reports whether b is true if a is.
func implies(a, b bool) bool { return !a || b }

// TestAccess: what must hold of every open, whatever the file (rules 1 to 3).
func TestAccess(t *testing.T) {
	eachFile(func(f draft.File) {
		for b := range 1 << 2 {
			truncate, told := bit(b, 0), bit(b, 1)
			got := draft.Access(f, truncate, told)
			draftOfOthers := (f.Place == hidden || f.Place == waits) && !f.Mine
			claims{
				{"a kernel is told to look again only once in a call", implies(told, got != draft.LookAgain)},
				{"the kernel looks again for what others write, and what has lost its name, and for nothing else",
					implies(!told, (got == draft.LookAgain) == (draftOfOthers || f.Place == gone))},
				{"the file is there: neither made nor refused", got != draft.Fresh && got != draft.Exists},
				{"without O_TRUNC it is the file that is there", implies(!truncate, got == draft.InPlace || got == draft.LookAgain)},
				{"of an empty block there is no version", implies(f.Empty && f.Kind == block, got != draft.Anew)},
				{"a plain file has no versions", implies(f.Kind == plain, got != draft.Anew)},
				{"a block that all see with bytes is never emptied",
					implies(truncate && f.Kind == block && f.Place == seen && !f.Empty, got == draft.Anew)},
				{"who writes a version empties that", implies(f.Mine && (f.Place == hidden || f.Place == waits), got == draft.InPlace)},
				{"a temporary file is not emptied under who writes it",
					implies(truncate && f.Kind == temp && f.Place == seen && f.Busy && !f.Mine, got == draft.Anew)},
				{"a temporary file that nobody else writes is one file", implies(f.Kind == temp && !f.Busy, got != draft.Anew)},
				{"of a file without a name there is no version", implies(f.Place == gone, got != draft.Anew)},
			}.check(t, fmt.Sprintf("Access(%+v, truncate %v, told %v)", f, truncate, told), got)
		}
	})
}

// TestCreate: what must hold of every open with O_CREAT.
func TestCreate(t *testing.T) {
	for b := range 1 << 2 {
		if got := draft.Create(nil, bit(b, 0), bit(b, 1)); got != draft.Fresh {
			t.Errorf("a free name: %v", got)
		}
	}
	eachFile(func(f draft.File) {
		for b := range 1 << 2 {
			exclusive, truncate := bit(b, 0), bit(b, 1)
			got := draft.Create(&f, exclusive, truncate)
			draftOfOthers := (f.Place == hidden || f.Place == waits) && !f.Mine
			claims{
				{"O_EXCL fails if there is any file, also one that others hide", exclusive == (got == draft.Exists)},
				{"the name is not free", got != draft.Fresh},
				{"there is no second look-up", got != draft.LookAgain},
				{"to who truncates the name is free if others hide what has it",
					implies(!exclusive && truncate && draftOfOthers, got == draft.Anew)},
				{"who does not truncate joins those who write it", implies(!exclusive && !truncate, got == draft.InPlace)},
				{"otherwise it is an open", implies(!exclusive && !draftOfOthers, got == draft.Access(f, truncate, true))},
				{"an empty block that all see is shared", implies(!exclusive && f.Empty && f.Kind == block && f.Place == seen, got == draft.InPlace)},
			}.check(t, fmt.Sprintf("Create(%+v, exclusive %v, truncate %v)", f, exclusive, truncate), got)
		}
	})
}

// TestHides: the first byte hides an empty block that all see, and no other file.
func TestHides(t *testing.T) {
	eachFile(func(f draft.File) {
		if got, want := draft.Hides(f), f.Kind == block && f.Place == seen && f.Empty; got != want {
			t.Errorf("Hides(%+v) = %v", f, got)
		}
	})
}

// TestEnd: what must hold of every close (rules 2, 3 and 5).
func TestEnd(t *testing.T) {
	eachClose(func(c draft.Close) {
		got := draft.End(c)
		isDraft := c.Kind == block && (c.Place == hidden || c.Place == waits)
		whole := !c.Killed && !c.Failed
		kept := c.Killed && c.Synced && !c.Failed // as fsync found it
		claims{
			{"a file without a name does nothing", implies(c.Place == gone, got == draft.Nothing)},
			{"a kill never commits a version", implies(c.Killed, got != draft.Commit)},
			{"what could not be written is never committed", implies(c.Failed && isDraft, got != draft.Commit)},
			{"only what others do not see is committed", implies(got == draft.Commit, isDraft)},
			{"only what others do not see is given up", implies(got == draft.Drop, isDraft)},
			{"only what is broken is given up", implies(got == draft.Drop, !whole)},
			{"nothing is given up under who still writes it", implies(got == draft.Drop, c.Last)},
			{"a block that all see, and a plain file, settle with the last close, killed or not",
				implies(c.Place == seen || c.Kind == plain && c.Place == hidden, (got == draft.Settle) == c.Last)},
			{"settling is for what all see, and for what fsync kept", implies(got == draft.Settle, c.Last && (c.Place == seen || c.Kind != block || kept))},
			{"what fsync kept outlives its killed writer", implies(kept && c.Last, got != draft.Drop)},
			{"a plain name is taken by the last close of what waits for it, but of a killed writer",
				(got == draft.Take) == (c.Kind != block && c.Place == waits && c.Last && !c.Killed)},
			{"the owner's last close commits, whoever has joined it", implies(isDraft && c.Owner && c.Mine && whole, got == draft.Commit)},
			{"who has joined commits nothing while another has it open", implies(isDraft && !c.Owner && !c.Last, got == draft.Nothing)},
			{"another descriptor of the owner keeps it", implies(isDraft && !c.Mine, got == draft.Nothing)},
			{"nothing stays hidden after its last close", implies(isDraft && c.Last, got == draft.Commit || got == draft.Drop || kept && got == draft.Settle)},
		}.check(t, fmt.Sprintf("End(%+v)", c), got)
	})
}

// TestRename: what must hold of every rename (rules 2 to 4).
func TestRename(t *testing.T) {
	eachFile(func(f draft.File) {
		for _, to := range []draft.Kind{block, temp, plain} {
			for _, ownerWrites := range []bool{false, true} {
				got := draft.Rename(f, to, ownerWrites)
				committed := f.Kind == block && f.Place == seen
				claims{
					{"a block that all see keeps its copies under the name of a block, and nothing else has any",
						(got == draft.Follow) == (committed && to == block)},
					{"it is no block under another name", (got == draft.Withdraw) == (committed && to != block)},
					{"what was none is none under another name", (got == draft.Keep) == (!committed && to != block)},
					{"who renames a temporary file that its owner writes does not publish half of it",
						(got == draft.Postpone) == (to == block && f.Kind != block && ownerWrites && !f.Mine)},
				}.check(t, fmt.Sprintf("Rename(%+v, to %v, owner writes %v)", f, to, ownerWrites), got)
			}
		}
	})
}

// TestStates walks through the table of the package comment, and through the most common uses.
func TestStates(t *testing.T) {
	access := func(f draft.File, truncate bool) any { return draft.Access(f, truncate, false) }
	for _, row := range []struct {
		what string
		got  any
		want any
	}{
		{"create of a free name", draft.Create(nil, true, true), draft.Fresh},
		{"O_TRUNC of a block with bytes", access(draft.File{Kind: block, Place: seen}, true), draft.Anew},
		{"O_TRUNC of a block with bytes that others write in place", access(draft.File{Kind: block, Place: seen, Busy: true}, true), draft.Anew},
		{"O_TRUNC of a block with bytes that its own process writes in place", access(draft.File{Kind: block, Place: seen, Mine: true}, true), draft.Anew},
		{"O_TRUNC of an empty block", access(draft.File{Kind: block, Place: seen, Empty: true}, true), draft.InPlace},
		{"O_APPEND to a log that others write", access(draft.File{Kind: block, Place: seen, Busy: true}, false), draft.InPlace},
		{"O_TRUNC of a temporary file that others write", access(draft.File{Kind: temp, Place: seen, Busy: true}, true), draft.Anew},
		{"O_TRUNC of a temporary file that others have not written yet", access(draft.File{Kind: temp, Place: seen, Busy: true, Empty: true}, true), draft.Anew},
		{"O_TRUNC of a temporary file that both write", access(draft.File{Kind: temp, Place: seen, Busy: true, Mine: true}, true), draft.InPlace},
		{"O_TRUNC of a temporary file that nobody writes", access(draft.File{Kind: temp, Place: seen}, true), draft.InPlace},
		{"O_TRUNC of a lock that others hold", access(draft.File{Kind: plain, Place: seen, Busy: true}, true), draft.InPlace},
		{"a version of others", access(draft.File{Kind: block, Place: hidden, Busy: true}, false), draft.LookAgain},
		{"the same, through a descriptor", draft.Access(draft.File{Kind: block, Place: hidden, Busy: true}, false, true), draft.InPlace},
		{"a block that was replaced", access(draft.File{Kind: block, Place: gone}, true), draft.LookAgain},
		{"the same, through a descriptor: it is emptied", draft.Access(draft.File{Kind: block, Place: gone}, true, true), draft.InPlace},
		{"create of what others hide, truncating", draft.Create(&draft.File{Kind: block, Place: hidden, Busy: true}, false, true), draft.Anew},
		{"create of what others hide and have not written, truncating", draft.Create(&draft.File{Kind: block, Place: hidden, Busy: true, Empty: true}, false, true), draft.Anew},
		{"create of what others hide", draft.Create(&draft.File{Kind: block, Place: hidden, Busy: true}, false, false), draft.InPlace},
		{"O_EXCL of what others hide", draft.Create(&draft.File{Kind: block, Place: hidden, Busy: true}, true, false), draft.Exists},

		{"first byte in an empty block", draft.Hides(draft.File{Kind: block, Place: seen, Empty: true}), true},
		{"first byte in an empty lock", draft.Hides(draft.File{Kind: plain, Place: seen, Empty: true}), false},
		{"first byte in an empty version", draft.Hides(draft.File{Kind: block, Place: hidden, Empty: true}), false},

		{"last close in place", draft.End(draft.Close{Kind: block, Place: seen, Owner: true, Mine: true, Last: true}), draft.Settle},
		{"the same, killed", draft.End(draft.Close{Kind: block, Place: seen, Owner: true, Mine: true, Last: true, Killed: true}), draft.Settle},
		{"close in place, others write", draft.End(draft.Close{Kind: block, Place: seen, Owner: true, Mine: true}), draft.Nothing},
		{"last close by its owner", draft.End(draft.Close{Kind: block, Place: hidden, Owner: true, Mine: true, Last: true}), draft.Commit},
		{"the same, of a version that waits", draft.End(draft.Close{Kind: block, Place: waits, Owner: true, Mine: true, Last: true}), draft.Commit},
		{"last close by its owner, another has joined", draft.End(draft.Close{Kind: block, Place: hidden, Owner: true, Mine: true}), draft.Commit},
		{"last close by another, the owner's descriptor was closed by nobody", draft.End(draft.Close{Kind: block, Place: hidden, Mine: true, Last: true}), draft.Commit},
		{"its owner is killed", draft.End(draft.Close{Kind: block, Place: hidden, Owner: true, Mine: true, Last: true, Killed: true}), draft.Drop},
		{"its owner is killed after an fsync under a temporary name", draft.End(draft.Close{Kind: block, Place: waits, Owner: true, Mine: true, Last: true, Killed: true, Synced: true}), draft.Settle},
		{"its owner is killed, another has joined", draft.End(draft.Close{Kind: block, Place: hidden, Owner: true, Mine: true, Killed: true}), draft.Nothing},
		{"a write failed", draft.End(draft.Close{Kind: block, Place: waits, Owner: true, Mine: true, Last: true, Failed: true}), draft.Drop},
		{"last close of a temporary file", draft.End(draft.Close{Kind: temp, Place: seen, Owner: true, Mine: true, Last: true}), draft.Settle},
		{"last close of one that waits", draft.End(draft.Close{Kind: temp, Place: waits, Owner: true, Mine: true, Last: true}), draft.Take},
		{"rename of a temporary file to a block", draft.Rename(draft.File{Kind: temp, Place: seen}, block, false), draft.Publish},
		{"the same, while its process writes it", draft.Rename(draft.File{Kind: temp, Place: seen, Mine: true}, block, true), draft.Publish},
		{"the same, while another process writes it", draft.Rename(draft.File{Kind: temp, Place: seen}, block, true), draft.Postpone},
		{"rename of a version that joined writers write", draft.Rename(draft.File{Kind: block, Place: hidden}, block, true), draft.Publish},
		{"close after unlink", draft.End(draft.Close{Kind: block, Place: gone, Owner: true, Mine: true, Last: true}), draft.Nothing},
	} {
		if row.got != row.want {
			t.Errorf("%s: %v, want %v", row.what, row.got, row.want)
		}
	}
}
