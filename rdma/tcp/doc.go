// Package tcp is the transport that is always there: plain TCP, with TLS if it is configured. Every
// Peer of it is an rdma.Getter. rdma.Peer.Read uses the same protocol, with the key of a region
// instead of a name.
//
// # Protocol
//
// All numbers are little-endian. Each side begins with a greeting: the magic "kvfsbulk", the oldest
// and the newest version that it speaks (2 bytes each), and 4 zero bytes. Both use the newest
// version that both speak. If there is none, the connection ends. The dialling side sends requests
// before the answer comes, in the oldest version that it speaks.
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
// Requests and answers are frames of 16 bytes (see request and answer). Each has a number, so one
// byte too many or too few shows at the next frame. Answers come in the order of the requests. A
// reader asks for at most 16 blocks ahead of its last confirmation. So neither side ever blocks in
// a write because the other one does. No length in a frame causes an allocation: names, keys and
// headers have limits that fit fixed buffers, and the bytes of a block go through a buffer of 256
// KiB.
//
// # Who holds what
//
// sendfile refers to the pages of a block and does not copy them. The holder keeps the rdma.Loan
// until the reader has confirmed the block or the connection has ended. Bytes that have reached the
// reader by then may still be those pages, and change. So a reader that has received a block checks
// whether the connection has ended, and if so drops the block. Each call has its own connection. To
// give up a call, the reader cuts that connection; other calls are not affected. When all
// Options.Connections are in use, calls queue in their order.
//
// If a source takes long to lend (it may read an SSD), only its own connection waits. The holder
// tells the reader to wait every third of Options.StallTimeout. If the reader goes away, the
// context of the Lend ends.
//
// # How bytes reach the file
//
// Bytes go through a buffer that stays in the core's cache: receive a chunk, hash it, write it. The
// alternatives were measured with 8 readers of 4 MiB blocks on fresh tmpfs files between two
// network namespaces (veth, cubic, 2 cores with other work, medians of 4 to 6 interleaved rounds).
// The numbers are seconds of processor time per GB of the reader, with hashing and freeing of the
// file, because the rate itself depends on the other work:
//
//	                                     huge=within_size   4 KiB pages
//	buffer of 128, 256, 512 KiB, pwrite  .30  .29  .29      .55  .55  .55
//	splice by a pipe, hash by a mapping  .26                .60
//	the same after fallocate             .25                .62
//	receive into a mapping               .27                .68
//	the same after fallocate             .28                .69
//	the same with MAP_POPULATE           .32                .83
//
// Mapping a page costs about as much as the second copy, which reads from the cache. With huge
// pages splice would save a tenth. It would need a pipe and a mapping, and a concurrent truncation
// of the file would mean SIGBUS; that is not worth it. Of the rest, 44 % is the copy out of the
// socket, bound by memory, 18 % the write, 9 % the checksum.
//
// The holder takes .07 s/GB by sendfile. More connections cost: with 1, 2, 4 and 8 the
// reader needs .26, .28, .29 and .30 s/GB on two cores.
//
// # Through a mount
//
// The table shows what both daemons need for 4 MiB blocks that 8 threads open on the reader's mount
// (same two cores, medians of 5 to 12 interleaved rounds). It is in s/GB, relative to a buffer of
// 256 KiB in the same rounds, which needs .51, of that .09 in the holder:
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
// 512 KiB makes opens of 4 MiB faster in five runs of six, by 5 to 16 %, but not opens with a read,
// and 1 MiB takes 30 us more. Splice after fallocate makes opens of 4 and 16 MiB with a read 4 to
// 15 % faster (one run: a file of larger pages is read faster), and opens of 1 MiB 8 to 23 %
// slower. The others gain nothing.
//
// Memory is the limit. One core that touches each byte once needs per GB .10 s to read bytes that
// are not in its cache, .14 s to write them to new pages in pieces of 256 KiB (.12 s in pieces of 2
// MiB), and .03 s for a copy within the cache. A fetch reads once (out of the socket, because
// sendfile hands over the holder's pages) and writes once; the buffer and the hash between cost
// .05. The process that reads the block then pays .12 to .20 more. iperf3 touches only its one
// buffer. Each block costs about 180 us of processor time that do not depend on its size, over 300
// us if it is alone.
//
// So the best rounds reach 3.5 to 3.8 GB/s for opens and 2.4 to 2.8 with one read of each block,
// while iperf3 reaches 4.7 to 5.2: about .75 and .5.
//
// An open of 1 MiB takes 640 us from the request to the reply of the daemon, and 730 us for the
// calling process; a bare loop of sendfile and recv takes 270 us:
//
//	 85 us  engine and peer tier, with one hand-over to another thread
//	 45 us  write of the request, which wakes the holder
//	155 us  until the first byte: two sleeping processors are woken
//	280 us  receiving, hashing, writing
//	 75 us  back through the peer tier and the engine, 25 of them the reply
//
// A second goroutine that writes while the first receives, used only when nothing else is fetched,
// changes nothing at 4 MiB and adds 90 us at 1 MiB. Spinning for 150 us before sleeping in recv
// adds another 50 us: both cores then have other things to do.
//
// If a host takes free memory back from a virtual machine (free page reporting), new pages cost ten
// times as much. Shortly before a run, touch and free as much memory as it takes. Otherwise the run
// measures the host.
//
// # Comparing
//
// Compare with an iperf3 of as many connections as Options.Connections: BenchmarkGet says how to
// run the two. iperf3 sends one buffer of 128 KiB again and again, out of the cache and without
// hashing. It needs .08 + .09 s/GB with one connection and .15 + .16 with four.
package tcp
