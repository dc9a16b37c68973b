// Package peer is the tier of blocks that other nodes hold: it fetches them when they are
// opened here, has peers take copies of this node's, and serves and announces what this
// node has.
//
//	Tier       driver.Tier and driver.Remote over a cluster.Node
//	backend    cluster.Backend over a tiers.Engine: what peers ask of this node
//	publisher  the engine's events, turned into records of this node's feed
//	Lost       what the location index tells of watched blocks, on its way to the engine
//
// The engine is asked through Engine, the cluster through node and member; tests put
// small ones of their own in place of both, and run over a real cluster as well.
//
// # A load, step by step
//
//  1. Each block is located: who has the version that is wanted, best first. That is
//     memory: the location index of the node, and the hints (below).
//  2. The blocks with the same first holder are fetched from it in one request, straight
//     into their files, all holders at once.
//  3. When a holder begins to answer, its description of the block is held against the
//     wanted version, size and checksum: another one is refused before a byte of it is
//     written. When all bytes are there their checksum is held against the description.
//  4. What a holder did not give, the next one is asked for. A holder that has it no more,
//     or another version, is no failure; one that is busy, dead or slow is; one that sent
//     wrong bytes is not asked for this version again for a minute.
//  5. In the end a block is Loaded; or Failed with ErrUnavailable if some holder could not
//     be asked, with ErrCorrupt if there was but bad bytes; or Absent.
//
// A block has Options.Timeout in all, from when the one before it in its request came;
// half of what is left of it as long as there is another holder to turn to. So a holder
// that hangs costs time, and not the block.
//
// A fetch that takes longer than a quantile of the recent ones of its size is hedged: a
// second holder is asked for that one block, into memory of its own. If the second is
// faster, the first request is cut off, and when it has let go of the block's file the
// bytes are copied there. The rest of its blocks then goes to their next holders.
//
// # A store, step by step
//
//  1. Options.Replicas peers are to have a copy. Those that have this version already
//     count.
//  2. The others are chosen for each block: the preferred segment, then peers of this
//     zone, then all, each by rendezvous hashing weighted with the free bytes that they
//     gossip; never one whose breaker is open, that takes no copies, or has no room.
//  3. Each peer is offered its blocks in one call. It fetches them from this node as it
//     would any block, which is why the files of the job are not read here but for a
//     checksum that is not known.
//  4. In place of a peer that refused or failed comes the next one.
//
// The other side is take: the offer is kept as a hint, so that the load of the engine
// there finds the offerer, whose feed may not have told of the block yet.
//
// # An announcement, step by step
//
//  1. The publisher reads the engine's event log. An event only says which name to look
//     at: the record tells what this node has of that name now, whatever the event said.
//     Names that occur several times in a batch are told of once.
//  2. The records go into the feed of the node, which brings them to all others.
//  3. If the log has overtaken the publisher, all subscribers take a new snapshot.
//
// A directory that was renamed is one event. All that is below it is announced under both
// names; see follow for what changes there meanwhile.
//
// # Hints
//
// Feeds take some milliseconds. A peer that has just taken a copy, or that offers one, is
// a holder at once: a hint stands in for the index until that tells of it, the peer turns
// out not to have the block, the name is buried, or ten seconds have passed. A watched
// block with a hint is not lost.
//
// # Bounds
//
// Bytes being fetched: Options.MaxInFlightBytes, hedges included, which are not begun if
// there is no room. Holders tried for a block: 8. Peers offered a block: the replicas and
// 3 more. Stores under way: 4. Offers being taken: 8. Hints: 8192. Bad copies remembered: 4096. Names listened
// to in a listing: 100,000 a peer, 8 peers at a time. Nothing is kept of a block but what
// the engine watches: its key.
//
// # Lock order
//
//	Engine.mu          the engine calls Locate, Watch and Unwatch under it, so that none
//	                   of the locks below is held when the engine is called
//	watchTable.mu      held across calls of the location index
//	all others         leaves
//
// # Decisions
//
//   - Remove is a grave above the highest version that is known: there is no removal of
//     other nodes' blocks that a node which is away would not undo. The engine buries by
//     itself.
//   - A request that stood still is ended with DeadlineExceeded rather than cancelled, so
//     that the breaker of the peer hears of it.
//   - Nobody to take a copy is Skipped with ErrNoSpace, not a failure: being alone is a
//     state, and the engine goes on without a copy.
//   - The clock of a request starts anew with each block that comes. One deadline for all
//     would have to be guessed from their bytes and the speed of the network.
//   - The hedge copies its bytes once more in memory. Two requests that write to one file
//     could not be told apart.
//   - A hedge is of one block, the first that is open: what is behind it in the request
//     is late because of it.
package peer
