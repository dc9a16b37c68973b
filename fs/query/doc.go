// Package query answers the requests of the control directory about many blocks at once:
// .kvfs/query, .kvfs/prefetch, .kvfs/specs. docs/control.md has the requests and answers.
//
//	Service      the answers; its methods are handlers of dialogues, see package fs/control
//	Engine       the part of tiers.Engine that it needs
//	VerdictText  what became of a block, in a sentence
//
// A request is read in one pass, without an allocation for each hash. The hashes stay where they
// are in the request. For a few hundred of them at a time, the paths are built in a buffer that is
// reused, and one call asks the engine for all. Every fault of a request is found before the first
// call of the engine.
//
// # Longest hits
//
// Package hybrid asks for one block after another, and each answer decides the next question. The
// answers come from a table with a byte for each group and hash. If there is no answer yet, the
// engine is asked for that block and the next ones in the search direction of the group's kind.
// That is upwards if all blocks must be there, downwards if the latest suffice.
//
// # Decisions
//
//   - The handler's goroutine writes the progress of a prefetch, not the engine's call of Done. So
//     a slow reader does not delay the loads.
//   - Several groups need {group} in the template. Without it, one group would take another's
//     blocks for its own.
//   - A block of several ranks is where its worst file is. For a batch of blocks, all files of one
//     rank are asked for before those of the next. This keeps neighbours in one directory.
package query
