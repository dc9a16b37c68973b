// Package tcp is the transport that is always there: plain TCP, with TLS if it is
// configured. Every Peer of it is an rdma.Getter; rdma.Peer.Read goes the same way,
// with the key of a region in place of a name.
//
// # Protocol
//
// All numbers are little-endian. Each side begins with a greeting: the magic
// "kvfsbulk", the oldest and the newest version that it speaks (2 bytes each), and 4
// zero bytes. The newest that both speak is used; if there is none, the connection
// ends. The dialling side does not wait for the answer before it sends requests, in
// the oldest version that it speaks.
//
//	reader                                holder
//	  greeting, get 0, get 1, ...  ->
//	                               <-  greeting
//	                               <-  answer 0: status, size, header; then size bytes
//	                               <-  wait                 (while it looks for block 1)
//	                               <-  answer 1, bytes
//	  get 2 (confirms 0 and 1)     ->
//	                               <-  answer 2, bytes
//	  confirm                      ->  (a millisecond later, if nothing else is asked)
//
// Requests and answers are frames of 16 bytes (see request and answer) and carry a
// number, so that one byte too many or too few shows at the next frame. Answers come
// in the order of the requests. A reader asks for at most 16 blocks ahead of what it
// has confirmed. Thus neither side ever blocks in a write because the other one does.
// No length in a frame makes anybody allocate: names, keys and headers have limits
// that fit fixed buffers, and the bytes of a block go through one of 256 KiB.
//
// # Who holds what
//
// sendfile refers to the pages of a block and does not copy them. The holder keeps
// the rdma.Loan until the reader has confirmed the block or the connection has been
// reset, which throws away what is queued. A call has a connection to itself, so
// giving a call up costs nobody else anything: its connection is cut. When as many
// are in use as Options.Connections allows, calls queue in their order.
//
// A source that takes long to lend (it may read an SSD) keeps its own connection
// waiting and no other. The reader is told to wait every third of
// Options.StallTimeout; if it goes away, the context of the Lend ends.
//
// # How bytes reach the file
//
// Through a buffer that stays in the core's cache: receive a chunk, hash it, write
// it. The alternatives were measured with 8 readers of 4 MiB blocks on fresh tmpfs
// files between two network namespaces (veth, cubic, 2 cores shared with other work,
// medians of 4 to 6 interleaved rounds; seconds of processor time per GB of the
// reader, hashing and freeing of the file included, because the rate itself depends
// on the other work):
//
//	                                     huge=within_size   4 KiB pages
//	buffer of 128, 256, 512 KiB, pwrite  .30  .29  .29      .55  .55  .55
//	splice by a pipe, hash by a mapping  .26                .60
//	the same after fallocate             .25                .62
//	receive into a mapping               .27                .68
//	the same after fallocate             .28                .69
//	the same with MAP_POPULATE           .32                .83
//
// Mapping a page costs about what the second copy costs, which is from the cache. With
// huge pages splice would save a tenth and would need a pipe and a mapping, where a
// file that somebody truncates meanwhile means SIGBUS; it is not worth it. Of what is
// left, 44 % is the copy out of the socket, bound by memory, 18 % the write, 9 % the
// checksum.
//
// The holder takes .07 s/GB by sendfile. More connections cost: with 1, 2, 4 and 8 the
// reader needs .26, .28, .29 and .30 s/GB on two cores.
//
// Compare with an iperf3 of as many connections as Options.Connections: see
// BenchmarkGet for how to run the two. iperf3 sends one buffer of 128 KiB again and
// again, out of the cache and without hashing, and needs .08 + .09 s/GB with one
// connection and .15 + .16 with four.
package tcp
