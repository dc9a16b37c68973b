package index

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestLookupEach: a batch finds what single look-ups find, in an index of any size, for names
// that are there, that are not, and that cannot be.
func TestLookupEach(t *testing.T) {
	for _, size := range []int{0, 1, 100, 20_000} {
		rng := rand.New(rand.NewPCG(uint64(size), 1))
		x := New()
		dirs := []ID{Root}
		for i := range 3 {
			d := x.Alloc()
			x.At(d).Fields().Mode = 0o040755
			x.Link(d, Root, fmt.Sprint("dir", i))
			dirs = append(dirs, d)
		}
		for i := range size {
			id := x.Alloc()
			x.Link(id, dirs[rng.IntN(len(dirs))], fmt.Sprint(i))
			if rng.IntN(4) == 0 {
				x.Unlink(id)
				x.Free(id)
			}
		}
		for _, n := range []int{0, 1, 63, 64, 65, 1000} {
			parents, names, out := make([]ID, n), make([]string, n), make([]Found, n)
			for i := range names {
				parents[i] = dirs[rng.IntN(len(dirs))]
				names[i] = fmt.Sprint(rng.IntN(size + size/4 + 1))
				switch rng.IntN(20) {
				case 0:
					names[i] = ""
				case 1:
					names[i] = strings.Repeat("x", maxName+1)
				}
				out[i] = Found{ID(rng.Uint32()), rng.Uint32()}
			}
			x.LookupEach(parents, names, out)
			found := 0
			for i := range names {
				want := x.Lookup(parents[i], names[i])
				if out[i].ID != want {
					t.Errorf("%d entries: %q in %d: got %d, want %d", size, names[i], parents[i], out[i].ID, want)
				}
				if wantHash := x.HashOf(parents[i], names[i]); out[i].Hash != wantHash {
					t.Errorf("hash of %q in %d: got %d, want %d", names[i], parents[i], out[i].Hash, wantHash)
				}
				if want != 0 {
					found++
				}
			}
			if size >= 20_000 && n == 1000 && (found < 50 || found > 950) {
				t.Errorf("%d of %d found: not much of a test", found, n)
			}
		}
	}
}
