package object

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// packed stores a pack of blocks of 3,000 bytes, and returns its name.
func (s *store) packed(t *testing.T, at int64, paths ...string) string {
	t.Helper()
	b := pack.NewBuilder(make([]byte, 0, 1<<20))
	for i, path := range paths {
		p := newPut(path, uint64(i+1), 3000)
		must(t, b.Add(path, &p.attrs, p.data, block.Sum(p.data)))
	}
	n, data := b.Finish(at, 7)
	s.change(func() { s.objects[n.String()] = data })
	return n.String()
}

// buried stores tombstones, and returns their name.
func (s *store) buried(at int64, path string) string {
	n := pack.Name{Time: at, Writer: 7}
	s.change(func() { s.objects[n.String()] = pack.EncodeTombs(n, []pack.Tomb{{Path: path, Seq: 1, Expires: 5}}) })
	return n.String()
}

// wantFindings compares what was found: "object|path|damage|repaired".
func wantFindings(t *testing.T, r *Report, want ...string) {
	t.Helper()
	var got []string
	for _, f := range r.Findings {
		got = append(got, fmt.Sprintf("%s|%s|%v|%v", f.Object, f.Path, f.Damage, f.Repaired))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s\nin\n%v", strings.Join(got, "\n"), strings.Join(want, "\n"), r)
	}
}

// TestCheckClean shows the report of a bucket without faults, and that the progress ends with all bytes.
func TestCheckClean(t *testing.T) {
	s := newStore()
	s.packed(t, 1, "g/a", "g/b")
	s.packed(t, 2, "g/c")
	s.buried(3, "g/d")
	for _, data := range []bool{true, false} {
		var done, total int64
		r, err := Check(t.Context(), s.open(), CheckOptions{Data: data, Progress: func(d, all int64) { done, total = d, all }})
		if err != nil || r.ExitCode() != 0 || r.Objects != 3 || r.Blocks != 3 || r.BlockBytes != 9000 || r.Removals != 1 || len(r.Findings) > 0 {
			t.Errorf("data %v: %v, %v", data, r, err)
		}
		if done != total || done != r.Bytes {
			t.Errorf("progress: %d of %d bytes, report: %d", done, total, r.Bytes)
		}
	}
}

// damagedBucket returns a bucket with one object of each fault, and what Check finds in it with data. Objects of a later
// version and of others are not damage.
func damagedBucket(t *testing.T) (s *store, good string, damaged, other []string) {
	s = newStore()
	good = s.packed(t, 1, "g/good", "g/too")
	photo, later := "photo.jpg", s.packed(t, 10, "g/later")
	flipped, index, cut, magic := s.packed(t, 2, "g/a", "g/b", "g/c"), s.packed(t, 3, "g/d"), s.packed(t, 4, "g/e"), s.buried(5, "g/f")
	misnamed := strings.Replace(good, "0000000000000001-", "0000000000000006-", 1)
	short := "0000000000000008-0000000000000002-00000001.pack"
	empty := "0000000000000009-0000000000000002.tomb"
	s.change(func() {
		s.objects[photo], s.objects[short], s.objects[empty] = []byte("not ours"), []byte("too short"), nil
		s.objects[misnamed] = s.objects[good]
		s.objects[flipped][3000+2*pack.HeaderBytes+500] ^= 1 // data of the second block
		s.objects[index][len(s.objects[index])-pack.FooterBytes-1] ^= 1
		s.objects[cut] = s.objects[cut][:len(s.objects[cut])-1]
		s.objects[magic] = s.objects[good]
		footer := s.objects[later][len(s.objects[later])-pack.FooterBytes:]
		binary.LittleEndian.PutUint32(footer[16:], pack.Version+1)
		binary.LittleEndian.PutUint64(footer[8:], block.Sum(footer[16:]).Sum)
	})
	damaged = []string{flipped + "|g/b", index + "|", cut + "|", misnamed + "|", magic + "|", short + "|", empty + "|"}
	return s, good, damaged, []string{photo + "||false|false", later + "||false|false"}
}

// TestCheckDamage shows that each kind of damage is found and named, that only a repair changes the bucket, and that a
// repair deletes what is damaged and nothing else.
func TestCheckDamage(t *testing.T) {
	s, good, damaged, other := damagedBucket(t)
	before := s.names("")
	found := func(repaired string, list ...string) (all []string) {
		for _, d := range list {
			all = append(all, d+"|true|"+repaired)
		}
		return append(all, other...)
	}
	r, err := Check(t.Context(), s.open(), CheckOptions{})
	wantFindings(t, r, found("false", damaged[1:]...)...) // without data, not the flipped bit
	if err == nil || !strings.Contains(err.Error(), "1 objects were not checked") {
		t.Errorf("without data: %v", err)
	}
	r, err = Check(t.Context(), s.open(), CheckOptions{Data: true})
	wantFindings(t, r, found("false", damaged...)...)
	if err == nil || r.ExitCode() != 4 || r.Damaged != 7 || r.Blocks != 4 || r.Foreign != 1 || r.Unread != 1 || r.Objects != 9 {
		t.Errorf("got %v, %+v", err, r)
	}
	if !slices.Equal(s.names(""), before) {
		t.Error("a check without repair changed the bucket")
	}
	r, _ = Check(t.Context(), s.open(), CheckOptions{Data: true, Repair: true})
	wantFindings(t, r, found("true", damaged...)...)
	if r.ExitCode() != 1 || r.Repaired != 7 {
		t.Errorf("repair: %+v", r)
	}
	if got := s.names(""); len(got) != 3 || got[0] != good {
		t.Errorf("after the repair: %q", got)
	}
}

