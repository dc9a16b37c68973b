package daemon

import (
	"maps"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestMedia shows the names of the tiers in messages to routers (A39, G6).
func TestMedia(t *testing.T) {
	cfg := &config.Config{Tiers: []config.Tier{{Type: "memory", Name: "memory"}, {Type: "disk", Name: "disk"}, {Type: config.TierObject, Name: "cold"}}}
	cfg.Events.ZMQ.DiskMedium = "DISK"
	want := map[string]string{"disk": "DISK", "cold": "OBJ"}
	if got := media(cfg, []state.SecondaryOptions{{Name: "disk"}, {Name: "cold"}}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
