package feed

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
)

const (
	shards   = 256     // sums of the first level
	MaxParts = 1 << 16 // sums of the second level

	// partEntries is about how many entries a part has. A part that differs is sent whole, at 16
	// bytes an entry; its sum has sumBytes.
	partEntries = 16
	sumBytes    = 8
)

// Digests are sums of location.Entry.Digest over what a node holds. Each is of one part: of the
// keys whose hashes have the same top bits. The number of parts is a power of two from 256 to
// MaxParts.
type Digests []uint64

// Parts is a set of parts. It has one bit for each part, the lowest of the first byte for part 0.
type Parts []byte

// Difference is a holder's answer to the sums of a Follower.
type Difference struct {
	Position Position // deltas go on from here
	Shards   Parts    // shards that differ, of 256
	Sums     []byte   // of the parts of these shards, 8 bytes each, big endian
}

// Valid reports whether p can be of Digests.
func (p Parts) Valid() bool { return validParts(len(p) * 8) }

func validParts(n int) bool { return n >= shards && n <= MaxParts && n&(n-1) == 0 }

// NewParts returns an empty set.
func NewParts(n int) Parts { return make(Parts, n/8) }

// Add puts a part into p.
func (p Parts) Add(part int) { p[part/8] |= 1 << (part % 8) }

func (p Parts) has(part int) bool { return p[part/8]>>(part%8)&1 != 0 }

// Holds reports whether the part of a hash is in p.
func (p Parts) Holds(hash uint64) bool {
	return p.has(int(hash >> (64 - bits.TrailingZeros(uint(len(p)*8)))))
}

// Count returns how many parts are in p.
func (p Parts) Count() (n int) {
	for _, b := range p {
		n += bits.OnesCount8(b)
	}
	return n
}

// coarser returns the sums of n parts, fewer than d has.
func (d Digests) coarser(n int) Digests {
	c, each := make(Digests, n), len(d)/n
	for i, sum := range d {
		c[i/each] += sum
	}
	return c
}

// append adds the sums to buf.
func (d Digests) append(buf []byte) []byte {
	for _, sum := range d {
		buf = binary.BigEndian.AppendUint64(buf, sum)
	}
	return buf
}

// Shards returns the first level: the sums of 256 shards, 8 bytes each, big endian.
func (d Digests) Shards() []byte { return d.coarser(shards).append(nil) }

// Within returns a copy of d, of MaxParts parts, without what is outside of a scope, of as many. A nil scope has all.
func (d Digests) Within(scope Parts) Digests {
	if scope == nil {
		return d
	}
	in := slices.Clone(d)
	for i := range in {
		if !scope.has(i) {
			in[i] = 0
		}
	}
	return in
}

// Compare compares d, of MaxParts parts, with the Shards of Digests of that many parts. It returns
// the shards that differ, and of these the sums of d. It fails with ErrMalformed.
func (d Digests) Compare(parts int, theirs []byte) (Parts, []byte, error) {
	if !validParts(parts) || len(theirs) != shards*sumBytes {
		return nil, nil, fmt.Errorf("%w: %d parts, sums of %d bytes", ErrMalformed, parts, len(theirs))
	}
	fine := d.coarser(parts)
	differ, each := NewParts(shards), parts/shards
	var sums []byte
	for i, sum := range fine.coarser(shards) {
		if sum != binary.BigEndian.Uint64(theirs[i*sumBytes:]) {
			differ.Add(i)
			sums = fine[i*each : (i+1)*each].append(sums)
		}
	}
	return differ, sums, nil
}

// digestAge is for how long Log.Digests may return the same sums. After a restart of the node, all
// followers ask at once. What changes meanwhile is sent twice.
const digestAge = time.Second

// summed is what Log.Digests found last.
type summed struct {
	turn     chan struct{} // has an element while no goroutine uses the other fields
	at       time.Time
	position Position
	sums     Digests
}

// Digests returns the sums, of MaxParts parts, of what snapshot tells, and a position from before
// that. Of parallel calls one at a time calls snapshot; the sums may be a second old. It fails with
// the error of ctx or of snapshot.
func (l *Log) Digests(ctx context.Context, snapshot Snapshotter) (Position, Digests, error) {
	d := &l.summed
	select {
	case <-d.turn:
		defer func() { d.turn <- struct{}{} }()
	case <-ctx.Done():
		return Position{}, nil, ctx.Err()
	}
	if d.sums != nil && time.Since(d.at) < digestAge && l.has(d.position.Next) {
		return d.position, d.sums, nil
	}
	d.sums, d.position = nil, l.Position()
	sums := make(Digests, MaxParts)
	shift := 64 - bits.TrailingZeros(MaxParts)
	err := snapshot(ctx, func(r *Record) error {
		if r.Op == Hold && sound(r) {
			e := r.entry()
			sums[r.Hash>>shift] += e.Digest()
		}
		return nil
	})
	if err != nil {
		return Position{}, nil, fmt.Errorf("digests: %w", err)
	}
	d.sums, d.at = sums, time.Now()
	return d.position, sums, nil
}

// asked is what a comparison found, until it has come.
type asked struct {
	parts Parts
	after Position
	begun bool
	seen  []uint64 // hashes of the records that have come
}

// Digests returns the sums of what the Follower knows of the node. It returns nil if that is
// nothing, so that only a snapshot helps. The more entries, the more parts.
func (f *Follower) Digests() Digests {
	if !f.shown.taken {
		return nil
	}
	parts, count := shards, f.index.Count(f.shown.number)
	for parts < MaxParts && int64(parts)*partEntries < count {
		parts *= 2
	}
	sums := make(Digests, parts)
	f.index.Digests(f.shown.number, sums)
	return sums
}

// Compare takes the answer to the Shards of own. It returns the parts that the node must send;
// Apply then takes them, and deltas from d.Position. It returns nil if there are none: the Follower
// knows all, and its Position is d.Position. It fails with ErrMalformed.
func (f *Follower) Compare(own Digests, d *Difference) (Parts, error) {
	f.counters.compared.Add(1)
	f.counters.digestBytes.Add(uint64(shards*sumBytes + len(d.Shards) + len(d.Sums)))
	f.asked = nil
	each := len(own) / shards
	if !f.shown.taken || len(d.Shards)*8 != shards || len(d.Sums) != d.Shards.Count()*each*sumBytes ||
		d.Position.Epoch == 0 || d.Position.Next == 0 {
		f.counters.refused.Add(1)
		return nil, fmt.Errorf("%w: position %+v, shards of %d bytes, sums of %d bytes", ErrMalformed, d.Position, len(d.Shards), len(d.Sums))
	}
	lacking, sums := NewParts(len(own)), d.Sums
	for part, sum := range own {
		if !d.Shards.has(part / each) {
			continue
		}
		if binary.BigEndian.Uint64(sums) != sum {
			lacking.Add(part)
		}
		sums = sums[sumBytes:]
	}
	if lacking.Count() == 0 {
		f.release(&f.hidden)
		f.position = d.Position
		return nil, nil
	}
	f.asked = &asked{parts: lacking, after: d.Position}
	return lacking, nil
}

// entry returns the index's form of a Hold.
func (r *Record) entry() location.Entry {
	return location.Entry{
		Hash: r.Hash, Seq: r.Seq, Size: r.Size,
		Mode: r.Mode, UID: r.UID, GID: r.GID, Memory: r.Memory,
	}
}
