package feed

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
)

// decodeAll returns all records in buf.
func decodeAll(buf []byte) ([]Record, error) {
	var list []Record
	err := Decode(buf, func(r *Record) error {
		list = append(list, *r)
		return nil
	})
	return list, err
}

// normal returns r without the fields that are not sent.
func normal(r Record) Record {
	switch r.Op {
	case Hold:
		r.Path, r.Time = "", 0
	case Release:
		r = Record{Op: Release, Hash: r.Hash}
	case Bury:
		mode := uint32(typeFile)
		if r.Mode&typeBits == typeDir {
			mode = typeDir
		}
		r = Record{Op: Bury, Hash: location.HashPath(r.Path), Seq: r.Seq, Mode: mode, Path: r.Path, Time: r.Time}
	}
	return r
}

// randomRecord returns a record like those of a working node, or now and then one with extreme
// values.
func randomRecord(rnd *rand.Rand) Record {
	pick := func(values ...uint64) uint64 {
		if rnd.IntN(4) == 0 {
			return rnd.Uint64()
		}
		return values[rnd.IntN(len(values))]
	}
	r := Record{
		Op:     Op(1 + rnd.IntN(3)),
		Hash:   rnd.Uint64(),
		Seq:    pick(0, 1, math.MaxUint64, uint64(1.7e18)+rnd.Uint64N(1e12)),
		Size:   int64(pick(0, 1, 4095, 4096, 1<<20, 4<<20, math.MaxInt64, 1<<63)),
		Mode:   uint32(pick(0o100644, 0o040755, 0, math.MaxUint32)),
		UID:    uint32(pick(0, 1000, math.MaxUint32)),
		GID:    uint32(pick(0, 1000)),
		Memory: rnd.IntN(2) == 0,
		Path:   strings.Repeat("x", rnd.IntN(300)),
		Time:   int64(pick(0, 1<<63, 1700000000000000000)),
	}
	return r
}

func TestCodecRoundTrip(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		var buf []byte
		var want []Record
		for range rnd.IntN(4) { // several calls into one buffer
			var list []Record
			for range rnd.IntN(20) {
				r := randomRecord(rnd)
				list = append(list, r)
				want = append(want, normal(r))
			}
			before := len(buf)
			buf = Encode(buf, list...)
			total := before
			for i := range list {
				total += bound(&list[i])
			}
			if len(buf) > total {
				t.Fatalf("%d bytes of %d records, bound %d", len(buf)-before, len(list), total-before)
			}
		}
		got, err := decodeAll(buf)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("error %v\ngot  %+v\nwant %+v", err, got, want)
		}
		one := Encode(nil, randomRecord(rnd))
		for n := 1; n < len(one); n++ { // what is cut off does not decode
			if got, err := decodeAll(one[:n:n]); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%x of %x: %+v, error %v", one[:n], one, got, err)
			}
		}
	}
}

func TestDecodeMalformed(t *testing.T) {
	hash := "12345678"
	for _, c := range []struct{ name, buf string }{
		{"no operation", "\x08" + hash},
		{"unknown bit", "\x8a" + hash},
		{"no beginning", "\x02" + hash},
		{"release with a mark", "\x0e" + hash},
		{"bury with a size", "\x2b\x02\x00\x01x"},
		{"two sizes", "\x69" + hash + "\x02\x01\x01"},
		{"size told twice", "\x49" + hash + "\x02\x00"},
		{"size in the wrong unit", "\x49" + hash + "\x02\x80\x20"},
		{"size out of range", "\x29" + hash + "\x02\xff\xff\xff\xff\xff\xff\xff\xff\x7f"},
		{"attributes told twice", "\x19" + hash + "\x02\x00\x00\x00"},
		{"attribute out of range", "\x19" + hash + "\x02\x01\xff\xff\xff\xff\x1f\x00"},
		{"long form of a number", "\x09" + hash + "\x82\x00"},
		{"number of more than 64 bits", "\x09" + hash + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"},
		{"path longer than the buffer", "\x0b\x02\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := decodeAll([]byte(c.buf)); !errors.Is(err, ErrMalformed) {
				t.Errorf("%+v, error %v", got, err)
			}
		})
	}
	stop := errors.New("stop")
	if err := Decode(Encode(nil, Record{Op: Release}), func(*Record) error { return stop }); err != stop {
		t.Errorf("error of the callback came back as %v", err)
	}
}

