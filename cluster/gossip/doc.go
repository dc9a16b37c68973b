// Package gossip finds out which nodes are in the cluster. It adds to hashicorp/memberlist:
// node meta, keys that can change at run time, protection against replayed packets and
// streams, and a joiner that brings separated nodes together again.
//
// Open listens. Join begins to join. Events report other nodes. Leave and Close end it:
//
//	g, err := gossip.Open(gossip.Options{Name: "n1", Bind: ":7946", Join: []string{"peers.example:7946"}})
//	...
//	err = g.Join(ctx)
//
// # Joining, partitions and restarts
//
// A failing seed or DNS is not an error. Each round looks up the names again, tries all their
// addresses, and warns of failures once a minute. The pause between rounds grows from 0.1 s to
// Options.Rejoin. Rounds never stop: memberlist forgets a dead node after half a minute (lan),
// and after a longer partition no node would contact the other side. So a node remembers up to
// 1,024 lost members for 24 h and tries some of them in each round. One connection brings two
// halves together. It would also join two clusters, if an address moves from one to the other.
// Give them different keys to keep them apart.
//
// A node that was killed and restarts with its address is in at once. With another address,
// the others refuse it until they have found its former life dead: some seconds on the lan
// profile. Meanwhile it offers itself every second. It looks like a second node of that name,
// and each offer counts as a conflict.
//
// # Strangers
//
// Without a keyring any machine that reaches the port can take part. Malformed input is
// dropped and counted. Refused are packets over 4 KiB, more than 128 streams at a time, nodes
// with an invalid address, name or meta, and nodes beyond 16,384. But one stream can make
// memberlist read 20 MiB and unpack 40 MiB: use an open port on trusted networks only.
//
// With a keyring memberlist encrypts packets and streams with AES-GCM and refuses all others.
// That alone does not stop replays: memberlist (v0.7.0) takes any packet that its keys open.
// Incarnation numbers make it ignore most old news. But they restart at 1 with each start of a
// node. An old "alive" brings back a node that is gone, until probes fail. An old "dead" or
// "left" hits a restarted node, until it refutes. An attacker can repeat both for ever. So
// this package wraps what memberlist sends:
//
//   - A packet names the life of its receiver (a random number drawn at start), the life of
//     its sender, and a counter, under an HMAC. The receiver refuses packets that were
//     recorded before it started, that were meant for another node, or that came already.
//     Clocks do not matter, and a restart needs no saved state. See guard.
//   - A stream is TLS 1.3. Both sides prove that they hold a key; the proof is bound to this
//     one connection. A node reads nothing else before the proof. At most 512 streams wait
//     to give it, 5 s each. See channel.
//
// An attacker on the path can still drop packets, delay a packet until 1,024 later ones of its
// sender have come, and ask for a node's life. That answer is not secret, is no longer than
// the question and changes nothing. A holder of a key is trusted.
//
// Stats.Rejected counts everything refused. A node that restarted on its address also counts
// the few packets for its former life. Memberlist reports other bad input only in its log, so
// this package counts it by the text of the messages. Tests tie the texts to its version.
//
// # Keys
//
// The first key of the file signs and encrypts packets and streams. All keys of the file are
// accepted. So change a key in three steps, each on all nodes before the next: add, use,
// remove. Keyring.Watch checks the file twice a second.
//
// # Events
//
// Memberlist calls with its lock held and must not wait. Its news go into one entry for each
// node. A goroutine of ours compares the entry with what the listener last heard. So a slow
// listener costs one entry for each node and learns only the final state. Memberlist does not
// say whether a node left or failed. So a leaving node sends all others a message of its own,
// and the news of an end waits 0.2 s for that message.
//
// # Lock order
//
// Gossip.metaMu, then memberlist's own, then members.mu. Gossip.mu, guard.mu, sockets.mu and
// rejects.mu are taken last and alone. Only metaMu is held over a call out, and none over
// input or output.
//
// # Convergence
//
// docs/cluster.md says how long it takes until all nodes know of one that joined, of one that left
// and of one that was killed: on the lan profile, in a simulated network without delay and with its
// own clock (make simulate, TestConvergence). If nodes come 32 a second, all know all about a
// second after the last one.
//
// Probes find a loss: each node sends one a second. The node is then suspected for 4 s times
// the decimal logarithm of the number of nodes, longer if few nodes confirm it.
package gossip
