// Package hybrid answers how much of a prompt a cache holds for a model whose layers
// fall into several groups: full attention, sliding windows, chunked local attention,
// Mamba states. It also says which blocks are then to be loaded, and which are worth
// storing. It does as the coordinator of vLLM's Mooncake store connector does.
//
//	Spec         what the groups of a model are; Check gives all reasons against one
//	Coordinator  a Spec made ready; its methods are pure functions and may run in parallel
//	Exists       tells whether a block is there: the only thing that a Coordinator asks
//	BlockSizes   the hash and scheduler block sizes that an engine chooses for its groups
//
// # Units
//
// A prompt is hashed in hash blocks of H tokens; hash u is chained, so that it names the
// whole prefix up to (u+1)H tokens. Unit u stands for it. A group's block (chunk c) covers
// tokens [cB, (c+1)B); its key is the group and the hash of the last unit in it. All answers
// are multiples of the alignment A: the scheduler's block S, or H where Mamba states are
// kept at hash blocks (fine).
//
// # A search
//
// Groups with equal specs are one class. A unit counts for a class if all its groups have it. Each
// class finds its longest hit, within that of the classes before. Classes that look at everything
// come first. Rounds over all classes are made until none shortens the hit (find). Existence is
// asked for as late as possible, once for each group and unit. A Lookup keeps the answers. So it
// sees one state of the cache, however often it comes back to a block.
//
// There are two modes. With an Exists, a search finds what is there. With nil everything is there,
// and the masks of a hit of fixed length remain (Load, receiver mode).
//
// # Where upstream fails
//
//   - In fine mode a hit may end inside a block that was found under the hash of a later unit.
//     Fetch names that unit. It does not name the end of the hit, which may not be stored at all.
//   - A window of one token needs nothing of the prefix, but its mask wants the last block of it.
//     With eagle the search did not ask for that block. Fetch leaves it out if it is not there.
//   - With nothing to fetch upstream divides by zero. Fetch gives empty lists.
//   - No groups are no hit; a search beyond the hashes is an error.
//   - What upstream accepts and then fails on at the first question, New refuses: windows and
//     attention chunks of larger blocks than H in fine mode, attention chunks whose
//     blocks are not the scheduler's, that are not whole blocks, or with eagle, cross attention.
//   - New looks into uniform wrappers, and refuses kinds that it does not know.
//
// A hit of attention chunks alone, at the start of a chunk, needs no blocks. It is a hit with
// nothing stored, and nothing to load.
//
// Source: vLLM, vllm/distributed/kv_transfer/kv_connector/v1/mooncake (store coordinator).
package hybrid
