// Package fabric is the transport that reads the memory of a peer one-sided: RDMA by
// libfabric, whose providers verbs (InfiniBand, RoCE) and efa drive such network cards,
// and whose provider tcp does the same over sockets, for tests.
//
//	Open       opens the rails: one endpoint on each network card
//	Transport  implements rdma.Transport; Caps.OneSided, no Get
//	Options    provider, devices, limits
//	Probe      which library there is
//
// The library is called through a small shim in C (build tag ofi, with cgo) and opened at
// run time: $KVFS_LIBFABRIC alone if it is set, else libfabric.so.1, else where the EFA
// installer puts it. Without the tag, cgo or the library the package builds all the same,
// and Open says in one line what is missing: ErrUnavailable.
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
// The token is what a read is worth something by. The card, or the library, may send what
// is behind a key later than the holder thinks; a key may be that of another file after a
// restart. Whoever finds another word in the slot after the bytes have come gets rdma.ErrGone.
// So a region that was closed is dead at once even if the cache keeps its file registered:
// a reader that does not look can then still read the bytes of that block, which do not
// change, until the cache drops it.
//
// Over sockets the bytes come by way of a buffer, in pieces of 512 KiB, which are hashed and
// written to the file while the next comes, and the slot is asked for together with the last
// of them: there the peer's memory is read in the order of the messages.
//
// Rails are paired by their number, modulo how many the peer has. A read that fails by a
// rail is tried by the others. One that did not reach the peer is passed over, as far as there are
// others, until a Peer.Probe finds that it does.
//
// # Failures
//
// Each peer and rail has an endpoint of its own, over sockets up to 8, each for a read at a
// time as far as they suffice, made when it is needed. To close it is the
// one sure way to end a read: fi_cancel and the like do nothing for one that waits for a
// silent link. It is closed when a message fails, when nothing completes for
// Options.StallTimeout, and 100 ms after a read was given up if it has not ended by itself.
// Reads that end by it without fault of theirs are begun again on a new one. A
// message that fails itself is examined on an endpoint that nobody else uses: if the token can
// be read and is another one, the region is gone; if it is there, the message is tried once
// more; if it cannot be read, the peer is unavailable.
//
// Who waits for messages makes the progress: one leads, and polls for all; the next takes over
// when its own are done. An endpoint that nobody uses has no thread. Peers are served by
// one goroutine for each rail, which sleeps, if the provider can wake it; efa before libfabric
// 2.0 cannot, and is polled with pauses of 10 us to 1 ms.
//
// # Of the library
//
//   - Its registration cache does not see that memory was unmapped and then sends old bytes: it
//     is turned off, whatever the user has set. Its look for GPUs takes memory of theirs: it is
//     turned off, too, unless the user has set FI_HMEM.
//   - Debian's 1.17 replaces signal handlers while it loads: they are put back.
//   - verbs of 1.x loses an endpoint by one wrong key: refused.
//   - tcp of 1.17 crashes if an endpoint is closed into which bytes are flowing: net is used in
//     its place. There and later the same frees something twice, in the pool of its domain: over
//     sockets each endpoint has a domain of its own.
//   - Over sockets regions are looked for without a lock: none is registered meanwhile.
//   - Over sockets a message that was begun is sent on after its region was closed: the addresses
//     of the last 1024 regions keep empty pages behind them.
//   - net leaves its descriptor readable after a completion until it has waited by itself.
//   - A connection that is refused is tried again without an error: after 2 s it is given up.
//
// # Files are registered one by one
//
// The alternative is an arena that stays registered, into which a block is copied before it
// is read. Measured on two cores shared with other work, best of 5 (BenchmarkRegister,
// BenchmarkPin, BenchmarkBounce), on tmpfs with huge=within_size and with small pages:
//
//	                                           large pages     small pages
//	register 1 MiB, provider tcp: miss, hit     4.1   .8 us     5.6  1.4 us
//	register 1 GiB, provider tcp: miss, hit     4.0   .9 us     8.1  1.9 us
//	map and lock 1 MiB                           35 us           117 us
//	map and lock 1 GiB                           16 ms           136 ms
//	copy 1 MiB to an arena                      171 us           210 us
//
// The provider tcp pins nothing, so that its figures are those of the mapping and the
// tables here. A card's driver pins the pages: about what locking them costs, and with small
// pages still half of the copy. The copy would also take the memory twice. So
// files are registered by themselves. With verbs the cache spares 35 to 117 us per MiB of a block
// that is read again, which at 100 Gbit/s takes 84 us to travel: a few hundred MiB are enough
// for blocks that several peers want at a time. It holds no memory but that of blocks which are
// there anyway, as long as Forget is told when one goes; what it keeps has to be within
// the limit of locked memory.
//
// # Reads over sockets
//
// A card writes to the file's own pages, which are mapped and registered for each read. Over
// sockets the processor copies in any case, and to a mapping that is new each time
// costs more than to a buffer that the cache still has, and from there to the file: room that
// is made is zeroed first, and each page is a fault. So the provider tcp has buffers: of 2 MiB
// for a read, at most 32; who finds none reads to the mapping, whose pages are populated at once.
//
// Against rdma/tcp, by the topic rdma of tests/bench (two processes in two namespaces,
// net of 1.17, medians of 5 rounds, on two cores that had four times as much other work to do):
// the share of its rate, and processor time of both sides in s/GB, ours and its. Blocks go to
// new files of small pages and are hashed; bytes go to the same file again.
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
// The rates vary by a third from run to run: in others, blocks from 4 MiB on had .6 to 1.2 at
// depth 8. What is left in processor time is mostly that the holder copies the bytes to the socket,
// where rdma/tcp has the kernel send the file's pages (sendfile), and that one thread of the
// holder serves all.
package fabric
