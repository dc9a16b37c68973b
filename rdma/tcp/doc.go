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
// the rdma.Loan until the reader has confirmed the block or the connection has ended. Bytes
// that are at the reader by then may still be those pages, and change: a reader that has
// received a block looks whether the connection has ended, and if so does not count on it. A call has a connection to itself, so
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
// # Through a mount
//
// What both daemons need for 4 MiB blocks that 8 threads open on the reader's mount, the
// same two cores, medians of 5 to 12 interleaved rounds, in s/GB more or less than in the
// same rounds with a buffer of 256 KiB, which needs .51, of that .09 in the holder:
//
//	buffer of 512 KiB, 1 MiB, 2 MiB                              -.02   .00   .00
//	room in the buffer for the frame, so that nothing is moved    .00
//	fallocate, then writes of 256 KiB, 512 KiB, 2 MiB            +.07  +.05   .00
//	splice, no hash (not to be had; what a free one would give)  -.10
//	splice, hash by a mapping or by reading back, 128 KiB-1 MiB   .00 to +.06
//	fallocate, splice, hash by a mapping, 256 KiB, 512 KiB       -.03  -.03
//	SO_RCVLOWAT of a chunk; 2 or 8 connections                    .00
//	recv and pwrite that the Go scheduler does not know of        .00
//
// 512 KiB makes opens of 4 MiB faster in five runs of six, by 5 to 16 %, but not opens
// with a read, and 1 MiB takes 30 us more. Splice after fallocate makes opens of 4 and
// 16 MiB with a read 4 to 15 % faster (one run: a file of larger pages is read faster),
// and those of 1 MiB 8 to 23 % slower. The others gain nothing.
//
// Memory is the limit. One core that touches each byte once needs per GB .10 s to read
// what is not in its cache, .14 s to write it to new pages in pieces of 256 KiB (.12 s in
// pieces of 2 MiB), and .03 s for a copy within the cache. A fetch reads
// once (out of the socket, because sendfile hands over the holder's pages) and writes
// once; the buffer and the hash between cost .05. The process that reads the block then
// pays .12 to .20 more. iperf3 touches its one buffer only. Per block there are about
// 180 us of processor time that do not depend on its size, over 300 us if it is alone.
//
// With that the best rounds reach 3.5 to 3.8 GB/s for opens and 2.4 to 2.8 with one read
// of each block, where those of iperf3 reach 4.7 to 5.2: about .75 and .5.
//
// An open of 1 MiB takes 640 us from the request to the reply of the daemon, and 730 us
// for the process that calls; a bare loop of sendfile and recv 270 us:
//
//	 85 us  engine and peer tier, with one hand-over to another thread
//	 45 us  write of the request, which wakes the holder
//	155 us  until the first byte: two sleeping processors are woken
//	280 us  receiving, hashing, writing
//	 75 us  back through the peer tier and the engine, 25 of them the reply
//
// With a second goroutine that writes while the first receives, only when nobody else
// fetches, 4 MiB take as long as before and 1 MiB 90 us more. To spin for 150 us before
// sleeping in recv adds another 50 us. Both cores have other things to do then.
//
// Where a host takes free memory back from a virtual machine (free page reporting), new
// pages cost ten times as much as above. Touch and free as much memory as a run takes
// shortly before it, or it measures the host.
//
// # Comparing
//
// Compare with an iperf3 of as many connections as Options.Connections: see
// BenchmarkGet for how to run the two. iperf3 sends one buffer of 128 KiB again and
// again, out of the cache and without hashing, and needs .08 + .09 s/GB with one
// connection and .15 + .16 with four.
package tcp
