package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// validateSpecs checks that each spec is one that look-ups can obey. All reasons
// against one stand in one violation. A spec with a violation in it is left out: what
// New has to say about the rest of it would mislead.
func (l *loader) validateSpecs() {
	bad := slices.Sorted(maps.Keys(l.bad))
	for n, name := range slices.Sorted(maps.Keys(l.cfg.Specs)) {
		at := joinName("specs", name)
		if n == hybrid.MaxSpecs {
			l.fail(l.cfg.Origin(at), "specs", scalar.Violate(scalar.ErrRange, "there are %d: want at most %d", len(l.cfg.Specs), hybrid.MaxSpecs))
			return
		}
		if i, _ := slices.BinarySearch(bad, at+"."); !l.good(at) || i < len(bad) && strings.HasPrefix(bad[i], at+".") {
			continue
		}
		if _, err := hybrid.New(l.cfg.Specs[name]); err != nil {
			l.fail(l.cfg.Origin(at), at, scalar.Violate(scalar.ErrInvalid, "%v", err))
		}
	}
}
