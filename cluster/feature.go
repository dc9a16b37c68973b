package cluster

import (
	"fmt"
	"slices"
)

// Feature is one bit of what a node can do, as its meta tells.
type Feature uint64

// The features of this version.
const (
	FeatureGet    Feature = 1 << iota // named blocks on the bulk channel; without: lease and read
	FeatureStore                      // takes copies
	FeatureBury                       // honours removals
	FeatureList                       // lists directories
	FeatureResume                     // resumes a feed; without: always a snapshot
	FeatureMemory                     // tells in its feed what is in memory
	FeatureRDMA                       // its memory can be read one-sided; see Describe

	allFeatures = 1<<iota - 1
)

// noCopies is told by a node that has FeatureStore and takes no copies, because that is
// how it is set up. It is no feature: nobody is to be warned of it, or refused for it.
const noCopies Feature = 1 << 32

// featureNames has the name of each bit.
var featureNames = []string{"get", "store", "bury", "list", "resume", "memory", "rdma"}

// FeatureNames returns the names as in Options.Require and Member.Features. Bits that
// this version does not know have none.
func FeatureNames(f Feature) []string {
	names := []string{}
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// parseFeatures is the inverse of FeatureNames.
func parseFeatures(names []string) (Feature, error) {
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
