package daemon

import (
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers/pattern"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestStoreID shows that the name of a mount's memory is readable, fits the
// memory tier, stays the same for one directory and differs between two.
func TestStoreID(t *testing.T) {
	valid := regexp.MustCompile(`^[A-Za-z0-9_]{0,32}-[0-9a-f]{12}$`)
	seen := map[string]string{}
	for _, dir := range []string{
		"/mnt/kv", "/srv/kv", "/mnt/kv2", "/mnt/k v", "/mnt/k_v", "/mnt/k\nv", "/mnt/кв", "/mnt/.kv", "/",
		"/mnt/" + strings.Repeat("x", 255), "/mnt/" + strings.Repeat("x", 254),
	} {
		id := storeID(dir)
		if !valid.MatchString(id) {
			t.Errorf("%q: id %q", dir, id)
		}
		if other, taken := seen[id]; taken {
			t.Errorf("%q and %q share the id %s", dir, other, id)
		}
		seen[id] = dir
		if storeID(dir) != id {
			t.Errorf("%q: two ids", dir)
		}
	}
	if id := storeID("/mnt/kv"); !strings.HasPrefix(id, "kv-") {
		t.Errorf("got %q, want the last component in front", id)
	}
}

// TestHeadroom shows that zero means an eighth of the size, with a floor.
func TestHeadroom(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
	}{
		{`{"memory": {"size": "1GiB"}}`, 128 << 20},
		{`{"memory": {"size": "64GiB"}}`, 8 << 30},
		{`{"memory": {"size": "1MiB"}}`, minHeadroom},
		{`{"memory": {"size": "1GiB", "headroom": "1MiB"}}`, 1 << 20},
		{`{"memory": {"size": "1MiB", "headroom": "1GiB"}}`, 1 << 30},
	} {
		cfg := loadConfig(t, c.text)
		if got := Headroom(cfg); got != c.want {
			t.Errorf("%s: got %d, want %d", c.text, got, c.want)
		}
		if o := memoryOptions(cfg, "/mnt/kv", zap.NewNop()); o.HeadroomBytes != c.want {
			t.Errorf("%s: the memory tier gets %d, want %d", c.text, o.HeadroomBytes, c.want)
		}
		if o := engineOptions(cfg, nil, &fs.Hooks{}, zap.NewNop()); o.HeadroomBytes != c.want {
			t.Errorf("%s: the engine gets %d, want %d", c.text, o.HeadroomBytes, c.want)
		}
	}
}

