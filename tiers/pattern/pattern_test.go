package pattern_test

import (
	"path"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/pattern"
)

// TestSet shows which names the default patterns take for temporary and for plain, and that a pattern
// of a directory is for directories alone.
func TestSet(t *testing.T) {
	temp, plain := pattern.New(pattern.Temp), pattern.New(append([]string{"a?c"}, pattern.Plain...))
	for _, c := range []struct {
		name             string
		temp, dir, plain bool
	}{
		{"9f08.bin_3.tmp", true, false, false},
		{"9f08.tmp.1234", true, false, false},
		{".tmpXy12", true, false, false},
		{"tmp", false, true, false},
		{"9f08.bin", false, false, false},
		{"x.lock", false, false, true},
		{"abc", false, false, true},
		{"abbc", false, false, false},
	} {
		if temp.Name(c.name) != c.temp || temp.Dir(c.name) != c.dir || plain.Name(c.name) != c.plain {
			t.Errorf("%s: temporary %v, directory %v, plain %v; want %v, %v, %v", c.name,
				temp.Name(c.name), temp.Dir(c.name), plain.Name(c.name), c.temp, c.dir, c.plain)
		}
	}
}

// FuzzName shows that a Set matches as path.Match does.
func FuzzName(f *testing.F) {
	for _, seed := range []string{"*.tmp 9f.tmp", "*.tmp.* a.tmp.b", ".tmp* .tmpx", "a*b*c aXbYbc", "* x", "** x", "abc abc", "a*a a", "*ab*ab* abab", "a?c abc"} {
		p, name, _ := strings.Cut(seed, " ")
		f.Add(p, name)
	}
	f.Fuzz(func(t *testing.T, p, name string) {
		want, err := path.Match(p, name)
		if err != nil || strings.Contains(p+name, "/") {
			return
		}
		set := pattern.New([]string{p})
		if got := set.Name(name); got != want {
			t.Errorf("%q and %q: %v, want %v", p, name, got, want)
		}
	})
}
