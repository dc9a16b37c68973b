// Package control is the control channel between nodes: gRPC with the service of package wire. It
// decides which connections, calls and messages a node takes, and makes the connections to other
// nodes. What the calls do is the service's part.
//
//	Server     serves the calls of peers
//	Conn       one of its connections: a call finds it with ConnOf
//	Dial       makes a connection to another node
//	Followers  the calls that follow the feed
//	Error      the kind, of package rdma, of an error that a call brought; Status is the inverse
//
// # Before a message is decoded
//
// A connection has Options.Stranger for its first call. The caller of a call names itself, and with
// TLS its certificate must be that of the node which it names; a node that is refused as a peer
// gets no answer. Then the call takes a place, of which there are a bounded number over all
// connections, and the message its room: it is bounded in bytes and in elements, close to what
// nodes really send, and all messages that are decoded at a time have one bound.
//
// Calls have a deadline, apart from the one that follows the feed. Counters counts all that is
// turned away.
//
// # Why TCP
//
// A node has two connections to each peer, one each way: 2,000 descriptors with 1,000 peers. QUIC
// would need one socket. Both were measured with 1,000 idle connections of gRPC, each of which
// follows something (quic-go 0.59, both ends in one process, pings every 10 s, 2 processors):
//
//	                                              TCP      QUIC
//	memory of a connection, both ends          108 KB    249 KB
//	processor time of all, of one core          1.6 %     4.8 %
//	a call, with 1 connection                   58 us     99 us
//	a call, each on the next of 1,000          120 us    207 us
//
// Descriptors cost less than that.
package control
