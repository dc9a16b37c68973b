package mount

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// nonresidentOp does something to a block that only the disk holds. want are the bytes
// that p has then; nil means that it is gone.
type nonresidentOp struct {
	name  string
	promo bool // the operation may need the bytes
	do    func(t *testing.T, p string) (now string, want []byte)
}

const nonresidentSize = 300_001

var nonresidentOps = []nonresidentOp{
	{"unlink", false, func(t *testing.T, p string) (string, []byte) {
		unlink(t, p)
		return p, nil
	}},
	{"rename", false, func(t *testing.T, p string) (string, []byte) {
		rename(t, p, p+".moved")
		wantAbsent(t, harness.Self(), p)
		return p + ".moved", pattern(p, nonresidentSize)
	}},
	{"truncate to less", true, func(t *testing.T, p string) (string, []byte) {
		must(t, "truncate", again(func() error { return unix.Truncate(p, 100_000) }))
		return p, pattern(p, nonresidentSize)[:100_000]
	}},
	{"append", true, func(t *testing.T, p string) (string, []byte) {
		f := open(t, p, unix.O_WRONLY|unix.O_APPEND, 0)
		f.write([]byte("appended"))
		f.close()
		return p, append(pattern(p, nonresidentSize), "appended"...)
	}},
	{"chmod", false, func(t *testing.T, p string) (string, []byte) {
		must(t, "chmod", unix.Chmod(p, 0o600))
		return p, pattern(p, nonresidentSize)
	}},
	{"pin", false, func(t *testing.T, p string) (string, []byte) {
		must(t, "setxattr", unix.Setxattr(p, "user.kvfs.pinned", []byte("1"), 0))
		return p, pattern(p, nonresidentSize)
	}},
}

// TestDiskNonresident does every operation to a block that only the disk holds, and
// shows its effect at once, after it has been evicted from memory again, and after
// a clean restart, with the attributes (A13, A14; "rename, unlink, overwrite" of
// a cascaded block).
func TestDiskNonresident(t *testing.T) {
	d := diskMount(t, harness.Options{Flags: []string{"--mount-attr-timeout", "0s"}})
	blocks := make(map[string][]byte)
	at := make([]string, len(nonresidentOps))
	for i := range nonresidentOps {
		at[i] = d.Path(fmt.Sprintf("dir%d", i), "block")
		blocks[at[i]] = pattern(at[i], nonresidentSize)
	}
	cold(t, d, blocks)
	left := make(map[string][]byte)
	var gone []string
	for i, op := range nonresidentOps {
		t.Run(op.name, func(t *testing.T) {
			before := diskStatus(t, d).Promoted
			p, want := op.do(t, at[i])
			if n := diskStatus(t, d).Promoted - before; n > 0 && !op.promo {
				t.Errorf("promoted %d blocks: the bytes are not needed for it", n)
			}
			if want == nil {
				gone = append(gone, p)
				wantAbsent(t, harness.Self(), p)
				return
			}
			left[p] = want
			wantSize(t, p, int64(len(want)))
		})
	}
	stats := make(map[string]unix.Stat_t)
	pins := make(map[string]string)
	for p := range left {
		stats[p], pins[p] = stat(t, p), getxattr(t, p, "user.kvfs.pinned")
	}
	check := func(when string) {
		t.Helper()
		for p, want := range stats {
			st := stat(t, p)
			if st.Size != want.Size || st.Mode != want.Mode || st.Mtim != want.Mtim {
				t.Errorf("%s: %s: size %d, mode %#o, mtime %v; want %d, %#o, %v",
					when, p, st.Size, st.Mode, st.Mtim, want.Size, want.Mode, want.Mtim)
			}
			if got := getxattr(t, p, "user.kvfs.pinned"); got != pins[p] {
				t.Errorf("%s: %s: pinned %q, want %q", when, p, got, pins[p])
			}
		}
		wantBlocks(t, left)
		for _, p := range gone {
			wantAbsent(t, harness.Self(), p)
		}
		wantTree(t, d, paths(left))
	}
	check("at once")
	waitOnDisk(t, paths(left)...)
	evictMemory(t, d)
	check("evicted again")
	waitDrained(t, d)
	d.Restart()
	check("after a restart")
}

// wantTree fails unless these are all files below the mount.
func wantTree(t testing.TB, d *harness.Daemon, want []string) {
	t.Helper()
	var files []string
	must(t, "walk", filepath.WalkDir(d.Dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files = append(files, p)
		}
		return err
	}))
	slices.Sort(files)
	if !slices.Equal(files, want) {
		t.Errorf("files: got %q\nwant %q", files, want)
	}
}

// TestDiskOpenWhileEvicted shows that handles and mappings keep their bytes when
// the block is replaced, removed, or its memory copy asked to go, and that the
// eviction says so (A9, A22).
func TestDiskOpenWhileEvicted(t *testing.T) {
	d := diskMount(t, harness.Options{})
	p := coldOne(t, d, "x", 4*mib)
	f := open(t, p, unix.O_RDONLY, 0)
	m := mapFile(t, f, 4*mib, unix.PROT_READ, unix.MAP_SHARED)
	stdout, stderr, _ := harness.Kvfs(t, "evict", "--tier", "memory", p)
	if out := stdout + stderr; !strings.Contains(out, "open") {
		t.Errorf("evict of an open block: got %q, want the reason in it", out)
	}
	wantTier(t, p, "memory,disk")
	sameBytes(t, "handle", f.pread(4*mib, 0), pattern(p, 4*mib))
	store(t, p, pattern("new", mib))
	waitOnDisk(t, p)
	evictMemory(t, d)
	wantBytes(t, p, pattern("new", mib))
	unlink(t, p)
	sameBytes(t, "handle", f.pread(4*mib, 0), pattern(p, 4*mib))
	sameBytes(t, "mapping", m, pattern(p, 4*mib))
	f.close()
	wantAbsent(t, harness.Self(), p)
}

// TestDiskEngineKilled shows that the pins of an engine that is killed go with
// it (A22).
func TestDiskEngineKilled(t *testing.T) {
	d := diskMount(t, harness.Options{})
	p := coldOne(t, d, "x", mib)
	a := harness.NewActor(t, nil)
	if _, err := a.Open(p, unix.O_RDONLY, 0); err != nil {
		t.Fatal(err)
	}
	wantTier(t, p, "memory,disk")
	a.Kill()
	harness.Poll(t, "the block can be evicted", func() bool {
		harness.Kvfs(t, "evict", "--tier", "memory", p)
		return tierOf(p) == "disk"
	})
	wantBytes(t, p, pattern(p, mib))
}
