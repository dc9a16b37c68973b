// Package draft holds the rules of writing: what an open, a first byte, a close, a rename and a
// removal mean for a file, given the relation of the file to its name. It has no state and takes no
// lock. Package tiers follows its decisions; docs/semantics.md has the same rules for users.
//
// The rules:
//
//  1. In place. An open for writing without O_TRUNC opens the file that is there.
//  2. Anew. O_TRUNC on a block with bytes, or a new name, makes a version of its own. Only its own
//     process finds it until the commit. The first byte in an empty file hides the file in the
//     same way.
//  3. Plain names. Temporary names, plain names and pinned groups are POSIX from the first byte. A
//     temporary file that another process has open for writing is not emptied under that process:
//     the process that truncates it gets a version of its own.
//  4. Rename and unlink act on what the name means to the caller. A version whose name they took
//     is an unlinked file.
//  5. fsync commits.
//
// States of a file and the events between them (K: the kind of its name):
//
//	from     event                                       to
//	-        create, K block                             Hidden, or Waits if another file has the name
//	-        create, K temp or plain                     Seen
//	-        O_TRUNC of a block with bytes               Waits
//	-        O_TRUNC of a temp that others write         Waits
//	Seen     first byte in an empty block                Hidden
//	Seen     last close, bytes changed                   Seen, committed anew
//	Hidden   last close by its owner, fsync, rename      Seen
//	Hidden   its owner is killed                         -, or Seen and empty if it was so before,
//	                                                     or Seen as fsync found it under a temporary name
//	Waits    K block: last close by its owner, fsync     Seen
//	Waits    K temp: last close, the name is not in use  Seen; what had the name Waits, if it has an owner
//	Waits    its name has become free                    Seen, or Hidden, K block
//	any      unlink or rename over its name by others    Gone
//	Gone     last close                                  -
package draft

// Kind is the kind of a file's name.
type Kind uint8

const (
	Block Kind = iota // rules 1 and 2
	Temp              // rule 3, with its exception
	Plain             // rule 3
)

// Place is the relation of a file to its name.
type Place uint8

const (
	Seen   Place = iota // it has the name, and every process finds it there
	Hidden              // it has the name, and only its own process finds it there
	Waits               // it has no name yet, and only its own process finds it there
	Gone                // it no longer has a name
)

// File is a file as one process sees it.
type File struct {
	Kind  Kind
	Place Place
	Empty bool // it has no bytes
	Mine  bool // it belongs to the asking process, or that process has it open for writing
	Busy  bool // another process has it open for writing
}

// Action is the effect of an open.
type Action uint8

const (
	InPlace   Action = iota // open this file; if asked to truncate, empty it
	Anew                    // make a version that waits for the name
	LookAgain               // the name means another file to this process: repeat the look-up
	Fresh                   // the name is free: make the file
	Exists                  // fail, because there is a file
)

// Access decides about an open of f, by its name or by a descriptor that was passed on: the kernel
// does not say which. told: the kernel got LookAgain in this call already, so it is a descriptor,
// or a name that changes all the time.
func Access(f File, truncate, told bool) Action {
	switch {
	case f.Place == Gone && !told, f.hides() && !f.Mine && !told:
		return LookAgain
	case !truncate || f.Place == Gone:
		return InPlace
	case f.Kind == Temp && f.Busy && !f.Mine, f.Kind == Block && f.Place == Seen && !f.Empty:
		return Anew
	}
	return InPlace
}

// Create decides about an open with O_CREAT of a name for which the kernel knows no file. f is the
// file that the name means to the caller or, without one, the file that another process hides
// there; nil: there is none.
func Create(f *File, exclusive, truncate bool) Action {
	switch {
	case f == nil:
		return Fresh
	case exclusive:
		return Exists
	case truncate && f.hides() && !f.Mine:
		return Anew // to the caller the name is new, too: two writers do not mix
	}
	return Access(*f, truncate, true)
}

// Hides reports whether bytes in f, which has none yet, hide it from other processes.
func Hides(f File) bool { return f.Kind == Block && f.Place == Seen && f.Empty }

func (f File) hides() bool { return f.Place == Hidden || f.Place == Waits }

// Close is the end of a descriptor, or of a whole handle, of a file.
type Close struct {
	Kind   Kind
	Place  Place
	Owner  bool // the process that closes owns the file
	Mine   bool // no handle that the owner has opened is left
	Last   bool // no handle of any process is left
	Killed bool // a signal ends the writer, or its mount is gone
	Failed bool // a write has failed
	Synced bool // fsync has kept bytes of it
}

// Outcome is the effect of a close.
type Outcome uint8

const (
	Nothing Outcome = iota
	Commit          // the bytes become the block, visible to all
	Settle          // the same if the bytes changed; size and times follow them
	Take            // take the name, if the file that has it is not being written
	Drop            // give the file up
)

// End decides what a close does.
func End(c Close) Outcome {
	switch {
	case c.Place == Gone:
		return Nothing
	case c.Kind != Block && c.Place == Waits:
		return when(c.Last && !c.Killed, Take)
	case c.Place == Seen || c.Kind != Block:
		return when(c.Last, Settle)
	case c.Failed:
		return when(c.Last, Drop)
	case !c.Owner && !c.Last, !c.Mine:
		return Nothing
	case c.Killed && c.Synced:
		return when(c.Last, Settle)
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
	Postpone             // the same, with the close by the owner
	Withdraw             // a block becomes a temporary or plain file
	Keep                 // a temporary or plain file stays one, and a version becomes one
)

// Rename decides about the rename of f to a name of the kind to. ownerWrites: the owner of f has it open for writing.
func Rename(f File, to Kind, ownerWrites bool) Move {
	committed := f.Kind == Block && f.Place == Seen
	switch {
	case committed && to == Block:
		return Follow
	case committed:
		return Withdraw
	case to != Block:
		return Keep
	case f.Kind != Block && ownerWrites && !f.Mine:
		return Postpone
	}
	return Publish
}
