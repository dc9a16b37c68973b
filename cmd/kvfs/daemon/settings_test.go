package daemon

import (
	"encoding/json"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers"
)

// TestSettings shows that quotas reach the next process, and that one that knows no quotas of pins does not take them for
// quotas of memory.
func TestSettings(t *testing.T) {
	memory := tiers.Quota{Kind: tiers.QuotaUser, Name: "1", Bytes: 2}
	pins := tiers.Quota{Kind: tiers.QuotaUser, Name: "1", Bytes: 1, Pinned: true}
	text := encodeSettings([]tiers.Quota{pins, memory}, zap.NewNop())
	if got, err := decodeSettings(text); err != nil || !slices.Equal(got, []tiers.Quota{memory, pins}) {
		t.Errorf("%s: %+v, %v", text, got, err)
	}
	var earlier struct{ Quotas []tiers.Quota }
	if err := json.Unmarshal(text, &earlier); err != nil || !slices.Equal(earlier.Quotas, []tiers.Quota{memory}) {
		t.Errorf("%s: an earlier version has %+v, %v", text, earlier.Quotas, err)
	}
}
