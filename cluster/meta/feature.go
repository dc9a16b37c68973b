package meta

import (
	"fmt"
	"slices"
)

// Feature is a set of things that a node can do, one bit each. A node tells its own in its
// meta.
type Feature uint64

// The features of this version.
const (
	FeatureGet    Feature = 1 << iota // serves named blocks on the bulk channel; without it: lease and read
	FeatureStore                      // takes copies
	FeatureBury                       // applies removals
	FeatureList                       // lists directories
	FeatureResume                     // resumes a feed; without it each feed begins with a snapshot
	FeatureMemory                     // tells in its feed which blocks are in memory
	FeatureRDMA                       // its memory can be read one-sided; see Describe
	FeatureDigest                     // compares digests of what it holds, and sends the parts that differ
	FeatureFind                       // tells which nodes hold what, and of its feed only the parts that are asked for

	AllFeatures = 1<<iota - 1
)

// NoCopies marks a node that has FeatureStore but takes no copies, because it is configured
// so. It is not a feature: nobody warns about it or refuses a node for it.
const NoCopies Feature = 1 << 32

// featureNames has the name of each bit.
var featureNames = []string{"get", "store", "bury", "list", "resume", "memory", "rdma", "digest", "find"}

// FeatureNames returns the names of the bits, as used in Options.Require and Member.Features.
// It leaves out bits that this version does not know.
func FeatureNames(f Feature) []string {
	names := []string{}
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// ParseFeatures is the inverse of FeatureNames.
func ParseFeatures(names []string) (Feature, error) {
	var f Feature
	for _, name := range names {
		i := slices.Index(featureNames, name)
		if i < 0 {
			return 0, fmt.Errorf("feature %q: not one of %v", name, featureNames)
		}
		f |= 1 << i
	}
	return f, nil
}
