// Package complete has the values that a shell offers for flags and arguments of commands. MountArg, FlagOf, Flag and
// Settings complete a command. The functions for FlagOf return what a mount tells of itself, and nothing where it does
// not answer.
package complete

import (
	"context"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/control"
)

// mountOf returns the mount that a command line is about: that of the first name which is in one, else the only mount of
// this machine; empty if there is none.
func mountOf(c *client.Controls, names ...string) string {
	for _, name := range names {
		if mount, _, err := c.Locate([]string{name}); name != "" && err == nil {
			return mount
		}
	}
	mount, err := c.Only()
	if err != nil {
		return ""
	}
	return mount
}

// Mounts returns the mounts of this machine.
func Mounts(c *client.Controls, _ string) []string { return c.Points() }

// Groups returns the groups of a mount, but for names that no shell shows as they are.
func Groups(_ *client.Controls, mount string) (names []string) {
	for _, g := range document(mount).Groups {
		if g.Name != "" && !strings.Contains(g.Name, `\`) { // it is escaped
			names = append(names, g.Name)
		}
	}
	return names
}

// Tiers returns the tiers of this node that a mount has.
func Tiers(_ *client.Controls, mount string) (names []string) {
	for _, t := range document(mount).Tiers {
		if t.Type != config.TierPeer {
			names = append(names, t.Name)
		}
	}
	return names
}

// Quotas returns a function for the names of the quotas of a kind.
func Quotas(kind string) func(*client.Controls, string) []string {
	return func(c *client.Controls, mount string) (names []string) {
		all, err := blocks.Quotas(context.Background(), c, mount, control.QuotaRequest{})
		if err != nil {
			return nil
		}
		for _, q := range all {
			if q.Kind == kind && q.Name != "" && !strings.ContainsAny(q.Name, "\t\n") {
				names = append(names, q.Name)
			}
		}
		return names
	}
}

// document returns the status of a mount. It is empty if the mount does not answer.
func document(mount string) *status.Document {
	text, err := client.Status(mount, mounts.Timeout)
	if err != nil {
		return &status.Document{}
	}
	doc, err := status.Parse(text)
	if err != nil {
		return &status.Document{}
	}
	return doc
}
