package pack

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// sample is a block with its bytes.
type sample struct {
	path  string
	attrs driver.Attrs
	data  []byte
}

// samples returns the blocks of a small pack: nested and flat paths, no data, one byte, extremes.
func samples() []sample {
	dirs := []driver.DirAttrs{{Mode: 0o755, UID: 1000, GID: 1000}, {Mode: 0o700, UID: 0, GID: 7}}
	return []sample{
		{"g/d/a1", driver.Attrs{Seq: 1_800_000_000_000_000_000, Mode: 0o644, UID: 1000, GID: 1000, Mtime: 1_700_000_000_000_000_000, Dirs: dirs}, []byte("first block")},
		{"g/d/a2", driver.Attrs{Seq: 1_800_000_000_000_000_009, Mode: 0o644, UID: 1000, GID: 1000, Mtime: 1_700_000_000_000_000_005, Pinned: true, Dirs: dirs}, nil},
		{"h", driver.Attrs{Seq: 1, Mtime: -1, Expires: 5}, []byte{7}},
		{"g/" + strings.Repeat("x", 100), driver.Attrs{Seq: math.MaxUint64, Mode: math.MaxUint16, UID: math.MaxUint32, GID: math.MaxUint32, Mtime: math.MaxInt64, Expires: math.MinInt64, Dirs: dirs[1:]}, bytes.Repeat([]byte{0xee}, 28)},
	}
}

const (
	sampleTime   = 0x18bcd3f5a1b2c3d4
	sampleWriter = 0xdeadbeef
)

// build makes a pack of the samples.
func build(tb testing.TB, all []sample) (Name, []byte) {
	tb.Helper()
	size := 1 << 10
	for _, s := range all {
		size += len(s.data) + 4096
	}
	b := NewBuilder(bytes.Repeat([]byte{0xaa}, size)) // what was in the buffer does not show
	for _, s := range all {
		if err := b.Add(s.path, &s.attrs, s.data, block.Sum(s.data)); err != nil {
			tb.Fatal(err)
		}
	}
	return b.Finish(sampleTime, sampleWriter)
}

// entries returns what ReadIndex finds.
func entries(n Name, object []byte) ([]Entry, error) {
	var all []Entry
	if int64(len(object)) < n.Index {
		return nil, block.ErrCorrupt
	}
	err := ReadIndex(n, object[n.Index:], func(e *Entry) bool {
		kept := *e
		kept.Attrs.Dirs = slices.Clone(e.Attrs.Dirs)
		all = append(all, kept)
		return true
	})
	return all, err
}

// TestRoundTrip reads back what was added: from the index, and each block by its frame.
func TestRoundTrip(t *testing.T) {
	all := samples()
	n, object := build(t, all)
	if again, ok := ParseName(n.String()); !ok || again != n {
		t.Errorf("%s: got %+v", n, again)
	}
	got, err := entries(n, object)
	if err != nil || len(got) != len(all) {
		t.Fatalf("%d entries, %v", len(got), err)
	}
	for i, e := range got {
		s := all[i]
		e.Attrs.Dirs, s.attrs.Dirs = append([]driver.DirAttrs{}, e.Attrs.Dirs...), append([]driver.DirAttrs{}, s.attrs.Dirs...)
		if e.Path != s.path || !reflect.DeepEqual(e.Attrs, s.attrs) || e.Sum != block.Sum(s.data) || e.Offset%Align != 0 {
			t.Errorf("got %+v, want %+v", e, s)
		}
		frame := object[e.Offset:][:FrameBytes(e.Path, e.Size)]
		h, err := CheckFrame(frame, s.path)
		want := Header{s.attrs.Seq, int64(len(s.data)), e.Sum, s.attrs.Mtime, s.attrs.Mode, s.attrs.UID, s.attrs.GID, len(s.attrs.User)}
		if user, err := CheckUser(object[e.Offset+int64(len(frame)):][:UserBytes(h.User)]); h.User > 0 && (err != nil || user != s.attrs.User) {
			t.Errorf("%s: attributes %q, %v", s.path, user, err)
		}
		if err != nil || h != want || !bytes.Equal(object[e.DataOffset():][:e.Size], s.data) {
			t.Errorf("%s: got %+v, %v", s.path, h, err)
		}
		if _, err := CheckFrame(frame, s.path+"x"); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("%s: another path: got %v", s.path, err)
		}
	}
	calls := 0
	if err := ReadIndex(n, object[n.Index:], func(*Entry) bool { calls++; return false }); err != nil || calls != 1 {
		t.Errorf("stopped: %d calls, %v", calls, err)
	}
}

