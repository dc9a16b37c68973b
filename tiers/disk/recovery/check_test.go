package recovery

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// plantClosed makes a directory that was closed cleanly, and returns what it holds.
func plantClosed(t *testing.T) (dir string, want map[string]string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "d")
	d := openTest(t, dir)
	want = plantAll(t, d)
	saveTest(t, d)
	must(t, d.Close())
	return dir, want
}

func checkTest(t *testing.T, dir string, o CheckOptions, exit int) *Report {
	t.Helper()
	var done, total int64
	o.Progress = func(d, tot int64) {
		if d < done || tot < total || d > tot {
			t.Errorf("progress went from %d of %d to %d of %d", done, total, d, tot)
		}
		done, total = d, tot
	}
	r, err := Check(context.Background(), dir, o)
	must(t, err)
	if r.ExitCode() != exit {
		t.Errorf("exit code %d, want %d:\n%s", r.ExitCode(), exit, r)
	}
	if done != total {
		t.Errorf("progress ends at %d of %d", done, total)
	}
	return r
}

// reopened returns what the directory holds for the next process.
func reopened(t *testing.T, dir string) (map[string]string, *Recovered) {
	t.Helper()
	d := openTest(t, dir)
	got, r := recoverTest(t, d)
	must(t, d.Close())
	return got, r
}

// files returns the content of a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil && !e.IsDir() {
			t.Fatal(err)
		}
		m[e.Name()] = string(b)
	}
	return m
}

// TestCheckClean: a directory that is well has no findings, Check changes nothing, and
// Repair no more than it must.
func TestCheckClean(t *testing.T) {
	dir, want := plantClosed(t)
	before := files(t, dir)
	for _, o := range []CheckOptions{{}, {Data: true}, {Repair: true}, {Repair: true, Data: true}} {
		r := checkTest(t, dir, o, 0)
		if r.Blocks != 11 || r.Slabs != 3 || r.Slots != 18 || r.IndexEntries != 11 || len(r.Findings) != 0 || !r.Clean || r.DataChecked != o.Data {
			t.Errorf("got %+v", r)
		}
		if o.Data && (r.DataBytes != r.BlockBytes || r.BlockBytes == 0) {
			t.Errorf("read %d bytes of %d", r.DataBytes, r.BlockBytes)
		}
		if !maps.Equal(files(t, dir), before) {
			t.Errorf("%+v changed the directory", o)
		}
	}
	got, r := reopened(t, dir)
	wantSame(t, got, want)
	if r.ByIndex != 11 {
		t.Errorf("got %+v", r)
	}
}

// spoiler damages something in a closed directory.
type spoiler func(t *testing.T, dir string)

// flipped changes a byte of a file.
func flipped(name string, off int64) spoiler {
	return func(t *testing.T, dir string) { patch(t, filepath.Join(dir, name), off, func(b []byte) { b[0]++ }, 1) }
}

// sealed changes a byte of a page of a file, and mends the checksum.
func sealed(name string, page, off int64) spoiler {
	return func(t *testing.T, dir string) {
		patchPage(t, filepath.Join(dir, name), page, func(b []byte) { b[off]++ })
	}
}

// cleared empties a page from some byte on.
func cleared(name string, off int64) spoiler {
	return func(t *testing.T, dir string) {
		patch(t, filepath.Join(dir, name), off, func(b []byte) { clear(b) }, format.PageBytes)
	}
}

// sizedTo gives a file another size.
func sizedTo(name string, size int64) spoiler {
	return func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, name), size) }
}

// removed takes a file away.
func removed(name string) spoiler {
	return func(t *testing.T, dir string) { remove(t, filepath.Join(dir, name)) }
}

var slab1, slab30 = format.SlabName(1), format.SlabName(30)

