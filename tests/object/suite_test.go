package object

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/object"
	"github.com/kvfs/kvfs/tests/s3test"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// TestConformance runs the suite of all tiers over a real S3 server, each case with a prefix of its own (A35, G6). Blocks
// with a time to live are not found after a restart, so TestRestart takes the place of its cases about that.
func TestConformance(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	cases := 0
	open := func(t *testing.T, edit func(*object.Options)) driver.Tier {
		cases++
		o := &object.Options{
			URL: fmt.Sprintf("s3://%s/case%d", s3test.Bucket, cases), Endpoint: s.URL, Region: "us-east-1",
			Credentials: "file", File: s.Credentials, PathStyle: true, Deadline: 20e9,
		}
		if edit != nil {
			edit(o)
		}
		tier, err := o.Open(context.Background(), "object", zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		return tier
	}
	suite.Run(t, func(t *testing.T) driver.Tier { return open(t, nil) }, suite.Options{
		MaxKeyBytes: block.MaxPath, CommitTimes: true,
		Budgeted: func(t *testing.T) driver.Tier {
			return open(t, func(o *object.Options) { o.Budget = 10 * 4096 })
		},
	})
}
