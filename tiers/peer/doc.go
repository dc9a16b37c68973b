// Package peer is the tier of blocks that other nodes hold. It fetches them when they are opened on
// this node, makes peers take copies of this node's blocks, and serves and announces this node's
// blocks.
//
//	Tier       driver.Tier and driver.Remote over a cluster.Node
//	backend    cluster.Backend over a tiers.Engine: answers requests of peers
//	publisher  turns the engine's events into records of this node's feed
//	storeJob   a store under way: which peers are offered the blocks, and what they answer
//	attempt    a request of a load to one holder, with its hedge
//	older      drops this node's version of a block if a peer has a later one
//	segment    finds the member that is the preferred segment
//	loans      lets a block that many nodes want at once spread; see there
//	claims     who fetches a block that many nodes of this zone want at once; see zone.go
//	Lost       brings losses of watched blocks from the location index to the engine
//	notifier   decides which of them are losses, and tells the engine
//
// The package uses the engine through Engine, and the cluster through node and member. Tests
// replace both by small ones, and also run over a real cluster.
//
// # A load, step by step
//
//  1. Each block is located: the holders of the wanted version, best first. That needs only
//     memory: the location index of the node, and the hints (below). If they have no holder, and
//     the node does not know the name (cluster.Node.Knows), other nodes are asked, once for all
//     such blocks. They are also asked, once, when all holders that were known have failed.
//  2. The blocks with the same first holder are fetched from it in one request, directly into
//     their files, from all holders at once.
//  3. When a holder begins to answer, its description of the block is compared with the wanted
//     version, size and checksum. Another block is refused before a byte of it is written. When
//     all bytes are there, their checksum is compared with the description.
//  4. The next holder is asked for blocks that a holder did not give. A holder that no longer has
//     the block, or has another version, is no failure. A holder that is busy, dead or slow is. When
//     one was silent, the others are tested at the same time. Those that do not answer are not asked. A
//     holder that sent wrong bytes is not asked for this version again for a minute. If holders told this node to come
//     back, it rests for some milliseconds and asks those that have the block then. If all holders are in other zones,
//     the keeper of the block in this zone is asked first; see zone.go.
//  5. In the end a block is Loaded; or Failed with ErrUnavailable if some holder could not be
//     asked, with ErrCorrupt if all bytes were bad; or Absent.
//
// A block has Options.Timeout in all, from when the previous block of its request came. While there
// is another holder to ask, half of the remaining time is the limit. So a hanging holder costs
// time, but not the block.
//
// A fetch that takes longer than a quantile of the recent ones of its size is hedged: a second
// holder is asked for that one block, into separate memory. If the second holder is faster, the
// first request is cut off. When it has released the block's file, the bytes are copied there. The
// other blocks of the request then go to their next holders.
//
// # A store, step by step
//
//  1. Options.Replicas peers are to have a copy. Peers that have this version already count.
//  2. The others are chosen for each block: the preferred segment, then peers of this zone, then
//     all, each by rendezvous hashing weighted with the free bytes that they gossip. A peer whose
//     breaker is open, that takes no copies, or that has no room is never chosen.
//  3. Each peer is offered its blocks in one call. It fetches them from this node like any block.
//     So this node reads the files of the job only for a checksum that is not known.
//  4. The next peer replaces a peer that refused or failed.
//
// take is the other side. It keeps the offer as a hint. So the load of the engine there finds the
// offering node, even if that node's feed has not announced the block yet.
//
// # An announcement, step by step
//
//  1. The publisher reads the engine's event log. An event only says which name to look at: the
//     record has the present state of that name on this node, whatever the event said. Names that
//     occur several times in a batch are announced once.
//  2. The records go into the feed of the node, which brings them to all other nodes.
//  3. If the log has overtaken the publisher, all subscribers take a new snapshot.
//
// A renamed directory is one event. Everything below it is announced under both names; see follow
// for changes there meanwhile.
//
// # Hints
//
// Feeds take some milliseconds. A peer that has just taken a copy, or that offers one, is a holder
// at once. A hint replaces the index until the index has the block, the peer turns out not to have
// it, the name is buried, or ten seconds have passed. A watched block with a hint is not lost.
//
// A node whose index is full does not know all names. What other nodes answer about the others is
// a hint, too, and so is what they tell in a listing. When the answer about a watched name has
// lapsed, the notifier asks again.
//
// # Bounds
//
// Bytes being fetched: Options.MaxInFlightBytes, with hedges; a hedge does not begin without room.
// Holders tried for a block: 8. Peers offered a block: the replicas and 3 more. Stores under way:
// 4. Offers being taken: 8. Hints of copies: 8192; answers: 65,536, which take 16 MiB; answers
// about one name: 16. Watched names asked about in a second: 4096; waiting for that: 40,960. Bad
// copies remembered: 4096. Names read in a listing: 100,000 a peer, 8 peers at a time. Of a block
// only the key is kept, and only if the engine watches it.
//
// # Lock order
//
//	the engine's lock  the engine calls Locate, Unknown, Watch and Unwatch under it, so none of the
//	                   locks below is held when the engine is called
//	watchTable.mu      held across calls of the location index
//	all others         leaves
//
// # Decisions
//
//   - Remove is a grave above the highest known version: an absent node would undo any other
//     removal of other nodes' blocks. The engine buries by itself.
//   - A stalled request is ended with DeadlineExceeded rather than cancelled, so that the breaker
//     of the peer learns of it.
//   - Without a peer to take a copy the outcome is Skipped with ErrNoSpace, not a failure: being
//     alone is a state, and the engine goes on without a copy.
//   - The clock of a request starts again with each block that comes. One deadline for all would
//     have to be guessed from their bytes and the speed of the network.
//   - The hedge copies its bytes once more in memory. Two requests that write to one file could
//     not be distinguished.
//   - Lookup does not ask other nodes: by its contract it answers from memory. Nor does a store: a
//     peer that has the version says so when it is offered it.
//   - A hint lapses after ten seconds and not when its holder changes: nobody tells this node of a
//     name that it does not know. A load that finds it wrong asks again.
//   - A hedge is of one block, the first open one: it delays the later blocks of the request.
package peer