// damages are what Check must find, each with the blocks that it costs. An index that is damaged is not believed, and
// a slab that cannot be used is set aside: it costs its own blocks only.
var damages = map[string]struct {
	spoil  spoiler
	lost   string // prefix of the keys
	data   bool   // found by CheckOptions.Data only
	index  bool   // is damaged
	aside  bool   // so is slab 1
	errors int64  // least number
}{
	"superblock copy":  {spoil: flipped(format.SuperName, 30)},
	"other copy":       {spoil: flipped(format.SuperName, format.PageBytes+30)},
	"superblock":       {spoil: cleared(format.SuperName, 30)},
	"superblock lost":  {spoil: removed(format.SuperName)},
	"superblock empty": {spoil: sizedTo(format.SuperName, 0)},
	"slab header":      {spoil: flipped(slab1, 4090), lost: "model/", aside: true},
	"slab of another":  {spoil: sealed(slab1, 0, 20), lost: "model/", aside: true},
	"slab lost":        {spoil: removed(slab1), lost: "model/"},
	"slab cut":         {spoil: sizedTo(slab1, 28672+5*8192+1), lost: "model/05", errors: 2},
	"table cut":        {spoil: sizedTo(slab1, 3*4096+5), lost: "model/", aside: true},
	"slab of a number": {spoil: sealed(slab1, 0, 12), lost: "model/", aside: true},
	"slab empty":       {spoil: sizedTo(slab1, 0), lost: "model/", aside: true},
	"slab of no page":  {spoil: sizedTo(slab1, 4095), lost: "model/", aside: true},
	"slot header":      {spoil: flipped(slab30, 5*4096+10), lost: "g3/"},
	"slot of another":  {spoil: sealed(slab30, 5*4096, 76), lost: "g3/"},
	"slot too large":   {spoil: sealed(slab30, 5*4096, 34), lost: "g3/"},
	"data":             {spoil: flipped(slab30, 10*4096+4*4096+4000), lost: "g3/", data: true},
	"index lost":       {spoil: removed(format.IndexName), index: true},
	"index empty":      {spoil: sizedTo(format.IndexName, 0), index: true},
	"index of a page":  {spoil: sizedTo(format.IndexName, format.PageBytes), index: true},
	"index torn":       {spoil: sizedTo(format.IndexName, 6000), index: true},
	"index too long":   {spoil: sizedTo(format.IndexName, 3*format.PageBytes), index: true},
	"index":            {spoil: flipped(format.IndexName, 4096+200), index: true},
	"index chunk":      {spoil: flipped(format.IndexName, 4096+50), index: true},
	"index of another": {spoil: sealed(format.IndexName, 0, 16), index: true},
	"index of later":   {spoil: sealed(format.IndexName, 0, 32), index: true},
	"index counts":     {spoil: sealed(format.IndexName, 0, 40), index: true},
	"index says less":  {spoil: func(t *testing.T, dir string) { plantLate(t, dir, "late", 0) }},
	"index says more":  {spoil: cleared(slab30, 5*4096), lost: "g3/"},
	"index says other": {spoil: sealed(slab30, 5*4096, 64)},
}

