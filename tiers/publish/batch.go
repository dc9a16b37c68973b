package publish

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvfs/kvfs/tiers/block"
)

// hashForm is the form of hashes in messages.
type hashForm uint8

const (
	hashInt   hashForm = iota // the lower 64 bits of the hexadecimal number
	hashBytes                 // the bytes that the hexadecimal digits stand for
	hashText                  // as in the name
)

func parseHashForm(name string) (hashForm, error) {
	switch name {
	case "", "int":
		return hashInt, nil
	case "bytes":
		return hashBytes, nil
	case "text":
		return hashText, nil
	}
	return 0, fmt.Errorf("hash %q: want int, bytes or text: %w", name, block.ErrInvalid)
}

// run is an event of a message that is being made: hashes of one medium and group.
type run struct {
	medium string
	group  []byte // as in the paths
	ints   []uint64
	raw    []byte // hashes in the other forms, one after the other
	ends   []int  // end of each of them
	seen   map[uint64]struct{}
}

func (r *run) len() int { return len(r.ints) + len(r.ends) }

// batch gathers the events of a message. Consecutive events of one kind become one event for each
// medium and group. That changes nothing: the order matters only between storing and removing. It
// is not for use in parallel.
type batch struct {
	form      hashForm
	arrays    bool // events are arrays, as vLLM sent them until June 2026
	blockSize int
	seed      maphash.Seed

	empty    bool // the message is made even without events
	removing bool
	runs     []run  // reused beyond its length
	hash     []byte // reused, as is digits
	digits   []byte
	events   int // in body
	hashes   int // in all, with those in runs
	body     bytes.Buffer
	head     bytes.Buffer
	enc      *msgpack.Encoder
}

func newBatch(form hashForm, arrays bool, blockSize int) *batch {
	b := &batch{form: form, arrays: arrays, blockSize: blockSize, seed: maphash.MakeSeed()}
	b.enc = msgpack.NewEncoder(&b.body)
	return b
}

// add adds that a block was stored in a medium or removed from it. It returns false if its hash
// does not fit the requested form.
func (b *batch) add(removing bool, medium string, m match) bool {
	var number uint64
	switch b.form {
	case hashInt:
		var ok bool
		if number, ok = lowBits(m.hash); !ok {
			return false
		}
	case hashBytes:
		digits := m.hash
		if len(digits)%2 != 0 {
			b.digits = append(append(b.digits[:0], '0'), digits...)
			digits = b.digits
		}
		var err error
		if b.hash, err = hex.AppendDecode(b.hash[:0], digits); err != nil {
			return false
		}
	case hashText:
		b.hash = append(b.hash[:0], m.hash...)
	}
	if removing != b.removing {
		b.flush()
		b.removing = removing
	}
	r := b.run(medium, m.group)
	id := number
	if b.form != hashInt {
		id = maphash.Bytes(b.seed, b.hash)
	}
	if _, dup := r.seen[id]; dup {
		return true // for example the file of another rank; consumers refuse events that repeat a hash
	}
	r.seen[id] = struct{}{}
	b.hashes++
	if b.form == hashInt {
		r.ints = append(r.ints, number)
		return true
	}
	r.raw = append(r.raw, b.hash...)
	r.ends = append(r.ends, len(r.raw))
	return true
}

// lowBits returns the lower 64 bits of a hexadecimal number.
func lowBits(digits []byte) (n uint64, ok bool) {
	for _, c := range digits {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		n = n<<4 | uint64(c)
	}
	return n, len(digits) > 0
}

// run returns the event for a medium and group.
func (b *batch) run(medium string, group []byte) *run {
	for i := range b.runs {
		if r := &b.runs[i]; r.medium == medium && bytes.Equal(r.group, group) {
			return r
		}
	}
	n := len(b.runs)
	b.runs = slices.Grow(b.runs, 1)[:n+1]
	r := &b.runs[n]
	r.medium, r.group = medium, append(r.group[:0], group...)
	r.ints, r.raw, r.ends = r.ints[:0], r.raw[:0], r.ends[:0]
	if r.seen == nil {
		r.seen = make(map[uint64]struct{})
	}
	clear(r.seen)
	return r
}

// cleared adds that everything was removed.
func (b *batch) cleared() {
	b.flush()
	b.events++
	if b.arrays {
		b.arrayLen(1)
		b.text("AllBlocksCleared")
		return
	}
	b.mapLen(1)
	b.field("type")
	b.text("AllBlocksCleared")
}

// flush encodes the runs.
func (b *batch) flush() {
	for i := range b.runs {
		r := &b.runs[i]
		b.events++
		switch {
		case b.removing && b.arrays:
			b.removedArray(r)
		case b.removing:
			b.removedMap(r)
		case b.arrays:
			b.storedArray(r)
		default:
			b.storedMap(r)
		}
	}
	b.runs = b.runs[:0]
}