// TestEngineOptions shows what becomes of the settings, above all of those where
// zero means none or never here and the default in the library (A45).
func TestEngineOptions(t *testing.T) {
	options := func(text string) state.Options {
		return engineOptions(loadConfig(t, text), nil, &fs.Hooks{}, zap.NewNop())
	}
	o := options(`{"memory": {"size": "1GiB", "policy": "arc", "high_watermark": 0.5, "low_watermark": 0.25},
		"groups": {"pool": {"pinned": true, "quota": "16MiB", "block_size": "2MiB"}, "plain": {}}}`)
	if o.CapacityBytes != 1<<30 || o.Policy != "arc" || o.HighWatermark != 0.5 || o.LowWatermark != 0.25 {
		t.Errorf("memory: got %+v", o)
	}
	if got, want := o.Groups["pool"], (state.GroupOptions{Pinned: true, QuotaBytes: 16 << 20, BlockBytes: 2 << 20}); got != want {
		t.Errorf("group pool: got %+v, want %+v", got, want)
	}
	if got, ok := o.Groups["plain"]; !ok || got != (state.GroupOptions{}) || len(o.Groups) != 2 {
		t.Errorf("groups: got %+v", o.Groups)
	}
	if o.WriteTimeout != 5*time.Second || o.TempExpiry != time.Hour || !slices.Equal(o.TempPatterns, pattern.Temp) ||
		!slices.Equal(o.PlainPatterns, pattern.Plain) {
		t.Errorf("defaults: wait %v, expiry %v, patterns %q and %q", o.WriteTimeout, o.TempExpiry, o.TempPatterns, o.PlainPatterns)
	}
	if o.LookupLease != 90*time.Second {
		t.Errorf("lease: got %v, want lookup_lease and entry_timeout together, 90s", o.LookupLease)
	}
	if o.Alive == nil || o.Invalidate == nil || o.Dropped == nil || o.Logger == nil {
		t.Error("a callback is missing")
	}

	o = options(`{"mount": {"write_timeout": "0s", "lookup_lease": "0s", "temp_expiry": "0s", "temp_patterns": [], "plain_patterns": []}}`)
	if o.WriteTimeout <= 0 || o.WriteTimeout > time.Millisecond {
		t.Errorf("write_timeout 0: got %v, want hardly any", o.WriteTimeout)
	}
	if o.LookupLease >= 0 {
		t.Errorf("lookup_lease 0: got %v, want none, which is negative", o.LookupLease)
	}
	if o.TempExpiry != math.MaxInt64 {
		t.Errorf("temp_expiry 0: got %v, want never", o.TempExpiry)
	}
	if o.TempPatterns == nil || len(o.TempPatterns) != 0 {
		t.Errorf("temp_patterns []: got %#v, want an empty list", o.TempPatterns)
	}
	if o.PlainPatterns == nil || len(o.PlainPatterns) != 0 {
		t.Errorf("plain_patterns []: got %#v, want an empty list", o.PlainPatterns)
	}
	if o = options(`{"mount": {"entry_timeout": "0s"}}`); o.LookupLease != 30*time.Second {
		t.Errorf("entry_timeout 0: lease is %v, want 30s", o.LookupLease)
	}
}

// TestServerOptions shows what the mount gets.
func TestServerOptions(t *testing.T) {
	options := func(text string) fs.Options {
		return serverOptions(loadConfig(t, text), &daemon{dir: "/mnt/kv"}, zap.NewNop())
	}
	o := options(`{}`)
	want := fs.Options{Dir: "/mnt/kv", FSName: "kvfs", EntryTimeout: time.Minute, AttrTimeout: time.Minute, MaxWrite: 1 << 20, Passthrough: fs.Auto}
	if o.Dir != want.Dir || o.FSName != want.FSName || o.EntryTimeout != want.EntryTimeout || o.AttrTimeout != want.AttrTimeout ||
		o.MaxWrite != want.MaxWrite || o.Passthrough != want.Passthrough || o.Status == nil || o.Logger == nil {
		t.Errorf("defaults: got %+v, want %+v", o, want)
	}
	if root := os.Geteuid() == 0; o.AllowOther != root {
		t.Errorf("allow_other auto: got %v as uid %d", o.AllowOther, os.Geteuid())
	}
	o = options(`{"mount": {"allow_other": "on", "fs_name": "cache", "entry_timeout": "0s", "attr_timeout": "1s", "max_write": "128KiB"}, "memory": {"passthrough": "off"}}`)
	if !o.AllowOther || o.FSName != "cache" || o.EntryTimeout != 0 || o.AttrTimeout != time.Second || o.MaxWrite != 128<<10 || o.Passthrough != fs.Off {
		t.Errorf("set: got %+v", o)
	}
	if options(`{"mount": {"allow_other": "off"}}`).AllowOther {
		t.Error("allow_other off lets others in")
	}
}

// TestMemoryOptions shows what the memory tier gets.
func TestMemoryOptions(t *testing.T) {
	o := memoryOptions(loadConfig(t, `{"memory": {"size": "1GiB", "dir": "/dev/shm/x", "huge": "never"}}`), "/mnt/kv", zap.NewNop())
	if o.ID != "m"+storeID("/mnt/kv") || o.Label != "/mnt/kv" || o.Dir != "/dev/shm/x" || o.SizeBytes != 1<<30 || o.Huge != "never" || o.Logger == nil {
		t.Errorf("got %+v", o)
	}
}