// TestCheckFaults shows that what is wrong with the store is no damage.
func TestCheckFaults(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		broken func(op, name string) error
		away   bool
		err    error // nil: none
		unread int64
	}{
		{"deleted meanwhile", t.Context(), failing("get", block.ErrNotFound), false, nil, 0},
		{"one object fails", t.Context(), failing("get", errors.New("500")), false, errors.New("1 objects were not checked"), 1},
		{"the store goes away", t.Context(), failing("get", block.ErrUnavailable), true, block.ErrUnavailable, 0},
		{"no right to list", t.Context(), failing("list", block.ErrInvalid), false, block.ErrInvalid, 0},
		{"stopped", ended, nil, false, context.Canceled, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore()
			s.packed(t, 1, "g/a")
			s.change(func() { s.broken, s.away = tt.broken, tt.away })
			r, err := Check(tt.ctx, s.open(), CheckOptions{Data: true, Repair: true})
			if (err == nil) != (tt.err == nil) || err != nil && !errors.Is(err, tt.err) && err.Error() != tt.err.Error() {
				t.Errorf("got %v, want %v", err, tt.err)
			}
			if r.Damaged > 0 || r.Unread != tt.unread || len(s.names(".pack")) != 1 {
				t.Errorf("%+v, %q", r, s.names(""))
			}
		})
	}
	if r, err := Check(t.Context(), newStore().open(), CheckOptions{}); !errors.Is(err, block.ErrNotFound) || r.ExitCode() != 0 {
		t.Errorf("nothing there: %v, %v", r, err)
	}
}

// failing returns a fault of all requests of one kind.
func failing(op string, err error) func(op, name string) error {
	return func(got, _ string) error {
		if got == op {
			return err
		}
		return nil
	}
}

// TestCheckCannotDelete shows that a repair that fails is no repair.
func TestCheckCannotDelete(t *testing.T) {
	s := newStore()
	name := s.packed(t, 1, "g/a")
	s.change(func() { s.objects[name][100] ^= 1; s.broken = failing("delete", block.ErrReadOnly) })
	r, err := Check(t.Context(), s.open(), CheckOptions{Data: true, Repair: true})
	if err != nil || r.ExitCode() != 4 || !strings.Contains(r.String(), block.ErrReadOnly.Error()) {
		t.Errorf("got %v, %v", err, r)
	}
	wantFindings(t, r, name+"|g/a|true|false", name+"||false|false")
}

// flippingOnce flips a bit of the first read.
type flippingOnce struct {
	Bucket
	done atomic.Bool
}

func (f *flippingOnce) Get(ctx context.Context, name string, offset int64, p []byte) error {
	err := f.Bucket.Get(ctx, name, offset, p)
	if err == nil && f.done.CompareAndSwap(false, true) {
		p[len(p)/2] ^= 1
	}
	return err
}

// TestCheckTwice shows that a bit that flips on the way deletes nothing.
func TestCheckTwice(t *testing.T) {
	s := newStore()
	s.packed(t, 1, "g/a")
	r, err := Check(t.Context(), &flippingOnce{Bucket: s.open()}, CheckOptions{Data: true, Repair: true})
	if err != nil || r.Damaged > 0 || r.Blocks != 1 || len(s.names(".pack")) != 1 {
		t.Errorf("got %v, %v, %q", r, err, s.names(""))
	}
}

// TestCheckMany shows that findings are bounded, and that the counts go on.
func TestCheckMany(t *testing.T) {
	s := newStore()
	b := pack.NewBuilder(make([]byte, 0, 1<<20))
	wrong := block.Sum([]byte("other"))
	for i := range maxFindings + 5 {
		must(t, b.Add(fmt.Sprintf("g/%d", i), &driver.Attrs{Seq: 1}, []byte("data"), wrong))
	}
	n, data := b.Finish(1, 7)
	s.change(func() {
		s.objects[n.String()] = data
		for i := range 2 * maxForeign {
			s.objects[fmt.Sprintf("photo-%d", i)] = nil
		}
	})
	r, err := Check(t.Context(), s.open(), CheckOptions{Data: true})
	if err != nil || r.Damaged != 1 || r.Foreign != 2*maxForeign || len(r.Findings) != maxFindings || r.Omitted != 5+maxForeign {
		t.Errorf("%v, %d findings, %d omitted, %d damaged, %d foreign", err, len(r.Findings), r.Omitted, r.Damaged, r.Foreign)
	}
}