// TestUserAttrs: attributes of processes are behind the data and in the index, and only what has some is of version 2 (H2).
func TestUserAttrs(t *testing.T) {
	all := samples()[:3]
	_, object := build(t, all)
	if object[16] != 1 || object[len(object)-FooterBytes+16] != 1 {
		t.Errorf("without attributes: versions %d, %d", object[16], object[len(object)-FooterBytes+16])
	}
	const user = "\x06\x01\x00user.a1"
	all[0].attrs.User = user
	n, object := build(t, all)
	if object[16] != 2 || object[22] != 10 || object[len(object)-FooterBytes+16] != 2 {
		t.Errorf("with attributes: versions %d, %d, length %d", object[16], object[len(object)-FooterBytes+16], object[22])
	}
	got, err := entries(n, object)
	if err != nil || len(got) != 3 || got[0].Attrs.User != user || got[1].Attrs.User != "" {
		t.Fatalf("got %+v, %v", got, err)
	}
	behind := object[FrameBytes(got[0].Path, got[0].Size):][:UserBytes(len(user))]
	if string(behind[8:]) != user {
		t.Errorf("behind the data: %q", behind)
	}
	count := func() (bad int) {
		err := Verify(bytes.NewReader(object), n, int64(len(object)), func(_ *Entry, err error) bool {
			if err != nil {
				bad++
			}
			return true
		})
		if err != nil {
			t.Error(err)
		}
		return bad
	}
	if bad := count(); bad != 0 {
		t.Errorf("%d bad blocks", bad)
	}
	behind[9] ^= 1
	if u, err := CheckUser(behind); !errors.Is(err, block.ErrCorrupt) {
		t.Errorf("damaged attributes: %q, %v", u, err)
	}
	if bad := count(); bad != 1 {
		t.Errorf("%d bad blocks, want that with damaged attributes", bad)
	}
}

// TestGolden shows that the formats do not change.
func TestGolden(t *testing.T) {
	n, object := build(t, samples())
	for file, got := range map[string]string{
		"testdata/golden.pack.hex": n.String() + "\n" + lines(object),
		"testdata/golden.tomb.hex": tombName.String() + "\n" + lines(EncodeTombs(tombName, someTombs())),
	} {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s", file, got)
		}
	}
}

// lines returns b as hex digits, 32 bytes a line.
func lines(b []byte) string {
	var s strings.Builder
	for line := range slices.Chunk(b, 32) {
		s.WriteString(hex.EncodeToString(line) + "\n")
	}
	return s.String()
}

// intact reports what a reader of the pack believes: entries and verified bytes. It fails the test
// if that is anything that was not written.
func intact(t *testing.T, all []sample, want []Entry, n Name, object []byte) (whole bool) {
	t.Helper()
	got, err := entries(n, object)
	if err != nil && !errors.Is(err, block.ErrCorrupt) {
		t.Fatalf("got %v", err)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v", got)
	}
	whole = err == nil
	for i, e := range want {
		end := e.Offset + FrameBytes(e.Path, e.Size)
		if end > int64(len(object)) {
			whole = false
			continue
		}
		h, err := CheckFrame(object[e.Offset:end], e.Path)
		data := object[e.DataOffset():end]
		if err != nil || block.Sum(data) != h.Sum {
			whole = false
			continue
		}
		if h.Size != e.Size || h.Seq != e.Attrs.Seq || !bytes.Equal(data, all[i].data) {
			t.Fatalf("%s: got %+v", e.Path, h)
		}
	}
	return whole
}

