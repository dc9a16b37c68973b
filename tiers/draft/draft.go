// Package draft holds the rules of writing: what an open, a close and a rename mean for a file, given the relation of
// the file to its name. It has no state and takes no lock. Package tiers follows its decisions; docs/semantics.md has the
// same rules for users.
//
// One name is one file, at every moment and for every process:
//
//  1. Private until it is committed. A new file with the name of a block is found by the process that made it, and by
//     those that have it open for writing. All others find nothing. Who opens it with O_CREAT and without O_TRUNC joins.
//  2. Commit: the last close by the process that made it, fsync, or a rename. If another process than the one that
//     renames has it open for writing, its last close commits, and nobody finds the file before.
//  3. In place. An open for writing without O_TRUNC opens the file that is there.
//  4. O_TRUNC on a block begins anew: the block is gone, as by unlink, and the name is a private file.
//  5. Of two writers of a name the later one that makes or truncates it has the name; the earlier file is unlinked.
//  6. Temporary names, plain names and pinned groups are POSIX from the first byte, but for rule 5.
//  7. A writer that is killed before the commit leaves nothing.
//
// States of a file and the events between them:
//
//	from     event                                     to
//	-        create, name of a block                   Private
//	-        create, another name                      Seen, once it is open
//	Private  last close by its owner, fsync, rename    Seen
//	Private  its owner is killed, a write failed       Gone
//	Seen     O_TRUNC of a block                        Private (Anew), or Gone and another file is Private (Replace)
//	Seen     rename to a block while another writes    Private, which that process commits and nobody finds
//	any      unlink, rename over its name, rule 5      Gone
package draft

// Kind is the kind of a file's name.
type Kind uint8

const (
	Block Kind = iota
	Temp
	Plain // also any name in a pinned group
)

// Place is the relation of a file to its name.
type Place uint8

const (
	Seen    Place = iota // it has the name, and every process finds it there
	Private              // it has the name, and only those who write it find it there
	Gone                 // it no longer has a name
)

// File is a file as one process sees it.
type File struct {
	Kind  Kind
	Place Place
	Mine  bool // the asking process finds it under its name, also while it is private
	Busy  bool // another process has it open for writing
	Held  bool // some process has it open
}

// Unopened reports whether Replace has made the file, and the open that it was made for has not come back. It is no file
// yet: it is neither read nor renamed.
func (f File) Unopened() bool { return f.Place == Private && !f.Held }

// Action is the effect of an open.
type Action uint8

const (
	InPlace   Action = iota // open this file; if asked to truncate, empty it
	Anew                    // the same, after it has become a private file without bytes
	Replace                 // it loses the name to a new file, which is private if it is a block
	LookAgain               // the name means something else to this process: repeat the look-up
	Fresh                   // the name is free: make the file
	Exists                  // fail, because there is a file
	Absent                  // fail, because there is no file yet
)

// Access decides about an open of f by a process that has looked its name up, or has another descriptor of it
// (/proc/self/fd): the kernel does not say which.
func Access(f File, truncate bool) Action {
	switch {
	case f.Place == Gone, f.Place == Private && !f.Mine:
		return LookAgain
	case f.Unopened() && !truncate:
		return Absent
	case !truncate || f.Place != Seen || f.Kind == Plain:
		return InPlace
	case f.Kind == Block && !f.Held:
		return Anew
	case f.Kind == Block || f.Busy:
		return Replace
	}
	return InPlace
}

// Create decides about an open with O_CREAT of a name for which the kernel knows no file. f is the
// file that has the name; nil: there is none.
func Create(f *File, exclusive, truncate bool) Action {
	switch {
	case f == nil:
		return Fresh
	case exclusive:
		return Exists
	case f.Place == Private && !f.Mine && truncate:
		return Replace
	case f.Place == Private && !truncate:
		return InPlace // it joins
	}
	return Access(*f, truncate)
}

// Close is the end of a descriptor, or of a whole handle, of a file.
type Close struct {
	Kind   Kind
	Place  Place
	Owner  bool // the process that closes owns the file
	Mine   bool // no handle that the owner has opened is left
	Last   bool // no handle of any process is left
	Killed bool // a signal ends the writer, or its mount is gone
	Failed bool // a write has failed
}

// Outcome is the effect of a close.
type Outcome uint8

const (
	Nothing Outcome = iota
	Commit          // the bytes become the block, visible to all
	Settle          // the same if the bytes changed; size and times follow them
	Drop            // give the file up
)

// End decides what a close does.
func End(c Close) Outcome {
	switch {
	case c.Place == Gone:
		return Nothing
	case c.Place == Seen:
		return when(c.Last, Settle)
	case c.Failed:
		return when(c.Last, Drop)
	case !c.Owner && !c.Last, !c.Mine:
		return Nothing
	case c.Killed:
		return when(c.Last, Drop)
	}
	return Commit
}

func when(yes bool, o Outcome) Outcome {
	if yes {
		return o
	}
	return Nothing
}

// Move is the effect of a rename, besides the new name.
type Move uint8

const (
	Follow   Move = iota // a block stays one: its copies follow
	Publish              // the bytes become the block, visible to all
	Postpone             // the same, with the last close by the other process that writes it
	Withdraw             // a block becomes a temporary or plain file
	Keep                 // a temporary or plain file stays one, and a private file becomes one
)

// Rename decides about the rename of f to a name of the kind to.
func Rename(f File, to Kind) Move {
	committed := f.Kind == Block && f.Place == Seen
	switch {
	case committed && to == Block:
		return Follow
	case committed:
		return Withdraw
	case to != Block:
		return Keep
	case f.Busy:
		return Postpone
	}
	return Publish
}