// plantLate writes a block to slab 2, after the index.
func plantLate(t *testing.T, dir, key string, seq uint64) {
	d := openTest(t, dir)
	defer d.Close()
	f, err := os.OpenFile(d.SlabPath(2), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	s := format.SlabHeader{Number: 2, UUID: d.Superblock().UUID, Epoch: 1002, SlotBytes: 4096, Slots: 3}
	plantBlock(t, f, &s, 1, key, seq+1, 100)
}

// TestCheckFinds: each kind of damage is an error, which Check reports and leaves, Repair
// mends, and a second Check does not find; every block that was not hit is still there.
func TestCheckFinds(t *testing.T) {
	for name, tc := range damages {
		t.Run(name, func(t *testing.T) {
			dir, want := plantClosed(t)
			tc.spoil(t, dir)
			before := files(t, dir)
			if tc.lost != "" {
				maps.DeleteFunc(want, func(key, _ string) bool { return strings.HasPrefix(key, tc.lost) })
			}
			if tc.index || tc.aside {
				got, rec := reopened(t, dir)
				wantSame(t, got, want)
				if tc.index != (rec.IndexErr != nil) || tc.aside != (len(rec.SetAside) == 1) {
					t.Errorf("before Repair: %+v", rec)
				}
				if tc.aside && (rec.SetAside[0].Number != 1 || !errors.Is(rec.SetAside[0].Err, block.ErrCorrupt) || rec.Slabs != 2) {
					t.Errorf("before Repair: %+v", rec)
				}
			}
			if tc.data {
				checkTest(t, dir, CheckOptions{}, 0)
			}
			r := checkTest(t, dir, CheckOptions{Data: tc.data}, 4)
			if r.Errors < max(tc.errors, 1) || r.Repaired != 0 {
				t.Errorf("got %s", r)
			}
			if !maps.Equal(files(t, dir), before) {
				t.Error("Check without Repair changed the directory")
			}
			r = checkTest(t, dir, CheckOptions{Repair: true, Data: tc.data}, 1)
			if r.Repaired != r.Errors {
				t.Errorf("got %s", r)
			}
			r = checkTest(t, dir, CheckOptions{Data: true}, 0)
			if len(r.Findings) != 0 || !r.Clean {
				t.Errorf("after Repair: %s", r)
			}
			got, rec := reopened(t, dir)
			switch name {
			case "index says less":
				want["late"] = got["late"]
			case "index says other":
				for key := range want {
					if strings.HasPrefix(key, "g3/") {
						want[key] = got[key]
					}
				}
			}
			wantSame(t, got, want)
			if rec.IndexErr != nil || rec.ByIndex != int64(len(want)) || r.Blocks != int64(len(want)) {
				t.Errorf("got %+v; Check counts %d of %d", rec, r.Blocks, len(want))
			}
		})
	}
}

// TestCheckUnclean: what a crash leaves is no error: no index, an index or slab half
// made, a version that was replaced. Repair frees that version, the earlier one, and writes the index.
func TestCheckUnclean(t *testing.T) {
	for _, seq := range []uint64{1, 1000} { // earlier, later than in slab 1
		dir, want := plantClosed(t)
		d := openTest(t, dir)
		must(t, errors.Join(d.MarkDirty(), d.Close(), os.WriteFile(d.Join(format.IndexTmpName), nil, 0o600)))
		plantLate(t, dir, "model/02/block", seq)
		err := errors.Join(os.WriteFile(d.Join(format.IndexTmpName), nil, 0o600), os.WriteFile(d.Join(format.SlabTmpName), make([]byte, 8192), 0o600))
		must(t, err)
		r := checkTest(t, dir, CheckOptions{Data: true}, 0)
		if r.Notes != 4 || r.Blocks != 11 || r.Clean {
			t.Errorf("got %s", r)
		}
		checkTest(t, dir, CheckOptions{Repair: true}, 0)
		if r := checkTest(t, dir, CheckOptions{Data: true}, 0); len(r.Findings) != 0 || r.Blocks != 11 {
			t.Errorf("got %s", r)
		}
		got, rec := reopened(t, dir)
		if later := got["model/02/block"] != want["model/02/block"]; later != (seq == 1000) || rec.Blocks != 11 {
			t.Errorf("seq %d: got %q, %+v", seq, got["model/02/block"], rec)
		}
	}
}

// TestCheckLargeBlocks: blocks of several pieces, and neighbours that share one.
func TestCheckLargeBlocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	d := openTest(t, dir)
	f, s := plantSlab(t, d, 1, 9<<20, 3)
	plantBlock(t, f, s, 0, "large/0", 1, 9<<20)
	plantBlock(t, f, s, 1, "large/1", 2, 8<<20+1)
	plantBlock(t, f, s, 2, "small", 3, 5)
	f2, s2 := plantSlab(t, d, 2, 1<<20, 10)
	for slot := range uint32(10) {
		plantBlock(t, f2, s2, slot, fmt.Sprintf("m/%d", slot), 9, 1<<20-int(slot)*5000)
	}
	saveTest(t, d)
	must(t, d.Close())
	if r := checkTest(t, dir, CheckOptions{Data: true}, 0); r.Blocks != 13 || r.DataBytes != r.BlockBytes {
		t.Errorf("got %+v", r)
	}
	for _, off := range []int64{s.DataOff(0) + 9<<20 - 1, s.DataOff(1), s.DataOff(1) + 5<<20, s.DataOff(1) + 8<<20} {
		flip := func(b []byte) { b[0] ^= 1 }
		patch(t, f.Name(), off, flip, 1)
		if r := checkTest(t, dir, CheckOptions{Data: true}, 4); r.Blocks != 12 || r.Errors != 1 || !strings.HasPrefix(r.Findings[0].Key, "large/") {
			t.Errorf("byte %d: got %s", off, r)
		}
		patch(t, f.Name(), off, flip, 1)
	}
	patch(t, f2.Name(), s2.DataOff(7)+9, func(b []byte) { b[0]++ }, 1)
	if r := checkTest(t, dir, CheckOptions{Data: true, Repair: true}, 1); r.Blocks != 12 || r.Findings[0].Key != "m/7" {
		t.Errorf("got %s", r)
	}
	checkTest(t, dir, CheckOptions{Data: true}, 0)
}

