// Package feed replicates what each node holds to all the others: a log of
// records at the holder, a snapshot and then deltas to each subscriber.
//
// The central types are Log, at the holder, whose Serve feeds one subscriber, and
// Follower, at the subscriber, which keeps the location index in step. What is between
// them, a stream that carries Batches in order, is the caller's.
//
// # Records
//
// A record tells the present state of one key at one node, so that applying one twice,
// or applying a snapshot taken while the log went on and then the log from before it,
// ends in the same.
//
//	Hold     the node holds this version, of this size and these attributes
//	Release  the node holds nothing of the key
//	Bury     all versions of the key below a number are void, everywhere
//
// Graves are not of one node, and are not forgotten with it. Each node tells in its
// snapshots all that it knows, also those of others.
//
// # Resumption
//
// A Log numbers its records from 1 and keeps the last ones in a ring. A Position is an
// incarnation of the node, its epoch, and the number of the first record that was not
// seen. Deltas carry the position after them, so a subscriber knows where it is.
//
//  1. A subscriber asks for its position. If the epoch is this one and the record is
//     still in the ring, or is the next to come, it gets deltas from there.
//  2. Else it gets a snapshot. The holder first takes the position P of its log, then
//     enumerates what it holds, in batches: Begin is set on the first, End on the last,
//     which carries P; the others carry no number. Deltas from P follow. So a change
//     while the snapshot is made is told in it, or after it, or both.
//  3. A subscriber that the ring overtakes, because it takes its batches too slowly,
//     gets a new snapshot in the midst of its stream. Nothing is buffered for it but one
//     batch. If the ring overtakes P while the snapshot is under way, the snapshot is
//     nevertheless sent to its end, then one Interval later another. Each of them brings
//     the subscriber to what was so when it began: it lags, but it never starves.
//  4. A Follower enters a snapshot in a second slot of the index, which is hidden, and at
//     End shows it and drops the first. A stream that breaks before End changes nothing:
//     the position is that of before, and if it can be resumed, it is.
//  5. A Follower refuses a batch whose position is not what it has plus the number of
//     records, that is of another epoch, or continues a snapshot that never began. Its
//     state is then as before, and the stream is to be begun anew. Records of a
//     refused batch may have been entered: they come again.
//
// What a holder says is not believed where it cannot be: a version beyond the year
// 2116, a negative size or one beyond location.MaxSize, a type that is neither file nor
// directory, a path of no or too many bytes, more than 1<<26 entries. Such a record is
// skipped and counted. A Hold that is skipped is taken as a Release: what was known of
// its key is not so any more.
//
// # Batches
//
// The first record after a rest is sent at once; those that follow within the Interval
// go together when it is over. A batch that is full is followed by the next at once.
// With the default, a node of n subscribers sends 100 n batches a second at most, and
// from 100 subscribers on 10,000: the Interval is 0.1 ms for each.
//
// # Wire format
//
// Batch.Records is a sequence of records without anything around them. Numbers are
// varints of encoding/binary in their shortest form, "signed" means zigzag. Each begins
// with one byte:
//
//	  bit 7      6        5        4        3        2        1   0
//	+--------+--------+--------+--------+--------+--------+--------+
//	|   0    | size   | size   | attrs  | first  | mark   |   op   |
//	|        | bytes  | units  |        |        |        |        |
//	+--------+--------+--------+--------+--------+--------+--------+
//
//	op     1 Hold, 2 Release, 3 Bury
//	mark   Hold: in memory, not only on SSD. Bury: a directory
//	first  nothing before counts: the latest Seq, size, mode, uid, gid are 0. It must be
//	       set on the first record of a batch
//	attrs  Hold: mode, uid, gid follow; else they are those of the Hold before
//	size   Hold: the size follows, in bytes or in units of 4096 if it is a multiple
//	       of that; else it is that of the Hold before
//
// The bits that are not for an operation are 0. What can be left out must be.
//
//	Hold                                     Release
//	+------+----------------------------+    +------+------------------+
//	| head | hash, 8 bytes, big endian  |    | head | hash, 8 bytes    |
//	+------+----------------------------+    +------+------------------+
//	| Seq less the latest Seq, signed   |
//	+-----------------------------------+    Bury
//	| size                  if size     |    +------+-----------------------+
//	| mode, uid, gid        if attrs    |    | head | Seq less the latest   |
//	+-----------------------------------+    |      | Seq, signed           |
//	                                         +------+-----------------------+
//	                                         | Time less Seq, signed        |
//	                                         | length of Path               |
//	                                         | Path                         |
//	                                         +------------------------------+
//
// The hash of a grave is not sent: it is made from the path, so that it cannot differ.
//
// Bytes a record (TestRecordSize): Hold in a snapshot of a day's blocks in random order
// 16.0, if their sizes are of three kinds in turn 18.0, if they are of any size 19.4; in
// deltas at 500 a second 13.0; alone in a batch 27 to 29. Release 9. To encode one takes
// 14 ns, to decode one 44 ns.
//
// # Scale
//
// TestSimulationTable runs clusters in one process, on the clock of a testing/synctest
// bubble: each node has a link of 10 Gbit/s and 0.2 ms one way, and 500 events a second,
// half of them new blocks and half evictions. A batch is taken to cost 150 bytes on the
// wire besides its records. CPU time is real, of two cores that others used as well, and
// no part of the other times.
//
//	nodes                                     10        100      1,000
//	blocks of each                       100,000    100,000    100,000
//	entries of an index                1,000,000 10,000,000 100,000,000
//	whole indexes in the run (1)              10          3          1
//	join: until all snapshots are in       13 ms     128 ms     1.28 s   (2)
//	  bytes of records                   15.9 MB     160 MB    1.60 GB
//	  CPU of both sides                   0.75 s       13 s      175 s
//	loss: until nothing of it is found   at once    at once    at once   (3)
//	  until it is forgotten                 60 s       60 s       60 s
//	  CPU to forget it                     20 ms     204 ms      2.1 s
//	index                                28.4 MB     288 MB    2.88 GB
//	  bytes an entry                        28.4       28.8       28.8
//	feed: Interval                         10 ms      10 ms     100 ms
//	  a subscriber: records              69 KB/s   689 KB/s  5.65 MB/s
//	    with what is around them        220 KB/s  2.20 MB/s  7.22 MB/s
//	    batches a second                   1,005     10,049     10,500
//	    CPU of both sides, s/s              0.01       0.15        1.5
//	  in all, on the wire               2.2 MB/s   220 MB/s   7.2 GB/s   (4)
//
// (1) All nodes make and serve their feeds; so many follow them, and the figures are of
// one of those. The index of 1,000 nodes is 2.9 GB: a process has room for one or two.
//
// (2) The time that the bytes need on the link of the node that joins, while events go on
// everywhere. The CPU comes on top, spread over its cores: 1.8 µs a record at most, most
// of it for an index that does not fit the CPU's caches (0.6 µs if it nearly does).
//
// (3) From when the node is taken as lost, which is gossip's work.
//
// (4) Made from the figures of one subscriber, times the number of nodes.
//
// # Decisions
//
//   - Records tell states, not changes. So resuming may tell too much, never too little,
//     and the snapshot needs no lock over the whole store.
//   - Hashes are not sorted in snapshots: of 13,000 random hashes in a batch the
//     differences are of 51 bits; that would save one byte of 16 and need all in memory.
//   - Each batch can be decoded alone, so that a stream can begin anywhere. To remember
//     attributes across batches would save ten bytes where records come singly, and the
//     frame of a batch is some 150.
//   - The ring holds records, not bytes: 72 a record, 5 MB when it is full, and each
//     subscriber's batches are encoded for it, as no two are at the same place.
//   - A snapshot is made for each subscriber. One for all that ask at a time would have to
//     be kept in memory, by the slowest of them.
package feed
