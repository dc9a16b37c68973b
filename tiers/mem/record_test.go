package mem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// putID makes an encoded record that of another blob.
func putID(b []byte, id driver.BlobID) {
	binary.LittleEndian.PutUint64(b[8:], uint64(id))
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
}

func sample() *driver.Record {
	return &driver.Record{
		Path: "group/ab\xff", Seq: 7, Size: 1 << 40, Mode: 0o640, UID: 1000, GID: 1001,
		Mtime: time.Unix(1700000000, 123456789), Atime: time.Unix(1700000001, 1), Pinned: true,
		Sum: block.Checksum{Sum: 0x1122334455667788, Valid: true}, Expires: time.Unix(1800000000, 2),
	}
}

// TestRecordFormat: the bytes are those that the package comment draws.
func TestRecordFormat(t *testing.T) {
	b := appendRecord(nil, 0x0102030405060708, sample())
	want := "KVFR\x01\x06\x09\x00\x08\x07\x06\x05\x04\x03\x02\x01\x07\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x01\x00\x00\xa0\x01\x00\x00\xe8\x03\x00\x00\xe9\x03\x00\x00" +
		"\x15\xcd\x5b\x07\x00\xf1\x53\x65\x00\x00\x00\x00\x01\xf1\x53\x65\x00\x00\x00\x00" +
		"\x00\xd2\x49\x6b\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00" +
		"\x88\x77\x66\x55\x44\x33\x22\x11group/ab\xff"
	if got := string(b[:len(b)-4]); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestRecordOptions: a record with the fields that may be there has them behind the path, and comes back whole.
func TestRecordOptions(t *testing.T) {
	plain := appendRecord(nil, 5, sample())
	want := sample()
	want.Link = "group/.tmp\xfe"
	b := appendRecord(nil, 5, want)
	if got := string(b[len(plain)-4 : len(b)-4]); b[5] != plain[5]|flagLink || got != "\x0b\x00group/.tmp\xfe" {
		t.Errorf("flags %#x, then %q", b[5], got)
	}
	if _, got, err := decodeRecord(b); err != nil || *got != *want {
		t.Errorf("got %+v, %v", got, err)
	}
	want.User, _ = want.User.Set("user.a", "1", block.SetAny)
	both := appendRecord(nil, 5, want)
	if got := string(both[len(b)-4 : len(both)-4]); both[5] != b[5]|flagUser || got != "\x0a\x00\x06\x01\x00user.a1" {
		t.Errorf("flags %#x, then %q", both[5], got)
	}
	if _, got, err := decodeRecord(both); err != nil || *got != *want {
		t.Errorf("got %+v, %v", got, err)
	}
	want.User = "x"
	if _, r, err := decodeRecord(appendRecord(nil, 5, want)); !errors.Is(err, block.ErrCorrupt) {
		t.Errorf("attributes that are none: got %+v, %v", r, err)
	}
	want.User, want.Link = "", "/x"
	if _, r, err := decodeRecord(appendRecord(nil, 5, want)); !errors.Is(err, block.ErrCorrupt) {
		t.Errorf("a link that is no path: got %+v, %v", r, err)
	}
}

// FuzzRecord: whatever decodes is the encoding of what it decodes to; the
// checksum is mended, so that the fields behind it are reached.
func FuzzRecord(f *testing.F) {
	f.Add(appendRecord(nil, 5, sample()))
	f.Add(appendRecord(nil, 1, &driver.Record{Path: "g", Dir: true}))
	f.Add(appendRecord(nil, 1<<63, &driver.Record{Dir: true}))
	f.Add(appendRecord(nil, 2, &driver.Record{Path: strings.Repeat("abc/", 1000) + "z"}))
	f.Add(appendRecord(nil, 3, &driver.Record{Path: "a", Link: "a.tmp"}))
	f.Add(appendRecord(nil, 3, &driver.Record{Path: "a", User: "\x06\x01\x00user.a1"}))
	f.Add([]byte("KVFR\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := decodeRecord(b); err != nil && len(b) >= recordHeader+4 {
			b = bytes.Clone(b)
			putID(b, driver.BlobID(binary.LittleEndian.Uint64(b[8:])))
		}
		id, r, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, block.ErrCorrupt) {
				t.Errorf("got %v", err)
			}
			return
		}
		if err := checkRecord(r); err != nil {
			t.Errorf("accepted %+v: %v", r, err)
		}
		if again := appendRecord(nil, id, r); !bytes.Equal(again, b) {
			t.Errorf("got %x\nfrom %x", again, b)
		}
	})
}

// FuzzFormat: the same for kvfs-memory. The checksum is always mended.
func FuzzFormat(f *testing.F) {
	f.Add(format{id: "x", label: "/mnt/kv", uid: 1000, attr: "user.kvfs.record", next: 1}.encode())
	f.Add(format{id: "x", label: strings.Repeat("\xff", 4096)}.encode())
	f.Add([]byte("kvfs-memory 2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if i := bytes.LastIndex(b, []byte("crc32c ")); i >= 0 {
			b = fmt.Appendf(bytes.Clone(b[:i]), "crc32c %08x\n", crc32.Checksum(b[:i], castagnoli))
		}
		got, err := parseFormat(b)
		if err != nil {
			if !errors.Is(err, block.ErrCorrupt) {
				t.Errorf("got %v", err)
			}
			return
		}
		if again := got.encode(); !bytes.Equal(again, b) {
			t.Errorf("got %q\nfrom %q", again, b)
		}
	})
}

// TestFormatSize: kvfs-memory never grows with next, and stays in one page.
func TestFormatSize(t *testing.T) {
	f := format{
		id: strings.Repeat("x", maxID), label: strings.Repeat("\xff", 1<<16),
		uid: 1<<31 - 1, attr: "trusted.kvfs.record",
	}
	small := f.encode()
	f.next = 1<<64 - 1
	if large := f.encode(); len(large) != len(small) || len(large) > 4096 {
		t.Errorf("got %d and %d bytes", len(small), len(large))
	}
}
