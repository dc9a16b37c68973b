package daemon

import (
	"context"
	"encoding/json"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers"
)

// settings are what commands have set in a daemon, as it tells the next one.
type settings struct {
	Quotas []tiers.Quota `json:"quotas,omitempty"`
	Pins   []tiers.Quota `json:"pin_quotas,omitempty"` // those with Pinned; earlier versions do not know them
}

// maxSettings bounds them, in bytes: they travel in a frame of 64 KiB.
const maxSettings = 32 << 10

// encodeSettings returns nothing for settings that are too long.
func encodeSettings(quotas []tiers.Quota, log *zap.Logger) []byte {
	var s settings
	for _, q := range quotas {
		if q.Pinned {
			s.Pins = append(s.Pins, q)
		} else {
			s.Quotas = append(s.Quotas, q)
		}
	}
	text, err := json.Marshal(s)
	if err != nil || len(text) > maxSettings {
		log.Warn("the next process does not get the quotas that were set", zap.Int("bytes", len(text)), zap.Error(err))
		return nil
	}
	return text
}

// decodeSettings reads what another daemon, perhaps of another version, has sent. It may have sent nothing.
func decodeSettings(text []byte) ([]tiers.Quota, error) {
	var s settings
	if len(text) == 0 {
		return nil, nil
	}
	err := json.Unmarshal(text, &s)
	for _, q := range s.Pins {
		q.Pinned = true
		s.Quotas = append(s.Quotas, q)
	}
	return s.Quotas, err
}

// quotasSet returns the quotas that are not of the configuration.
func (d *daemon) quotasSet() (list []tiers.Quota) {
	for _, q := range d.engine.Accounts().Quotas() {
		if q.Bytes > 0 && !q.Configured {
			list = append(list, q.Quota)
		}
		if q.PinQuotaBytes > 0 {
			list = append(list, tiers.Quota{Kind: q.Kind, Name: q.Name, Bytes: q.PinQuotaBytes, Pinned: true})
		}
	}
	return list
}

// restoreQuotas sets quotas again.
func (d *daemon) restoreQuotas(ctx context.Context, list []tiers.Quota) {
	for _, q := range list {
		if err := d.engine.Accounts().SetQuota(ctx, q); err != nil { // memory may be smaller now
			d.log.Warn("a quota that was set does not hold any more", zap.Error(err))
		}
	}
}
