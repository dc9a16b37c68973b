package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// ownerArgs returns the arguments of kvfs serve. It overrides the mode of the environment,
// which is meant for the mount.
func (r *runner) ownerArgs() []string {
	return []string{"serve", "--ready-fd", "3", "--config", r.flags.ownerConfig, "--mode", config.ModeEmbedded, "--store-socket", r.cfg.Store.Socket}
}

// prepareOwner checks the configuration of the owner before anything is started.
func (r *runner) prepareOwner(cmd *cobra.Command) error {
	if r.flags.ownerConfig == "" {
		return nil
	}
	if r.cfg.Mode != config.ModeStandaloneStore {
		return usageError(cmd, "--owner-config is for --mode %s: another mount has no owner", config.ModeStandaloneStore)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	if err := flags.Parse(r.ownerArgs()[3:]); err != nil {
		return err
	}
	cfg, err := load(config.Sources{Environ: r.environ, Flags: flags})
	if err != nil {
		return exit.With(exit.Config, fmt.Errorf("--owner-config: %w", err))
	}
	r.ownerDrain = time.Duration(cfg.DrainTimeout)
	return nil
}

// openOwner starts the owner of the mount if none serves, and waits until mounts can attach. It
// returns nil if another owner serves.
func (r *runner) openOwner(ctx context.Context) (*child, error) {
	if r.flags.ownerConfig == "" || r.attached || r.served(ctx) {
		return nil, nil
	}
	owner, err := startChild(ctx, r.ownerArgs(), r.cfg.Store.Socket, r.flags.readyTimeout)
	if err == nil {
		return owner, nil
	}
	if owner != nil {
		owner.stop(stopGrace, nil, r.log)
	}
	if ctx.Err() == nil && r.served(ctx) { // another run was faster
		return nil, nil
	}
	return nil, err
}

// served reports whether an owner exists. One that refuses counts: the mount reports its reason.
func (r *runner) served(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.flags.readyTimeout)
	defer cancel()
	conn, err := handoff.Dial(ctx, r.cfg.Store.Socket)
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, handoff.ErrNoOwner)
}

// segment returns the node that owns the memory of the mount at dir, for the command to prefer.
// It is empty without peers, and before there is a mount.
func segment(dir string) string {
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	var members []cluster.Member
	text, err := client.Read(dir, "members", mounts.Timeout)
	if err != nil || json.Unmarshal(text, &members) != nil || len(members) == 0 || !members[0].Self {
		return ""
	}
	return members[0].Name
}
