// Package feed replicates what each node holds to all other nodes: a log of records at the holder,
// and a snapshot and then deltas to each subscriber. A subscriber that knows something already
// compares digests and gets what differs.
//
// The central types are Log and Follower. Log is at the holder; its ServeParts feeds one subscriber.
// Follower is at the subscriber and keeps the location index up to date. The caller provides the
// stream between them, which carries Batches in order.
//
// # Records
//
// A record tells the present state of one key at one node. So these end in the same state: applying
// a record twice, and applying a snapshot taken while the log went on and then the log from before
// it.
//
//	Hold     the node holds this version, of this size and these attributes
//	Release  the node holds nothing of the key
//	Bury     all versions of the key below a number are void, everywhere
//
// Graves do not belong to one node, and are not forgotten with it. Each node sends in its snapshots
// all graves that it knows, also those of other nodes. Digests do not cover graves: after a
// comparison that follows missed records, the caller must exchange graves in another way.
//
// # Resumption
//
// A Log numbers its records from 1 and keeps the last ones in a ring. A Position is the epoch of a
// node (its incarnation) and the number of the first record that was not seen. Deltas carry the
// position after them, so a subscriber knows its position.
//
//  1. A subscriber asks for its position. If the epoch is the present one and the record is
//     still in the ring, or is the next to come, it gets deltas from there.
//  2. Otherwise it gets a snapshot. The holder first takes the position P of its log. Then it
//     enumerates what it holds, in batches. Begin is set on the first batch, End on the last,
//     which carries P; the others carry no number. Deltas from P follow. So a change during the
//     snapshot is in the snapshot, or after it, or both.
//  3. If a subscriber takes its batches too slowly, the ring overtakes it, and it gets a new
//     snapshot within its stream. Only one batch is buffered for it. If the ring overtakes P
//     during a snapshot, the snapshot is still sent to its end, and another one follows an
//     Interval later. Each snapshot brings the subscriber to the state at the snapshot's begin:
//     the subscriber lags, but it never starves.
//  4. A Follower enters a snapshot into a second, hidden slot of the index. At End it shows that
//     slot and drops the first. A stream that breaks before End changes nothing: the position
//     stays, and the stream can be resumed from it.
//  5. A Follower refuses a batch if its position is not the Follower's plus the number of
//     records, if it is of another epoch, or if it continues a snapshot that never began. The
//     Follower's state stays, and the stream must begin again. Records of a refused batch may
//     have been entered: they come again.
//
// # Digests
//
// A subscriber that compares digests gets a snapshot only if it knows nothing. Otherwise it and the
// holder compare what they have
//
//   - from time to time, which mends any mistake
//   - when the ring has overtaken the subscriber (ServeParts then ends with ErrGap)
//   - when the holder is another process, which may hold what the one before held
//
// A part is the keys whose hashes begin with the same bits. Its digest is the sum of
// location.Entry.Digest over its keys. A shard is one of 256 parts, and is divided into up to 256
// smaller ones, so that a part has about 16 keys: the subscriber says how many.
//
//  1. The subscriber sends the digests of the 256 shards, which it computes from the index.
//  2. The holder takes the position P of its log, and then computes digests from what it holds. It
//     answers P, the shards that differ, and the digests of their parts. All that ask within a
//     second get those of one computation.
//  3. If no part differs, the subscriber knows all that the holder held. It goes on from P.
//  4. Otherwise it asks for the parts that differ, and for the log from P on. The holder sends what
//     it holds of these parts. Partial is set on each batch, Begin on the first, End on the last,
//     which carries P.
//  5. The Follower enters these records where they belong, at once: they are later than what is
//     there. It keeps their hashes. At End it deletes what it knows of the parts and did not get. So
//     a key that was held and is held is always found, and no second slot is needed. A stream that
//     breaks before End leaves the position, and what came; the next comparison finds less.
//  6. A record that is not a Hold or is not of these parts, and an End at another position than P,
//     are refused like other invalid batches. So are digests of a wrong length.
//
// A subscriber may have a scope, a set of parts: it then gets and compares only keys in these, and all graves. A batch says how
// many records of the log it leaves out. A subscriber that gets nothing else is told that number when it is a quarter of the
// ring, so that its position does not leave the ring. For a new scope it compares digests: what is new to it differs.
//
// What the Follower knew of the process before stays visible until 3 or until End: about as long as
// a snapshot would take. Only then is a key gone that the new process does not hold.
//
// Bytes for a million blocks (make simulate, TestDigestBytes; a snapshot has 16.0 MB). Half of the
// changed blocks were replaced by blocks of other keys. The other columns are computed: 256 parts,
// and 65,536 parts without the first level.
//
//	changed       digests   records      in all   256 parts  65,536 parts
//	nothing          2 KB         0        2 KB        2 KB        524 KB
//	100            250 KB     37 KB      287 KB      7.1 MB        562 KB
//	0.1 %          524 KB    377 KB      0.9 MB       16 MB        0.9 MB
//	1 %            526 KB    3.4 MB      3.9 MB       16 MB        3.9 MB
//	10 %           526 KB   14.5 MB       15 MB       16 MB         15 MB
//	everything     526 KB   15.9 MB     16.5 MB       16 MB       16.5 MB
//
// CPU for these million: 45 ms at the subscriber, and 30 ms at the holder besides enumerating them.
// The subscriber looks at all entries of its index, with a lock on a 256th of them at a time.
//
// A Follower does not believe impossible records: a version beyond the year 2116, a negative size
// or one beyond location.MaxSize, a type that is neither file nor directory, a path of no or too
// many bytes, more than 1<<24 entries. It skips and counts such a record. It takes a skipped Hold
// as a Release, because what was known of its key no longer holds.
//
// # Batches
//
// The first record after a rest is sent at once. Records that follow within the Interval go
// together when the Interval is over. After a full batch the next one follows at once. With the
// default, a node of n subscribers sends 100 n batches a second at most, and from 100 subscribers
// on 10,000: the Interval is 0.1 ms for each.
//
// # Wire format
//
// Batch.Records is a sequence of records, with nothing around them. Numbers are varints of
// encoding/binary in their shortest form; "signed" means zigzag. Each record begins with one byte:
//
//	  bit 7      6        5        4        3        2        1   0
//	+--------+--------+--------+--------+--------+--------+--------+
//	|   0    | size   | size   | attrs  | first  | mark   |   op   |
//	|        | bytes  | units  |        |        |        |        |
//	+--------+--------+--------+--------+--------+--------+--------+
//
//	op     1 Hold, 2 Release, 3 Bury
//	mark   Hold: in memory, not only on SSD. Bury: a directory
//	first  earlier records do not count: the latest Seq, size, mode, uid, gid are 0. It must be
//	       set on the first record of a batch
//	attrs  Hold: mode, uid, gid follow; else those of the previous Hold
//	size   Hold: the size follows, in bytes or in units of 4096 if it is a multiple
//	       of that; else that of the previous Hold
//
// Bits without a meaning for an operation are 0. Everything that can be left out must be.
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
// The hash of a grave is not sent: it is computed from the path, so the two cannot differ.
//
// Bytes a record (TestRecordSize): Hold in a snapshot of a day's blocks in random order 16.0; 18.0
// if the sizes are of three kinds in turn, 19.4 if they are arbitrary; in deltas at 500 a second
// 13.0; alone in a batch 27 to 29. Release 9. Encoding a record takes 14 ns, decoding 44 ns.
//
// # Scale
//
// make simulate NODES=1000 (TestSimulationTable) runs clusters in one process, on the clock of a
// testing/synctest bubble. Each node has a link of 10 Gbit/s and 0.2 ms one way, and 500 events a second, half of them new blocks
// and half evictions. A batch counts 150 bytes on the wire besides its records. CPU time is real,
// on two cores with other work, and not part of the other times.
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
//	index                                28.6 MB     272 MB    2.78 GB
//	  bytes an entry                        28.6       27.2       27.8
//	feed: Interval                         10 ms      10 ms     100 ms
//	  a subscriber: records              69 KB/s   689 KB/s  5.65 MB/s
//	    with what is around them        220 KB/s  2.20 MB/s  7.22 MB/s
//	    batches a second                   1,005     10,049     10,500
//	    CPU of both sides, s/s              0.01       0.15        1.5
//	  in all, on the wire               2.2 MB/s   220 MB/s   7.2 GB/s   (4)
//
// (1) All nodes make and serve their feeds. This many nodes follow them, and the figures are of one
// follower. The index of 1,000 nodes is 2.8 GB: a process has room for one or two.
//
// (2) The time that the bytes need on the link of the joining node, while events go on everywhere.
// CPU comes on top, spread over the cores: 1.8 µs a record at most, mostly for an index that does
// not fit the CPU's caches (0.6 µs if it nearly does).
//
// (3) From when gossip takes the node as lost.
//
// (4) The figures of one subscriber, times the number of nodes.
//
// # Decisions
//
//   - Records tell states, not changes. So resuming may send too much, never too little, and
//     the snapshot needs no lock over all blocks.
//   - Hashes are not sorted in snapshots: with 13,000 random hashes in a batch the differences
//     have 51 bits. Sorting would save one byte of 16 and need all records in memory.
//   - Each batch can be decoded alone, so a stream can begin anywhere. Remembering attributes
//     across batches would save ten bytes if records come singly; the frame of a batch is 150.
//   - The ring holds records, not bytes: 72 a record, 5 MB when it is full. Each subscriber's
//     batches are encoded for it, because no two subscribers are at the same position.
//   - Digests are computed when they are needed. To keep them up to date would cost a look at the
//     old entry for each record, 512 KiB for each peer, and an answer to what a grave deletes.
//   - The subscriber asks twice rather than once. In the second or so that the holder enumerates
//     its blocks, a busy node changes hundreds: with one level of 256 parts nearly all would differ
//     each time.
//   - A snapshot is made for each subscriber. A common one would have to stay in memory until
//     the slowest subscriber has it.
package feed
