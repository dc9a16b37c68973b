// Package cluster is one node of a cluster of equal nodes. It knows which nodes are there and
// which node holds which block, and it gets blocks from them. It knows nothing of files, tiers
// or eviction: the Backend and the caller decide what a node holds and keeps.
//
//	gossip    which nodes are there, and what each tells of itself (its meta)
//	feed      what each node holds, replicated to all others into one location index
//	control   gRPC (packages wire and control): feeds, graves, listings, leases, offers of copies
//	bulk      rdma.Transport: the bytes of blocks
//	fabric    an optional second rdma.Transport that reads the memory of peers one-sided
//	breaker   three for each peer: for control, for bulk and for the fabric
//
// A Peer is put together from what this node follows of it (following), the link to its memory
// (links), and the session of now. Packages below this one have what needs no node: meta, message
// (descriptions of blocks), control, breaker, grave (removals), lease (blocks that peers read
// one-sided) and remote (the reading).
//
// There is no master. A look-up reads local memory and asks no other node. That memory may be
// out of date. The holder's answer decides: if it is no, or does not come, the block is a
// miss.
//
// # A look-up
//
// Locate hashes the path and takes the holders of the latest version from the index. A holder
// is a slot of the index; an array of pointers turns the slot into a Peer. The answer is in
// the order in which to ask. A look-up sends no packet, allocates nothing, and takes only the
// index's lock.
//
// # A fetch
//
//  1. Peer.Fetch fails at once if the peer is away or its breaker of fetches is open.
//  2. It splits the blocks into requests of up to 64 blocks or 32 MiB.
//  3. If there is a link (see below), the blocks of a request are read by it. What the link
//     does not bring goes on with 4, within the same time.
//  4. A request goes over the bulk channel with the names (BlockRef), and the holder's
//     Backend lends the blocks. If the peer or the transport cannot do that, a Lease call
//     registers the blocks with the holder's transport, Read reads them, and Release gives
//     them back. A lease also ends with the control connection, or by time.
//  5. The header (BlockInfo) must match the requested path, version and size, and must have
//     a checksum. Then Dest says where the bytes go. The caller verifies the checksum.
//
// # A link
//
// A link is a connection by the fabric. If both sides have FeatureRDMA, a goroutine of the
// session calls Describe to get the peer's fabric address, connects, and reads the peer's
// probe region. If the bytes have the checksum that Describe gave, the session has a link.
// While there is none, fetches go over the bulk channel (Options.Path may forbid either way).
//
// A request by the link is one Lease call, then a one-sided read for each block, then Release.
// For the lease the holder registers the blocks with its fabric and holds them. A lease ends
// with Release, with the control connection, or by time, so a reader that dies holds nothing
// for longer. The reader starts its own clock before it asks, and discards bytes that come
// after the end of the lease. It also discards bytes with a wrong checksum, if the caller gave
// a Hash.
//
// These close the link:
//
//   - the first failed read, or a lease that makes no sense
//   - reads that stand still: they are cut off after a quarter of Options.CallTimeout
//   - reads that were cut off earlier because the caller had little time, if a read of the
//     probe region then fails, too
//
// Its blocks are then asked for over the bulk channel at once. Leases that do not come count
// as failed calls; while the breaker of calls is open, this node asks for none. The log gets
// each kind of reason once in a session. Member.PathReason shows the reason as long as it
// holds. A goroutine makes the link again with a growing back-off, beginning with Describe; no
// reader waits for it. If the holder has no lease left for a block, or cannot register it, the
// block comes over the bulk channel, too. Leases are bounded in number and in bytes
// (Options.FabricBytes).
//
// # A removal
//
// A node that removes or replaces a name appends a Bury record to its feed: a grave. Every
// node that learns of a grave enters it in its index, which hides older copies, and tells its
// Backend, which drops its own. A node that was away learns of the grave from any node when it
// comes back: each snapshot of a feed contains the graves, and two nodes exchange new graves
// when they meet, and with random peers every half minute (Remove). The exchange is
// incremental: each side keeps the other's mark. A file keeps the graves for the node's next
// process (package grave).
//
// # A join
//
//  1. Gossip tells name and meta. The member is "refused" if its meta makes no sense, its
//     protocol is not ours, or it lacks a required feature. It is shown with the reason.
//     This node does not talk to it, and refuses its calls.
//  2. The goroutine of the peer makes a session: a gRPC connection and a peer of the bulk
//     transport. If the peer does not answer, the session ends, and the goroutine makes a
//     new one after a pause. The first answer closes the breakers; from then on the rest of
//     the node uses the session.
//  3. The session follows the peer's feed from its last position. If nothing is known of the
//     peer, a snapshot comes first. If the peer is another process now, or its log has gone
//     past the position, digests are compared, and only what differs comes (package feed).
//     The two nodes exchange graves.
//
// Once an hour digests are compared without need, to mend what may be wrong. That costs a few
// KiB if nothing is.
//
// # A loss
//
// When gossip says that the node left or does not answer, its session ends at once. Its blocks
// are hidden, and calls to it fail. After a minute its entries are deleted, after an hour the
// member. If it comes back within the minute, its entries are shown again and the feed goes
// on. If it comes back as another process, what the one before held is shown from its first
// answer until the end of the comparison, or of the snapshot. A fetch of a block that it no
// longer holds is a miss.
//
// If gossip finds a node alive but it does not answer calls, its entries stay. The broken feed
// and each failed call count towards the breaker.
//
// # Versions and features
//
// Each node tells the protocol it speaks and the oldest it understands. Two nodes whose ranges
// do not meet refuse each other. Within a protocol, newer abilities have a feature bit. A
// feature is used if both nodes have it. Otherwise the log says so once for each peer, version
// and feature. Without a feature in the peer:
//
//	get      blocks are fetched by lease and read
//	store    the peer is never offered copies; nor if it says that it takes none (Options.NoCopies)
//	bury     no graves are exchanged with it; it may still hold what was removed
//	list     its names are not listed
//	resume   its feed always begins with a snapshot
//	memory   its blocks count as being on SSD
//	digest   a snapshot of its feed comes once an hour, and after each restart
//	rdma     it is read over the bulk channel; only a node with a fabric logs that,
//	         like any peer without a link
//
// # What a stranger can do
//
// With gossip keys and TLS, a stranger can open connections, up to a part of Options.MaxConns: a new one then takes the place
// of one that says nothing. They are closed after the time for a handshake, or later if no call is made on them. Any call needs a
// certificate of the cluster's CA. A call of the service Control needs the certificate of the
// node that it names. Calls are bounded in number, in time and in memory (package control).
// Without keys or TLS, any machine that reaches the addresses is a peer. Open refuses such
// addresses unless they are loopback or Options.Insecure is set. Stats counts all that is
// turned away.
//
// A peer is trusted as to what it holds, and as to graves: any node with a certificate can
// remove blocks, as can any user of the file system. A peer is not trusted to be correct: size
// and sense of its messages are checked, version numbers that no clock gives are not
// believed, and the checksum finds wrong bytes.
//
// # Goroutines
//
// Each peer has one goroutine (Peer.run). It alone makes sessions and uses the feed.Follower.
// During a session there are two more for probes, one for the link and one for exchanges of
// graves. The node has one each for the server, capacity, exchange and leases, and
// those of gRPC and gossip. Close ends all of them and waits.
//
// # Lock order
//
// Node.mu, then Peer.mu: the state that gossip tells is entered under both. All other locks
// are leaves. None is held across a call of the network, the backend, or another package that
// may block.
//
// # Decisions
//
//   - A Peer stays the same object while the node goes and comes back. Its users need not ask
//     for it again, and what is known of it, such as its marks, is not lost.
//   - Events of gossip only set a target and wake the goroutine of the peer. So gossip never
//     waits, and no two goroutines make sessions.
//   - gRPC without its retries, service configuration, proxies and health checks: the breaker
//     and the caller's next holder know more.
//   - A separate goroutine makes the probes. A half-open breaker that let one reader through
//     would make that reader wait for a deadline.
//   - A fabric does not authenticate its clients. So Open requires TLS, with which only peers
//     get keys, or that only this machine reaches it (Options.FabricLocal), or Insecure.
//   - One failure closes a link: the bulk channel is there and costs little. The bulk channel
//     gets three failures because a block of a peer that it does not reach is a miss.
//   - Describe gives the address of the fabric. The meta cannot: it has 512 bytes, and an
//     address for each network card can be longer.
//   - Leases rather than permanent keys: with the key of reused memory a reader gets wrong
//     bytes. The checksum finds them, but no reader should see them at all.
//   - A feed is alive as long as its connection, by the pings of gRPC. It needs no heartbeat.
//   - The caller's identity is its certificate, not its address: addresses are translated and
//     shared.
package cluster