// TestCheckFlips: whatever bit is flipped in whatever file, Repair leaves a directory
// that is clean, with no block that was not there, and at most those of a slab gone.
func TestCheckFlips(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 25 {
		dir, want := plantClosed(t)
		name := []string{format.SuperName, format.IndexName, format.SlabName(1), format.SlabName(2), format.SlabName(30)}[rng.IntN(5)]
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		off, bit := rng.Int64N(info.Size()), byte(1)<<rng.IntN(8)
		patch(t, filepath.Join(dir, name), off, func(b []byte) { b[0] ^= bit }, 1)
		r, err := Check(context.Background(), dir, CheckOptions{Data: true, Repair: true})
		if err != nil {
			t.Fatalf("%s, byte %d: %v", name, off, err)
		}
		if r.ExitCode() > 1 {
			t.Errorf("%s, byte %d: got %s", name, off, r)
		}
		checkTest(t, dir, CheckOptions{Data: true}, 0)
		got, _ := reopened(t, dir)
		for key := range got {
			if got[key] != want[key] {
				t.Errorf("%s, byte %d: %s: got %q, want %q", name, off, key, got[key], want[key])
			}
		}
		most := map[string]int{format.SuperName: 0, format.IndexName: 0, format.SlabName(1): 1, format.SlabName(2): 0, format.SlabName(30): 1}[name]
		if off < format.PageBytes && name != format.SuperName && name != format.IndexName {
			most = 7
		}
		if lost := len(want) - len(got); lost > most {
			t.Errorf("%s, byte %d: %d blocks lost, at most %d may be", name, off, lost, most)
		}
	}
}

