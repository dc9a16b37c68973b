// Package cluster is a node's part in a cluster of equals: who is there, who holds
// what, and how to get it from there. It knows nothing of files, tiers or eviction: what
// a node holds and what becomes of what it fetches is the Backend's and the caller's.
//
//	gossip    who is there, and what each tells of itself (its meta)
//	feed      what each holds, replicated to all others into one location index
//	control   gRPC (package wire): feeds, graves, listings, leases, offers of copies
//	bulk      rdma.Transport: the bytes of blocks
//	fabric    another rdma.Transport, if there is one, that reads the memory of peers one-sided
//	breaker   three for each peer: for control, for bulk and for the fabric
//
// There is no master and nobody is asked where a block is: a look-up is local memory.
// What that memory says may be late. The holder's answer decides, and where that is no, or
// none, the block is a miss.
//
// # A look-up
//
// Locate hashes the path and takes the holders of the latest version from the index. A
// holder is a slot of the index, which an array of pointers turns into a Peer. The order
// of the answer is that in which to ask. No packet, no allocation, no lock but the index's.
//
// # A fetch
//
//  1. Peer.Fetch fails at once if the peer is away or its breaker of fetches is open.
//  2. It splits the blocks into requests of up to 64 blocks or 32 MiB.
//  3. If there is a link (see below), a request is read by it. What that does not bring
//     goes on with 4, within the same time.
//  4. A request goes over the bulk channel with the names (BlockRef), and the holder's
//     Backend lends the blocks. To a peer or over a transport that cannot do that, a
//     Lease call registers the blocks with the holder's transport, Read reads them,
//     and Release gives them back; so does the end of the control connection, or time.
//  5. The header (BlockInfo) must be of the path, version and size that was asked for,
//     and have a checksum; then Dest says where the bytes go. Whether they have that
//     checksum is for the caller to see.
//
// # A link
//
// If both sides have FeatureRDMA, a goroutine of the session calls Describe for the peer's
// address on the fabric, connects, and reads a region that the peer keeps for that: if
// the bytes have the checksum that Describe told, the session has a link. Until then, and
// whenever there is none, fetches go over the bulk channel (Options.Path may forbid either).
//
// A request by the link is one Lease, with which the holder registers the blocks with its
// fabric and holds them, then a one-sided read for each, then Release. A lease ends with
// Release, with the control connection, or by time: a reader that dies holds nothing for
// longer. The reader counts the same time from before it asked, and does not take bytes that
// came after it. Nor does it take those whose checksum is wrong, if the caller gave a Hash.
//
// The first failure of a read closes the link, and so does a lease that makes no sense. What
// stands still is cut off after a quarter of Options.CallTimeout, so that there is time for the
// bulk channel, over which these blocks are asked for at once. If it was cut off earlier because
// the caller has little time, the probe region tells whether the link is to close. That leases
// do not come is a failure of calls: while the breaker of those is open, none are asked for. The log tells once in a session for each kind of
// reason; Member.PathReason tells it as long as it holds. With a growing back-off the link is
// made anew, from Describe on, by nobody who waits. What the holder has no lease left for,
// or cannot register, comes over the bulk channel, too. Leases are bounded in number and in
// bytes (Options.FabricBytes).
//
// # A removal
//
// Who removes or replaces a name appends a Bury record to its feed: a grave. Every node
// that learns of one enters it in its index, so that older copies are not found any more,
// and tells its Backend, which drops its own. A node that was away learns of it when
// it comes back from anybody: graves are part of every feed's snapshot, and two
// nodes exchange what is new to either when they meet, and at random every half minute
// (Remove). The exchange is incremental: each side keeps the other's mark. A file keeps the
// graves for the node's next process (gravefile.go).
//
// # A join
//
//  1. Gossip tells name and meta. A meta without sense, a protocol that is not ours, or
//     a required feature that is lacking makes the member "refused": it is shown with its
//     reason, not talked to, and its calls are refused, too.
//  2. The goroutine of the peer makes a session: a gRPC connection and a peer of the bulk
//     transport. If nobody answers it ends, and another one is made after a while. Others
//     know it from the first answer on, when its breakers are closed.
//  3. It follows the peer's feed from the position that it had, if it had one and the
//     peer is the same process still; else a snapshot comes first. Graves are exchanged.
//
// # A loss
//
// When gossip says that the node left, or does not answer, its session ends at once: what
// it holds is not found any more, calls to it fail. After a minute what it held is
// forgotten, after an hour the member. If it comes back within the minute, its entries
// are shown again and the feed goes on.
//
// If gossip finds a node alive but nobody answers there any more, its entries stay; the feed
// and each call that fails count towards the breaker. See breaker.
//
// # Versions and features
//
// Each node tells the protocol it speaks and the oldest it understands; two nodes whose
// ranges do not meet refuse each other. Within a protocol, what not everybody can do has
// a feature bit. A feature is used if both have it; the log tells once for each peer,
// version and feature what is done without:
//
//	get      lease and read instead
//	store    it is never offered copies; nor if it says that it takes none (Options.NoCopies)
//	bury     no graves are exchanged with it; it may go on holding what was removed
//	list     its names are not listed
//	resume   its feed always begins with a snapshot
//	memory   its blocks count as being on SSD
//	rdma     it is read over the bulk channel; told by who has a fabric of its own only,
//	         as a peer without a link
//
// # What a stranger can do
//
// With gossip keys and TLS: open connections, up to the limit, and have them closed
// after the time for a handshake, or later if no call is made on them. A certificate of the cluster's CA is needed for any call, and
// for those of the service Control it must be of the node whose name the call gives. That is
// looked at before a message is decoded. A message is bounded near what is really sent, in
// bytes and in elements; calls are bounded in time, and over all connections in number and in the
// memory of their messages (admit.go, incoming.go). Without keys or TLS whoever reaches the
// addresses is a peer; Open refuses such addresses unless they are loopback or the
// caller insists. All that is turned away is counted in Stats.
//
// A peer is trusted as to what it holds, and as to graves: whoever has a certificate can
// remove blocks, as anybody can who mounts the file system. It is not trusted to be
// correct: what it sends is checked for size and sense, version numbers from beyond tomorrow
// are not taken over, and wrong bytes are found by their checksum.
//
// # Goroutines
//
// One for each peer (Peer.run), which alone makes sessions and uses the feed.Follower,
// with two for probes, one for the link and one for the first exchange of graves while a
// session lasts; one each for the server, capacity, exchange and leases; those of gRPC and
// gossip. Close ends and waits for all.
//
// # Lock order
//
// Node.mu, then Peer.mu: the state that gossip tells is entered under both. All other
// locks are leaves. None is held across a call of the network, the backend, or another
// package that may block; Peer.mu is taken within the callbacks of a Follower.
//
// # Decisions
//
//   - A Peer stays the same object while the node goes and comes back, so that who has one
//     need not ask again, and what is known of it, such as its marks, is not lost.
//   - Events of gossip set a target and wake the goroutine of the peer, and do
//     nothing else: gossip is never kept waiting, and no two goroutines make sessions.
//   - gRPC without its retries, service configuration, proxies and health checks: the
//     breaker and the caller's next holder are better informed.
//   - Probes are made by nobody who waits: a half-open breaker that lets one reader
//     through lets it wait for a deadline.
//   - Whoever reaches a fabric is not asked who he is. So Open wants TLS, with which only peers
//     get keys, or that only this machine reaches it (Options.FabricLocal), or Insecure.
//   - One failure of a link is enough: the other way is there, and costs little. The bulk
//     channel gets three because a peer that it does not reach is a miss.
//   - The address of the fabric is asked for, and not in the meta: that has 512 bytes, and
//     an address for each network card can be longer.
//   - Leases rather than permanent keys: who holds a key of memory that was used for
//     something else reads wrong bytes, which the checksum finds, but which nobody may see.
//   - Liveness of a feed is that of its connection, by the pings of gRPC: no heartbeat of ours.
//   - The caller's identity is its certificate, not its address: addresses are
//     translated and shared.
package cluster
