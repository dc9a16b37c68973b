package meta

import (
	"fmt"
	"testing"
)

// TestFeatureNames shows that names and bits agree.
func TestFeatureNames(t *testing.T) {
	f, err := ParseFeatures(FeatureNames(AllFeatures))
	if err != nil || f != AllFeatures || len(FeatureNames(AllFeatures)) != 9 {
		t.Errorf("%v %v", f, err)
	}
	if s := fmt.Sprint(FeatureNames(FeatureStore | FeatureResume | 1<<40)); s != "[store resume]" {
		t.Error(s)
	}
}
