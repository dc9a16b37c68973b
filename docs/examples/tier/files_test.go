package tier

import (
	"context"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// TestConformance runs the suite of all tiers over this one (A35).
func TestConformance(t *testing.T) {
	suite.Run(t, func(t *testing.T) driver.Tier {
		o := Options{Root: t.TempDir()}
		tier, err := o.Open(context.Background(), "files", zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		return tier
	}, suite.Options{})
}
