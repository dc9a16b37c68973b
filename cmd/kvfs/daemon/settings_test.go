package daemon

import (
	"encoding/json"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/memory"
)

// TestSettings shows that quotas reach the next process, and that one that knows no quotas of pins does not take them for
// quotas of memory.
func TestSettings(t *testing.T) {
	used := memory.Quota{Kind: memory.QuotaUser, Name: "1", Bytes: 2}
	pins := memory.Quota{Kind: memory.QuotaUser, Name: "1", Bytes: 1, Pinned: true}
	text := encodeSettings([]memory.Quota{pins, used}, zap.NewNop())
	if got, err := decodeSettings(text); err != nil || !slices.Equal(got, []memory.Quota{used, pins}) {
		t.Errorf("%s: %+v, %v", text, got, err)
	}
	var earlier struct{ Quotas []memory.Quota }
	if err := json.Unmarshal(text, &earlier); err != nil || !slices.Equal(earlier.Quotas, []memory.Quota{used}) {
		t.Errorf("%s: an earlier version has %+v, %v", text, earlier.Quotas, err)
	}
}
