// Package owner decides which nodes know where a key is, and asks them.
//
// A node follows the feeds of all other nodes. If it has no memory for all that they hold, it follows only some shards of it:
// those that it owns. A shard is one of feed.MaxParts parts of the keys. Each shard has Copies owners among the members. So
// the indexes of all nodes together have each entry Copies times, not once for each node.
//
//	Table   who owns which shard, for one set of members
//	Scopes  what this node follows, of which keys it knows all, and its answers to others
//	Ask     asks the owners of keys
//
// # Who owns a shard
//
// The Copies members with the highest scores: a hash of the shard and the member's name (rendezvous hashing: Thaler and
// Ravishankar, 1998). All nodes that see the same members agree without a word. A member that comes or goes changes the owners
// of Copies/n of the shards, and no others.
//
// No node decides for another one. A node with enough memory follows everything, and can answer for any shard. Nodes may see
// other members for a while, not least because one that is gone counts for Options.Return, and a new owner has to catch up. So
// a node that is asked says of which keys it does not know all, and the next owner is asked. The answer may be a miss then, but
// is never wrong: a holder is asked by path and version.
//
// # Cost
//
// With n members, each with b blocks: an index has 3b entries instead of nb. Each node sends each change to three nodes instead
// of n. A name of which this node knows nothing costs one round trip. There is no way around that: a filter that says "nobody has
// it" for 99.9 % of the names takes 10 bits for each of the nb blocks, 12.5 GB on each node for 1,000 nodes with 10 million.
//
// A Table of 65,536 shards takes 3 ns for each shard and member to make: 0.2 s with 1,000 members.
package owner
