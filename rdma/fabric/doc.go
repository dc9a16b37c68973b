// Package fabric is the transport that reads the memory of a peer one-sided: RDMA by
// libfabric, whose providers verbs (InfiniBand, RoCE) and efa drive such network cards,
// and whose provider tcp does the same over sockets, for tests.
//
//	Open       opens the rails: one endpoint on each network card
//	Transport  implements rdma.Transport; Caps.OneSided, no Get
//	Options    provider, devices, limits
//	Probe      reports the version of the library
//
// The package calls the library through a small shim in C (build tag ofi, with cgo). It opens the
// library at run time: $KVFS_LIBFABRIC alone if it is set, else libfabric.so.1, else the path of
// the EFA installer. Without the tag, cgo or the library the package builds all the same, and Open
// says in one line what is missing: ErrUnavailable.
//
// # A read
//
//	holder                                 reader
//	  map the file, register it by each rail
//	  put a random token into a table
//	      ---- RemoteRegion: slot and token, base and key by rail ---->
//	                                         reserve, map (and register) the destination
//	                                         read the bytes, in messages of up to 4 MiB, 2 at a time
//	                                         then read the slot: is the token still there?
//	  Close: take the token away, then       hash over the mapping
//	  unmap, or keep it in the cache
//
// A read counts only if its token is right. The card, or the library, may send the memory of a key
// later than the holder thinks. After a restart a key may be that of another file. A reader that
// finds another word in the slot after the bytes have come gets rdma.ErrGone. So a closed region is
// dead at once even if the cache keeps its file registered. A reader that does not check can then
// still read the bytes of that block, which do not change, until the cache drops it.
//
// Over sockets the bytes come through a buffer, in pieces of 512 KiB. A piece is hashed and written
// to the file while the next one comes. The slot is requested together with the last piece: over
// sockets the peer's memory is read in the order of the messages.
//
// Rails are paired by their number, modulo the number of rails of the peer. If a read by one rail
// fails, the other rails try it. A rail that did not reach the peer is skipped while there are
// others, until a Peer.Probe finds that it works.
//
// # Failures
//
// Each peer and rail has its own endpoint, made when it is needed. Over sockets there are up to 8,
// one for each concurrent read. Closing the endpoint is the one sure way to end a read: fi_cancel
// and the like do not help if the read waits for a silent link. An endpoint is closed when a
// message fails, when nothing completes for Options.StallTimeout, and 100 ms after a read was given
// up if the read has not ended by then. Reads that end with it without a fault of their own begin
// again on a new one. A message that fails itself is examined on an endpoint without other users:
// if another token is read, the region is gone; if the token is still there, the message is tried
// once more; if it cannot be read, the peer is unavailable.
//
// The goroutines that wait for messages make the progress. One of them leads, and polls for all;
// when its own messages are done, the next one leads. An unused endpoint has no thread. One
// goroutine for each rail serves peers. It sleeps, if the provider can wake it. efa before
// libfabric 2.0 cannot, and is polled with pauses of 10 us to 1 ms.
//
// # Library faults and how they are avoided
//
//   - Its registration cache does not see that memory was unmapped and then sends old bytes. This
//     package turns it off, whatever the user has set. Its search for GPUs takes GPU memory. This
//     package turns it off, too, unless the user has set FI_HMEM.
//   - Debian's 1.17 replaces signal handlers while it loads: this package restores them.
//   - verbs of 1.x loses an endpoint by one wrong key: refused.
//   - tcp of 1.17 crashes if an endpoint is closed while bytes flow in: net is used instead. In net
//     and in later versions the same frees something twice, in the pool of its domain. So over
//     sockets each endpoint has its own domain.
//   - Over sockets the library looks for regions without a lock: none is registered meanwhile.
//   - Over sockets the library sends on a message after its region was closed: the addresses of the
//     last 1024 regions keep empty pages behind them.
//   - net leaves its descriptor readable after a completion until it has waited by itself.
//   - The library repeats a refused connection without an error: this package gives up after 2 s.
//
// # Files are registered one by one
//
// The alternative is an arena that stays registered. A block is copied into it before it is read.
// Measured on two cores with other work, best of 5 (BenchmarkRegister, BenchmarkPin,
// BenchmarkBounce), on tmpfs with huge=within_size and with small pages:
//
//	                                           large pages     small pages
//	register 1 MiB, provider tcp: miss, hit     4.1   .8 us     5.6  1.4 us
//	register 1 GiB, provider tcp: miss, hit     4.0   .9 us     8.1  1.9 us
//	map and lock 1 MiB                           35 us           117 us
//	map and lock 1 GiB                           16 ms           136 ms
//	copy 1 MiB to an arena                      171 us           210 us
//
// The provider tcp pins nothing, so its figures are those of the mapping and of the tables here. A
// card's driver pins the pages. That costs about as much as locking them, with small pages still
// half of the copy. The copy would also take the memory twice. So each file is registered by
// itself. With verbs the cache saves 35 to 117 us per MiB of a block that is read again; at 100
// Gbit/s that takes 84 us to travel. A few hundred MiB are enough for blocks that several peers
// want at a time. The cache holds only memory of blocks that are there anyway, if Forget is called
// when one goes. It must stay within the limit of locked memory.
//
// # Reads over sockets
//
// A card writes to the file's own pages, which are mapped and registered for each read. Over
// sockets the processor copies in any case. A new mapping costs more than a buffer that is still in
// the cache and a write to the file: new room is zeroed first, and each page is a fault. So the
// provider tcp has buffers of 2 MiB for a read, at most 32. A read without a buffer uses the
// mapping, whose pages are populated at once.
//
// The table compares with rdma/tcp, by the topic rdma of tests/bench (two processes in two
// namespaces, net of 1.17, medians of 5 rounds, on two cores with four times as much other work).
// It has the share of rdma/tcp's rate, and processor time of both sides in s/GB, of this package
// and of rdma/tcp. Blocks go to new files of small pages and are hashed; bytes go to the same file
// again.
//
//	                  depth 1                  depth 8
//	blocks 64 KiB     .89   1.32  1.41         1.03   1.51  1.31
//	       1 MiB     1.00    .61   .67         1.17    .70   .69
//	       4 MiB      .84    .63   .61          .47    .93   .76
//	       16 MiB     .89    .73   .65          .61    .92   .74
//	bytes  64 KiB    1.01    .96  1.11         1.06   1.25   .98
//	       1 MiB     1.18    .44   .53         1.04    .52   .53
//	       4 MiB     1.16    .41   .40         1.22    .67   .60
//	       16 MiB    1.02    .60   .55          .88    .75   .61
//
// The rates vary by a third from run to run: in other runs blocks from 4 MiB on had .6 to 1.2 at
// depth 8. Two things cause most of the extra processor time. The holder copies the bytes to the
// socket, but with rdma/tcp the kernel sends the file's pages (sendfile). One thread of the holder
// serves all readers.
package fabric
