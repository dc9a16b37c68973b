package control

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/memory"
)

// QuotaRequest is what is written to .kvfs/quota, as JSON. One without Do lists the quotas.
type QuotaRequest struct {
	Do     string `json:"do,omitempty"`   // "set" or "clear"
	Kind   string `json:"kind,omitempty"` // "group", "user" or "cgroup"
	Name   string `json:"name,omitempty"` // of the group; the number of the user; the path of the control group
	Bytes  int64  `json:"bytes,omitempty"`
	Pinned bool   `json:"pinned,omitempty"` // the quota is of what users pin; else of memory
}

// QuotaAnswer is the JSON that is read back: all who have a quota. The answer to a failed request is {"error": "why"}.
type QuotaAnswer struct {
	Quotas []Quota `json:"quotas"`
}

// Quota is what a group, a user or a control group may have, and has.
type Quota struct {
	Kind          string `json:"kind" help:"'group', 'user' or 'cgroup'"`
	Name          string `json:"name" help:"name of the group, number of the user, or path of the cgroup"`
	Bytes         int64  `json:"quota_bytes" help:"most bytes in memory; 0: no quota"`
	UsedBytes     int64  `json:"used_bytes" help:"bytes in memory that count"`
	PinQuotaBytes int64  `json:"pin_quota_bytes" help:"most bytes that users may pin; 0: no [pin quota](quotas.md#pin-quotas)"`
	PinnedBytes   int64  `json:"pinned_bytes" help:"bytes that users have pinned, in memory or in lower tiers"`
	Origin        string `json:"origin" help:"of 'quota_bytes': 'configuration', or 'command'"`
}

// Quotas returns the quotas of an engine in the form of answers.
func Quotas(accounts memory.Accounts) []Quota {
	list := []Quota{}
	for _, q := range accounts.Quotas() {
		origin := "command"
		if q.Configured {
			origin = "configuration"
		}
		list = append(list, Quota{string(q.Kind), q.Name, q.Bytes, q.UsedBytes, q.PinQuotaBytes, q.PinnedBytes, origin})
	}
	return list
}

// QuotaFile returns the file .kvfs/quota. The users and the members of the groups may read the quotas. Only root and the
// user of the daemon may change them: else a user could raise its own. Changes are logged.
func QuotaFile(accounts memory.Accounts, users, groups []uint32, log *zap.Logger) File {
	return File{Name: "quota", Users: users, Groups: groups, Open: func(as *event.Viewer) Dialogue {
		return requestJSON(func(ctx context.Context, q QuotaRequest) (QuotaAnswer, error) {
			if q != (QuotaRequest{}) {
				if as != nil {
					return QuotaAnswer{}, fmt.Errorf("quota: only root and the user of the daemon may change quotas")
				}
				if err := change(ctx, accounts, q); err != nil {
					return QuotaAnswer{}, err
				}
				Audit(ctx, log, "quota", zap.String("do", q.Do), zap.String("kind", q.Kind), zap.String("name", q.Name), zap.Int64("bytes", q.Bytes), zap.Bool("pinned", q.Pinned))
			}
			return QuotaAnswer{Quotas(accounts)}, nil
		})
	}}
}

// change sets a quota, or takes it away.
func change(ctx context.Context, accounts memory.Accounts, q QuotaRequest) error {
	switch {
	case q.Do == "set" && q.Bytes <= 0:
		return strict.Faulty("/bytes", "%d, want at least 1", q.Bytes)
	case q.Do == "clear" && q.Bytes != 0:
		return strict.Faulty("/bytes", "%d, want none", q.Bytes)
	case q.Do != "set" && q.Do != "clear":
		return strict.Faulty("/do", "%q, want set or clear", block.Shorten(q.Do, block.Shown))
	}
	err := accounts.SetQuota(ctx, memory.Quota{Kind: memory.QuotaKind(q.Kind), Name: q.Name, Bytes: q.Bytes, Pinned: q.Pinned})
	if err != nil {
		return fmt.Errorf("quota: %w", err)
	}
	return nil
}
