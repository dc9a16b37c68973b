// Package grave keeps what a node knows of removals. A grave is a path with the version number below
// which no copy counts. The location index has the graves; this package brings them to other nodes
// and to the node's next process.
//
//	Exchange  tells peers the graves that they lack, and takes theirs
//	Marks     how far the exchange with one peer has come
//	File      the graves on a disk
//
// # An exchange
//
// A node that was away during a removal learns of it from any node that knows it. Both sides of one
// call send the graves that they learned since the last exchange with that peer; each keeps the
// other's mark, a time of the other's clock. The marks of another incarnation of the peer do not
// count. Each message has the time of the sender's clock, by which the receiver corrects when the graves were made.
package grave
