// Package gossip knows who is in the cluster: hashicorp/memberlist with node meta, keys
// that can be changed while it runs, packets and streams that cannot be sent again by
// others, and a joiner that brings nodes together again.
//
// Open listens, Join begins to join, Events tell of others, Leave and Close end it:
//
//	g, err := gossip.Open(gossip.Options{Name: "n1", Bind: ":7946", Join: []string{"peers.example:7946"}})
//	...
//	err = g.Join(ctx)
//
// # Joining, partitions and restarts
//
// No fault of a seed or of DNS is an error: names are looked up again in each round, all
// their addresses are tried, and what fails is warned of once a minute. Rounds follow
// each other after 0.1 s, then ever later up to Options.Rejoin, and go on for good:
// memberlist forgets a dead node after half a minute (lan), and after a longer partition
// no one would speak to the other side. So a node remembers the members that it lost, up
// to 1,024 for 24 h, and tries some of them in each round. One connection brings two
// halves together. The same would join two clusters, if an address goes from one to the
// other: different keys keep them apart.
//
// A node that was killed and comes back with its address is in at once. With another
// address it is refused until the others have found its former life dead, some seconds
// on the lan profile; it offers itself every second meanwhile. Until then it looks like
// a second node of that name: each counts as a conflict.
//
// # Strangers
//
// Without a keyring anybody who can reach the port can take part. What is malformed is
// dropped and counted, packets over 4 KiB and more than 128 streams at a time are
// refused, nodes that cannot be (address, name, meta) as well, and no more than 16,384
// are taken; but a stream may make memberlist read 20 MiB and unpack 40 MiB, so an open
// port is for trusted networks only.
//
// With a keyring memberlist encrypts packets and streams with AES-GCM and refuses all
// others. That alone does not stop one who records and repeats: memberlist (v0.7.0)
// takes any packet that its keys open. Numbers of incarnation make it ignore most old
// news, but they begin at 1 with each start of a node and are forgotten with it: an old
// "alive" brings back a node that is gone, until probes fail, and an old "dead" or
// "left" hits a node that was restarted, until it refutes; both can be repeated for ever.
// So what memberlist sends travels inside an envelope here:
//
//   - A packet names the life of its receiver, a random number drawn at start, that of
//     its sender, and a counter, under an HMAC. One recorded before the receiver started,
//     one meant for another node, and one that came already are refused. Clocks do not
//     matter, and nothing has to be kept over a restart. See guard.
//   - A stream is TLS 1.3 in which both sides prove to hold a key, bound to this one
//     connection. Nothing but that proof is read from others; at most 512 wait to give
//     it, 5 s each. See channel.
//
// What remains to somebody on the path is to drop packets, and to hold a packet back
// until 1,024 later ones of its sender have come; and to have questions for a node's life
// answered, which says nothing secret, is no longer than the question and changes
// nothing. Who holds a key is trusted.
//
// All that is refused counts in Stats.Rejected. A node that was restarted on its address
// counts the few packets that others sent to its former life. Memberlist tells of bad
// input in its log only, so the rest is counted there, by the text of its messages; tests
// hold the texts to its version.
//
// # Keys
//
// Packets and streams are signed and encrypted with the first key of the file and
// accepted with any, so a key is changed in three steps, each on all nodes before the
// next: add, use, remove. The file is looked at twice a second (Keyring.Watch).
//
// # Events
//
// Memberlist calls with its lock held and must not wait. Its news go into one entry for
// each node, which a goroutine of ours compares with what the listener was told last. So
// a listener that is slow costs one entry for each node, and is told where it ended.
// Memberlist does not tell users whether a node left or failed: a node that leaves tells
// all others by a message of its own, and the news of an end waits 0.2 s for it.
//
// # Lock order
//
// Gossip.metaMu, then memberlist's own, then members.mu. Gossip.mu, guard.mu, sockets.mu
// and rejects.mu are taken last and alone. None but metaMu is held over a call out, and
// none over input or output.
//
// # Convergence
//
// Time until all nodes know of one that joined, of one that left and of one that was
// killed, in a simulated network without delay and with a clock of its own, lan profile
// (TestConvergence; KVFS_SIM=1 runs both sizes). Start is the time until all know all
// when 32 nodes come each second.
//
//	nodes    start     join    leave     loss
//	   10    0.4 s    0.4 s    0.5 s    6-8 s
//	  100    3.9 s    0.8 s    0.9 s  10-13 s
//
// A loss is found by probes, one a second and node, then suspected for 4 s times the
// decimal logarithm of the number of nodes, longer if few confirm it.
package gossip
