package draft_test

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/draft"
)

const (
	block, temp, plain  = draft.Block, draft.Temp, draft.Plain
	seen, private, gone = draft.Seen, draft.Private, draft.Gone
)

// bit reports bit n of x.
func bit(x, n int) bool { return x>>n&1 == 1 }

// eachFile calls fn with every possible file. Only a block is private, and a temporary file before its first open.
func eachFile(fn func(f draft.File)) {
	for _, kind := range []draft.Kind{block, temp, plain} {
		for _, place := range []draft.Place{seen, private, gone} {
			for b := range 1 << 3 {
				f := draft.File{Kind: kind, Place: place, Mine: bit(b, 0), Busy: bit(b, 1), Held: bit(b, 2)}
				if (kind != plain || place != private) && implies(f.Busy, f.Held) {
					fn(f)
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

// TestAccess: what must hold of every open, whatever the file (rules 1 and 3 to 6).
func TestAccess(t *testing.T) {
	eachFile(func(f draft.File) {
		for _, truncate := range []bool{false, true} {
			got := draft.Access(f, truncate)
			claims{
				{"the file is there: neither made nor refused", got != draft.Fresh && got != draft.Exists},
				{"a private file that was never opened is no file to who would not empty it",
					(got == draft.Absent) == (f.Place == private && f.Mine && !f.Held && !truncate)},
				{"without O_TRUNC it is the file that is there", implies(!truncate, got == draft.InPlace || got == draft.LookAgain || got == draft.Absent)},
				{"the kernel looks again for what others write in private, and what has lost its name",
					(got == draft.LookAgain) == (f.Place == private && !f.Mine || f.Place == gone)},
				{"nobody loses the bytes of a file that he has open", implies(truncate && f.Held && !f.Mine && got == draft.InPlace, f.Kind != block)},
				{"a block that all see is never emptied in place", implies(truncate && f.Kind == block && f.Place == seen, got == draft.Anew || got == draft.Replace)},
				{"it keeps its inode if nobody has it open", implies(got == draft.Anew, !f.Held)},
				{"who truncates a private file of his truncates that", implies(f.Mine && f.Place == private && (truncate || f.Held), got == draft.InPlace)},
				{"a temporary file loses its name to who truncates it while another writes it",
					implies(truncate && f.Kind == temp && f.Place == seen, (got == draft.Replace) == f.Busy)},
				{"a plain file is one file", implies(f.Kind == plain && f.Place == seen, got == draft.InPlace)},
			}.check(t, fmt.Sprintf("Access(%+v, truncate %v)", f, truncate), got)
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
			ofOthers := f.Place == private && !f.Mine
			claims{
				{"O_EXCL fails if there is any file, also a private one", exclusive == (got == draft.Exists)},
				{"the name is not free", got != draft.Fresh},
				{"who truncates takes the name from who writes in private", implies(!exclusive && truncate && ofOthers, got == draft.Replace)},
				{"who does not truncate joins", implies(!exclusive && !truncate && f.Place != gone, got == draft.InPlace)},
				{"otherwise it is an open", implies(!exclusive && f.Place != private, got == draft.Access(f, truncate))},
			}.check(t, fmt.Sprintf("Create(%+v, exclusive %v, truncate %v)", f, exclusive, truncate), got)
		}
	})
}

// TestEnd: what must hold of every close (rules 2 and 7).
func TestEnd(t *testing.T) {
	for _, kind := range []draft.Kind{block, temp, plain} {
		for _, place := range []draft.Place{seen, private, gone} {
			for b := range 1 << 5 {
				c := draft.Close{Kind: kind, Place: place, Owner: bit(b, 0), Mine: bit(b, 1), Last: bit(b, 2), Killed: bit(b, 3), Failed: bit(b, 4)}
				if kind != block && place == private || c.Last && !c.Mine {
					continue
				}
				got := draft.End(c)
				isPrivate := c.Place == private
				claims{
					{"a file without a name does nothing", implies(c.Place == gone, got == draft.Nothing)},
					{"a kill never commits", implies(c.Killed, got != draft.Commit)},
					{"what could not be written is never committed", implies(c.Failed && isPrivate, got != draft.Commit)},
					{"only a private file is committed, or given up", implies(got == draft.Commit || got == draft.Drop, isPrivate)},
					{"only what is broken is given up, and not under who still writes it", implies(got == draft.Drop, c.Last && (c.Killed || c.Failed))},
					{"what all see settles with the last close, killed or not", (got == draft.Settle) == (c.Place == seen && c.Last)},
					{"the owner's last close commits, whoever has joined", implies(isPrivate && c.Owner && c.Mine && !c.Killed && !c.Failed, got == draft.Commit)},
					{"who has joined commits nothing while another has it open", implies(isPrivate && !c.Owner && !c.Last, got == draft.Nothing)},
					{"another descriptor of the owner keeps it", implies(isPrivate && !c.Mine, got == draft.Nothing)},
					{"nothing stays private after its last close", implies(isPrivate && c.Last, got == draft.Commit || got == draft.Drop)},
				}.check(t, fmt.Sprintf("End(%+v)", c), got)
			}
		}
	}
}

// TestRename: what must hold of every rename (rule 2).
func TestRename(t *testing.T) {
	eachFile(func(f draft.File) {
		for _, to := range []draft.Kind{block, temp, plain} {
			got := draft.Rename(f, to)
			committed := f.Kind == block && f.Place == seen
			claims{
				{"a block that all see keeps its copies under the name of a block, and nothing else has any",
					(got == draft.Follow) == (committed && to == block)},
				{"it is no block under another name", (got == draft.Withdraw) == (committed && to != block)},
				{"what was none is none under another name", (got == draft.Keep) == (!committed && to != block)},
				{"who renames a file that another process writes does not publish half of it",
					(got == draft.Postpone) == (!committed && to == block && f.Busy)},
			}.check(t, fmt.Sprintf("Rename(%+v, to %v)", f, to), got)
		}
	})
}