// TestRecordSize bounds the bytes of records as a working node makes them. The package comment has
// the figures.
func TestRecordSize(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	const count = 10000
	for _, c := range []struct {
		name string
		most float64
		make func(i int) Record
	}{
		{"snapshot, a day's blocks of 4 MiB in any order", 17, func(int) Record { return heldBlock(rnd, rnd.Uint64N(86400e9), 4<<20) }},
		{"snapshot, of three sizes in turn", 19, func(i int) Record { return heldBlock(rnd, rnd.Uint64N(86400e9), 1<<(20+i%3)) }},
		{"snapshot, of any size", 20, func(int) Record { return heldBlock(rnd, rnd.Uint64N(86400e9), 1+rnd.Int64N(4<<20)) }},
		{"snapshot, every tenth of another owner", 18, func(i int) Record {
			r := heldBlock(rnd, rnd.Uint64N(86400e9), 4<<20)
			r.UID = uint32(1000 + i%10/9)
			return r
		}},
		{"deltas, 500 a second", 15, func(i int) Record { return heldBlock(rnd, uint64(i)*2e6, 4<<20) }},
		{"deltas, half of them releases", 12, func(i int) Record {
			r := heldBlock(rnd, uint64(i)*2e6, 4<<20)
			if i%2 == 1 {
				r.Op = Release
			}
			return r
		}},
		{"deltas, of any size, alone in a batch", 29, nil},
	} {
		bytes := 0.0
		if c.make == nil {
			for range count {
				r := heldBlock(rnd, rnd.Uint64N(86400e9), 1+rnd.Int64N(4<<20))
				bytes += float64(len(Encode(nil, r))) / count
			}
		} else {
			var e encoder
			var buf []byte
			for i := range count {
				r := c.make(i)
				buf = e.append(buf, &r)
			}
			bytes = float64(len(buf)) / count
		}
		t.Logf("%5.1f bytes: %s", bytes, c.name)
		if bytes > c.most {
			t.Errorf("%s: %.1f bytes a record, more than %v", c.name, bytes, c.most)
		}
	}
}

// heldBlock returns a Hold of a block.
func heldBlock(rnd *rand.Rand, after uint64, size int64) Record {
	return Record{Op: Hold, Hash: rnd.Uint64(), Seq: 1_790_000_000_000_000_000 + after, Size: size,
		Mode: 0o100644, UID: 1000, GID: 1000, Memory: rnd.IntN(2) == 0}
}

// FuzzDecode shows that Decode accepts only what Encode makes: for one call byte for byte, for
// several calls the same records.
func FuzzDecode(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		f.Add(Encode(Encode(nil, randomRecord(rnd), randomRecord(rnd)), randomRecord(rnd)))
	}
	f.Fuzz(func(t *testing.T, buf []byte) {
		list, err := decodeAll(buf)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v", err)
			}
			return
		}
		again := Encode(nil, list...)
		one := true
		var d decoder
		for d.buf, d.begun = buf, false; len(d.buf) > 0; {
			one = one && (d.buf[0]&firstBit != 0) == (len(d.buf) == len(buf))
			d.next(new(Record))
		}
		if one && !bytes.Equal(again, buf) {
			t.Fatalf("%x was taken, is made as %x", buf, again)
		}
		back, err := decodeAll(again)
		if err != nil || !reflect.DeepEqual(back, list) {
			t.Fatalf("error %v\ngot  %+v\nwant %+v", err, back, list)
		}
	})
}

// Encode appends the wire form of records to buf. The results of several calls on one buf can be
// decoded at once. A record must have one of the operations.
func Encode(buf []byte, records ...Record) []byte {
	var e encoder
	for i := range records {
		buf = e.append(buf, &records[i])
	}
	return buf
}
