// Package query answers the requests of the control directory about many blocks at once:
// .kvfs/query, .kvfs/prefetch, .kvfs/specs. docs/control.md has the requests and answers.
//
//	Service      the answers; its methods are handlers of dialogues, see package fs
//	Engine       the part of tiers.Engine that it needs
//	VerdictText  what became of a block, in a sentence
//
// A request is read in one pass, and nothing is allocated for each of its hashes: they stay where
// they are in the request, for a few hundred at a time the paths are put together in a buffer that
// is used again, and the engine is asked for those at once. All that can be wrong with a request is
// found before the engine is asked for anything.
//
// # Longest hits
//
// Package hybrid asks for one block after another, and how it goes on depends on the answers. It is
// answered from a table with a byte for each group and hash. Where there is no answer yet, the engine
// is asked for that block and the next ones in the direction in which groups of its kind are
// searched: upwards where all has to be there, downwards where the latest is enough.
//
// # Decisions
//
//   - Progress of a prefetch is written by the handler's goroutine, not by the engine's call of Done:
//     a slow reader does not hold up the loads.
//   - Several groups need {group} in the template. Without it they would take each other's blocks for
//     their own.
//   - A block of several ranks is where its worst file is. Asking for the files of one rank after the
//     other, for a batch of blocks, keeps neighbours in one directory.
package query