// TestFlips: each flip of one bit is found by Verify, and no reader believes anything wrong.
func TestFlips(t *testing.T) {
	all := samples()
	n, object := build(t, all)
	want, err := entries(n, object)
	if err != nil {
		t.Fatal(err)
	}
	harmless := 0
	for i := range len(object) * 8 {
		object[i/8] ^= 1 << (i % 8)
		if intact(t, all, want, n, object) {
			harmless++ // in the zeros between frames
		}
		bad := 0
		err := Verify(bytes.NewReader(object), n, int64(len(object)), func(e *Entry, err error) bool {
			if err != nil {
				bad++
			}
			return true
		})
		if err == nil && bad != 1 {
			t.Errorf("bit %d: Verify found %d bad blocks", i, bad)
		}
		object[i/8] ^= 1 << (i % 8)
	}
	padding := 0
	for _, e := range want {
		padding += int(PaddedBytes(len(e.Path), e.Size, e.Attrs.User) - FrameBytes(e.Path, e.Size))
	}
	if harmless != 8*padding {
		t.Errorf("%d flips are not seen by readers of blocks, %d bits are zeros between frames", harmless, 8*padding)
	}
	tombs := EncodeTombs(tombName, someTombs())
	for i := range len(tombs) * 8 {
		tombs[i/8] ^= 1 << (i % 8)
		if _, err := DecodeTombs(tombName, tombs); !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("tombstones, bit %d: got %v", i, err)
		}
		tombs[i/8] ^= 1 << (i % 8)
	}
}

// TestCuts: objects that end early are not believed.
func TestCuts(t *testing.T) {
	all := samples()
	n, object := build(t, all)
	want, _ := entries(n, object)
	for size := range object {
		if intact(t, all, want, n, object[:size]) {
			t.Fatalf("%d bytes of %d are believed", size, len(object))
		}
		if err := Verify(bytes.NewReader(object[:size]), n, int64(size), func(*Entry, error) bool { return true }); !errors.Is(err, block.ErrCorrupt) {
			t.Fatalf("%d bytes of %d: got %v", size, len(object), err)
		}
	}
	tombs := EncodeTombs(tombName, someTombs())
	for size := range tombs {
		if _, err := DecodeTombs(tombName, tombs[:size]); !errors.Is(err, block.ErrCorrupt) {
			t.Fatalf("%d bytes of %d: got %v", size, len(tombs), err)
		}
	}
	// A reader that ends before the size that was told.
	err := Verify(bytes.NewReader(object[:n.Index-1]), n, int64(len(object)), func(*Entry, error) bool { return true })
	if err == nil {
		t.Error("a short object is believed")
	}
}

// TestForeign: the object of another name, and later versions.
func TestForeign(t *testing.T) {
	n, object := build(t, samples())
	for _, other := range []Name{
		{Time: n.Time + 1, Writer: n.Writer, Index: n.Index},
		{Time: n.Time, Writer: n.Writer + 1, Index: n.Index},
		{Time: n.Time, Writer: n.Writer, Index: n.Index - Align},
	} {
		if _, err := entries(other, object); !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("%s as %s: got %v", n, other, err)
		}
	}
	later := func(what string, err error) {
		t.Helper()
		var v *VersionError
		if !errors.As(err, &v) || *v != (VersionError{what, Version + 1}) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	head := object[:HeaderBytes+len("g/d/a1")]
	head[16] = Version + 1
	seal(head)
	_, err := CheckFrame(head, "g/d/a1")
	later("frame", err)
	footer := object[len(object)-FooterBytes:]
	footer[16] = Version + 1
	seal(footer)
	_, err = entries(n, object)
	later("pack", err)
	tombs := EncodeTombs(tombName, someTombs())
	tombs[16] = Version + 1
	seal(tombs)
	_, err = DecodeTombs(tombName, tombs)
	later("tombstones", err)
}