func (b *batch) storedMap(r *run) {
	index, ok := groupIndex(r.group)
	b.mapLen(8 + one(ok) + one(r.medium == mediumStorage))
	b.field("type")
	b.text("BlockStored")
	b.field("block_hashes")
	b.list(r)
	b.field("parent_block_hash")
	b.null()
	b.field("token_ids")
	b.arrayLen(0)
	b.field("block_size")
	b.number(uint64(b.blockSize))
	b.field("lora_id")
	b.null()
	b.field("medium")
	b.text(r.medium)
	b.field("lora_name")
	b.null()
	if ok {
		b.field("group_idx")
		b.number(index)
	}
	b.locality(r)
}

// locality says that blocks on storage are on this machine, as vLLM does where its operator says
// so. It says nothing of other media.
func (b *batch) locality(r *run) {
	if r.medium == mediumStorage {
		b.field("locality")
		b.text("LOCAL")
	}
}

func (b *batch) storedArray(r *run) {
	index, ok := groupIndex(r.group)
	b.arrayLen(8 + 2*one(ok))
	b.text("BlockStored")
	b.list(r)
	b.null() // parent_block_hash
	b.arrayLen(0)
	b.number(uint64(b.blockSize))
	b.null() // lora_id
	b.text(r.medium)
	b.null() // lora_name
	if ok {
		b.null() // extra_keys
		b.number(index)
	}
}

func (b *batch) removedMap(r *run) {
	index, ok := groupIndex(r.group)
	b.mapLen(3 + one(ok) + one(r.medium == mediumStorage))
	b.field("type")
	b.text("BlockRemoved")
	b.field("block_hashes")
	b.list(r)
	b.field("medium")
	b.text(r.medium)
	if ok {
		b.field("group_idx")
		b.number(index)
	}
	b.locality(r)
}

func (b *batch) removedArray(r *run) {
	index, ok := groupIndex(r.group)
	b.arrayLen(3 + one(ok))
	b.text("BlockRemoved")
	b.list(r)
	b.text(r.medium)
	if ok {
		b.number(index)
	}
}

func one(ok bool) int {
	if ok {
		return 1
	}
	return 0
}

// groupIndex returns the number of a group whose name is a number.
func groupIndex(group []byte) (uint64, bool) {
	n, err := strconv.ParseUint(string(group), 10, 31)
	return n, err == nil
}

// list encodes the hashes of r.
func (b *batch) list(r *run) {
	b.arrayLen(r.len())
	for _, n := range r.ints {
		b.number(n)
	}
	start := 0
	for _, end := range r.ends {
		if b.form == hashText {
			b.text(string(bytes.ToValidUTF8(r.raw[start:end], []byte("\uFFFD"))))
		} else {
			must(b.enc.EncodeBytes(r.raw[start:end]))
		}
		start = end
	}
}

func (b *batch) field(name string) { b.text(name) }
func (b *batch) text(s string)     { must(b.enc.EncodeString(s)) }
func (b *batch) number(n uint64)   { must(b.enc.EncodeUint(n)) }
func (b *batch) null()             { must(b.enc.EncodeNil()) }
func (b *batch) arrayLen(n int)    { must(b.enc.EncodeArrayLen(n)) }
func (b *batch) mapLen(n int)      { must(b.enc.EncodeMapLen(n)) }

// must panics if encoding into memory failed, which is impossible.
func must(err error) {
	if err != nil {
		panic("publish: " + err.Error())
	}
}

// take returns the message in wire form without its number, and begins the next one. It returns nil
// if there is nothing to send.
func (b *batch) take(topic string) *message {
	b.flush()
	if b.events == 0 && !b.empty {
		return nil
	}
	b.empty = false
	b.head.Reset()
	b.enc.ResetWriter(&b.head)
	b.arrayLen(3)
	must(b.enc.EncodeFloat64(float64(time.Now().UnixMicro()) / 1e6))
	b.arrayLen(b.events)
	b.enc.ResetWriter(&b.body)
	size := b.head.Len() + b.body.Len() + 1

	m := &message{hashes: b.hashes}
	m.wire = make([]byte, 0, 3*frameHeader+len(topic)+8+size)
	m.wire = appendFrame(m.wire, frameMore, []byte(topic))
	m.bare = len(m.wire)
	m.wire = appendFrame(m.wire, frameMore, make([]byte, 8))
	m.number = len(m.wire) - 8
	m.wire = appendHeader(m.wire, 0, size)
	m.wire = append(m.wire, b.head.Bytes()...)
	m.wire = append(m.wire, b.body.Bytes()...)
	m.wire = append(m.wire, 0) // data_parallel_rank
	b.body.Reset()
	b.events, b.hashes = 0, 0
	return m
}

// message is a message to subscribers. It does not change once it has its number.
type message struct {
	wire   []byte // its three frames
	bare   int    // start of the second frame
	number int    // position of its number in wire
	hashes int
}

// frames returns the message in wire form, or without its topic if bare.
func (m *message) frames(bare bool) []byte {
	if bare {
		return m.wire[m.bare:]
	}
	return m.wire
}

// setNumber numbers the message.
func (m *message) setNumber(n uint64) {
	binary.BigEndian.PutUint64(m.wire[m.number:], n)
}