// TestCheckRefuses: what is no directory of the tier is not touched.
func TestCheckRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "absent")} {
		for _, repair := range []bool{false, true} {
			_, err := Check(context.Background(), path, CheckOptions{Repair: repair})
			var why *DirError
			if !errors.As(err, &why) {
				t.Errorf("%s: got %v", path, err)
			}
		}
	}
	if len(files(t, dir)) != 0 {
		t.Error("something was made")
	}
	closed, _ := plantClosed(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Check(ctx, closed, CheckOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestCheckStale: what is left of other epochs in free slots is no damage: a slab that
// changed its class has data where its table is now, which may even be slot headers.
func TestCheckStale(t *testing.T) {
	dir, _ := plantClosed(t)
	path := filepath.Join(dir, format.SlabName(2))
	patch(t, path, 4096+100, noise, 8)
	patch(t, path, 2*4096, func(b []byte) {
		h := format.SlotHeader{Slot: 3, Size: 65000, Key: []byte("group/ab\xff"), Attrs: driver.Attrs{Seq: 5}}
		must(t, h.Encode(b))
		binary.LittleEndian.PutUint32(b[8:], 7)
		format.SealPage(b)
	}, 4096)
	if r := checkTest(t, dir, CheckOptions{Data: true, Repair: true}, 0); r.Notes != 1 || r.Blocks != 11 {
		t.Errorf("got %s", r)
	}
}

// TestCheckHoles: space that was promised and is not there is worth a note.
func TestCheckHoles(t *testing.T) {
	dir, _ := plantClosed(t)
	path := filepath.Join(dir, format.SlabName(2))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4*4096, 2*4096); err != nil {
		t.Skipf("no holes here: %v", err)
	}
	r := checkTest(t, dir, CheckOptions{}, 0)
	if r.Notes != 1 || !strings.Contains(r.Findings[0].What, "holes of 8192 bytes") {
		t.Errorf("got %s", r)
	}
}

// TestReport: findings are bounded and counted, the text is for people, the JSON has
// what the text has.
func TestReport(t *testing.T) {
	r := &Report{Dir: "/d", Blocks: 3, BlockBytes: 12}
	for i := range maxFindings + 5 {
		r.add(Finding{Severity: SeverityError, Path: "/d/f", Offset: int64(i), Key: "a b", What: "bad", Repaired: i == 1})
	}
	r.add(Finding{Severity: SeverityNote, Path: "/d/f", What: "well"})
	if len(r.Findings) != maxFindings || r.Omitted != 6 || r.Errors != maxFindings+5 || r.Repaired != 1 || r.Notes != 1 || r.ExitCode() != 4 {
		t.Errorf("got %d kept, %d omitted, %d errors", len(r.Findings), r.Omitted, r.Errors)
	}
	text := r.String()
	for _, want := range []string{
		"error: /d/f block \"a b\": bad\n", "error: /d/f at 1 block \"a b\": bad (repaired)\n", "... and 6 more\n",
		"/d: 3 blocks of 12 bytes in 0 slabs, data not read; 1005 errors, 1 repaired\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	b, err := json.Marshal(r)
	must(t, err)
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || back.Errors != r.Errors || back.Findings[1] != r.Findings[1] {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(string(b), `"severity":"error","path":"/d/f","offset":1,"key":"a b","what":"bad","repaired":true`) {
		t.Errorf("got %.300s", b)
	}
	for _, tc := range []struct{ errors, repaired, want int64 }{{0, 0, 0}, {2, 2, 1}, {2, 1, 4}} {
		if got := (&Report{Errors: tc.errors, Repaired: tc.repaired}).ExitCode(); int64(got) != tc.want {
			t.Errorf("%+v: got %d", tc, got)
		}
	}
}

// TestCheckUnreadable: what the system refuses to read is an error that Repair leaves.
func TestCheckUnreadable(t *testing.T) {
	dir, want := plantClosed(t)
	path := filepath.Join(dir, format.SlabName(1))
	remove(t, path)
	must(t, os.Mkdir(path, 0o700)) // fails to be opened, not with ENOENT
	r := checkTest(t, dir, CheckOptions{Repair: true}, 4)
	if _, err := os.Stat(path); err != nil || r.Repaired == r.Errors {
		t.Errorf("got %v, %s", err, r)
	}
	maps.DeleteFunc(want, func(key, _ string) bool { return strings.HasPrefix(key, "model/") })
	got, rec := reopened(t, dir)
	wantSame(t, got, want)
	if len(rec.SetAside) != 1 || errors.Is(rec.SetAside[0].Err, block.ErrCorrupt) {
		t.Errorf("got %+v", rec)
	}
}