// TestLies: an index with good checksums that says what cannot be.
func TestLies(t *testing.T) {
	good := driver.Attrs{Seq: 5, Mode: 1}
	lie := func(index int64, entries uint32, list ...Entry) error {
		var b []byte
		last := &Entry{}
		for i := range list {
			b = appendEntry(b, last, &list[i])
			last = &list[i]
		}
		n := Name{Time: 1, Writer: 2, Index: index}
		return ReadIndex(n, appendFooter(b, b, n, entries, plain), func(*Entry) bool { return true })
	}
	a := Entry{Path: "a", Attrs: good}
	if err := lie(128, 1, a); err != nil {
		t.Fatal(err)
	}
	dirs := good
	dirs.Dirs = make([]driver.DirAttrs, 2)
	for what, err := range map[string]error{
		"no blocks":          lie(128, 0),
		"fewer":              lie(128, 2, a),
		"more":               lie(128, 1, a, a),
		"most":               lie(128, math.MaxUint32, a),
		"index too late":     lie(192, 1, a),
		"index too early":    lie(64, 1, a),
		"size beyond":        lie(128, 1, Entry{Path: "a", Size: 64, Attrs: good}),
		"huge size":          lie(128, 1, Entry{Path: "a", Size: MaxBlockBytes, Attrs: good}),
		"negative size":      lie(128, 1, Entry{Path: "a", Size: -64, Attrs: good}),
		"seq 0":              lie(128, 1, Entry{Path: "a"}),
		"no path":            lie(64, 1, Entry{Attrs: good}),
		"absolute path":      lie(128, 1, Entry{Path: "/a", Attrs: good}),
		"dots":               lie(128, 1, Entry{Path: "a/../b", Attrs: good}),
		"reserved path":      lie(128, 1, Entry{Path: ".kvfs/x", Attrs: good}),
		"many directories":   lie(128, 1, Entry{Path: "a/b", Attrs: dirs}),
		"large not alone":    lie(PaddedBytes(1, 0, "")+PaddedBytes(1, MaxShared+1, ""), 2, a, Entry{Path: "b", Size: MaxShared + 1, Attrs: good}),
		"many beyond 64 MiB": lie(9*PaddedBytes(1, MaxShared, ""), 9, slices.Repeat([]Entry{{Path: "b", Size: MaxShared, Attrs: good}}, 9)...),
	} {
		if !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// TestRefused: what a Builder does not take, and that it is unharmed by it.
func TestRefused(t *testing.T) {
	good := driver.Attrs{Seq: 5}
	b := NewBuilder(make([]byte, 0, 1<<10))
	for _, tc := range []struct {
		path string
		seq  uint64
		size int64
		want error
	}{
		{"", 1, 0, block.ErrInvalid},
		{"a//b", 1, 0, block.ErrInvalid},
		{strings.Repeat("d/", 3000) + "e", 1, 0, block.ErrNameTooLong},
		{".kvfs", 1, 0, block.ErrReserved},
		{"a", 0, 0, block.ErrInvalid},
		{"a", 1, -1, block.ErrInvalid},
		{"a", 1, MaxBlockBytes + 1, block.ErrInvalid},
		{"a", 1, MaxBlockBytes, block.ErrNoSpace},
		{"a", 1, 1 << 10, block.ErrNoSpace},
	} {
		if _, err := b.Reserve(tc.path, &driver.Attrs{Seq: tc.seq}, tc.size); !errors.Is(err, tc.want) {
			t.Errorf("%q %d %d: got %v", tc.path, tc.seq, tc.size, err)
		}
	}
	b.Commit(block.Checksum{}) // nothing is reserved
	if _, err := b.Reserve("dropped/x", &good, 100); err != nil {
		t.Fatal(err)
	}
	i := 0
	for ; ; i++ {
		err := b.Add(fmt.Sprint("g/", i), &good, []byte("abc"), block.Sum([]byte("abc")))
		if errors.Is(err, block.ErrNoSpace) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	n, object := b.Finish(1, 2)
	if got, err := entries(n, object); err != nil || len(got) != i || len(object) > 1<<10 || len(object) < 800 || got[0].Path != "g/0" {
		t.Errorf("%d entries of %d in %d bytes, %v", len(got), i, len(object), err)
	}
}

// TestAlone: a large block is alone.
func TestAlone(t *testing.T) {
	a := driver.Attrs{Seq: 5, Mode: 0o600, Dirs: []driver.DirAttrs{{Mode: 0o755}, {Mode: 1}}}
	for _, size := range []int{0, 1, 57, MaxShared, MaxShared + 1} {
		data := bytes.Repeat([]byte{3}, size)
		b := NewBuilder(make([]byte, 0, size+4096))
		if err := b.Add("g/a", &a, data, block.Sum(data)); err != nil {
			t.Fatal(err)
		}
		if err := b.Add("g/b", &a, nil, block.Sum(nil)); (err == nil) != (size <= MaxShared) {
			t.Errorf("another beside %d bytes: %v", size, err)
		} else if err == nil {
			b = NewBuilder(make([]byte, 0, size+4096))
			b.Add("g/a", &a, data, block.Sum(data))
		}
		n, object := b.Finish(7, 8)
		if got, err := entries(n, object); err != nil || len(got) != 1 || got[0].Offset != 0 || len(got[0].Attrs.Dirs) != 1 {
			t.Errorf("%d bytes: %+v, %v", size, got, err)
		}
	}
	b := NewBuilder(make([]byte, 0, 32<<20))
	b.Add("small", &a, nil, block.Sum(nil))
	if _, err := b.Reserve("large", &a, MaxShared+1); !errors.Is(err, block.ErrNoSpace) {
		t.Errorf("large beside small: %v", err)
	}
}

// TestNames: names are those of the package comment, and no others are ours.
func TestNames(t *testing.T) {
	const good = "18bcd3f5a1b2c3d4-00000000deadbeef-000fffe0.pack"
	n, ok := ParseName(good)
	if want := (Name{sampleTime, sampleWriter, 0xfffe0 * Align}); !ok || n != want || n.String() != good {
		t.Errorf("got %+v", n)
	}
	n, ok = ParseName("18bcd3f5a1b2c3d4-00000000deadbeef.tomb")
	if !ok || n != (Name{Time: sampleTime, Writer: sampleWriter}) || n.String() != "18bcd3f5a1b2c3d4-00000000deadbeef.tomb" {
		t.Errorf("got %+v", n)
	}
	for _, name := range []string{
		"", ".pack", ".tomb", "--.pack", "x" + good, good + "x", strings.ToUpper(good), good[1:],
		"18bcd3f5a1b2c3d4-00000000deadbeef.pack", "18bcd3f5a1b2c3d4-00000000deadbeef-00000000.pack",
		"98bcd3f5a1b2c3d4-00000000deadbeef-000fffe0.pack", "18bcd3f5a1b2c3d4-00000000deadbeef-000fffe0.tomb",
		"18bcd3f5a1b2c3d4-00000000deadbeeF-000fffe0.pack", "18bcd3f5a1b2c3d4-00000000deadbeeg-000fffe0.pack",
		"+8bcd3f5a1b2c3d4-00000000deadbeef-000fffe0.pack",
	} {
		if n, ok := ParseName(name); ok {
			t.Errorf("%q: got %+v", name, n)
		}
	}
}

var tombName = Name{Time: sampleTime, Writer: sampleWriter}

func someTombs() []Tomb {
	return []Tomb{{"g/d/a1", 1_800_000_000_000_000_000, 1_800_000_100_000_000_000}, {"h", math.MaxUint64, math.MinInt64}}
}

// TestTombs reads back removals, and refuses impossible ones.
func TestTombs(t *testing.T) {
	for _, tombs := range [][]Tomb{{}, someTombs()} {
		got, err := DecodeTombs(tombName, EncodeTombs(tombName, tombs))
		if err != nil || !slices.Equal(got, tombs) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if _, err := DecodeTombs(Name{Time: 1}, EncodeTombs(tombName, someTombs())); !errors.Is(err, block.ErrCorrupt) {
		t.Errorf("another name: got %v", err)
	}
	for _, bad := range []Tomb{{"a", 0, 1}, {"", 1, 1}, {"a/../b", 1, 1}} {
		if _, err := DecodeTombs(tombName, EncodeTombs(tombName, []Tomb{bad})); !errors.Is(err, block.ErrCorrupt) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
	b := EncodeTombs(tombName, someTombs())
	le.PutUint32(b[20:], math.MaxUint32)
	seal(b)
	if _, err := DecodeTombs(tombName, b); !errors.Is(err, block.ErrCorrupt) {
		t.Errorf("many: got %v", err)
	}
}
