package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/blocks"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/complete"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/tiers/object"
)

// warmFlags are the flags of kvfs warm.
type warmFlags struct {
	from, keys string // the bucket
	size       scalar.Size
	blocks.Prefetch
}

func newWarmCommand(connect client.Connector) *cobra.Command {
	flags := warmFlags{Prefetch: blocks.Prefetch{Some: true}}
	cmd := &cobra.Command{
		Use:   "warm --from s3://BUCKET/PREFIX [flags] [DIR]",
		Short: "Fill the memory of a new node from a bucket",
		Long: "Load the blocks of a bucket into memory, most recently stored first, and wait until they are there. The bucket\n" +
			"must be a tier of the mount at DIR. While the daemon still lists it, warm waits.\n\n" +
			onlyMount + "\n\n" +
			"warm reads the index of each object, as a daemon does when it starts. Blocks that were removed since they were\n" +
			"stored count as absent. Ctrl-C cancels what has not begun.\n\n" +
			"Exit codes: 0 if the blocks are in memory; 1 if some could not be loaded, there is none, or it was\n" +
			"interrupted; 5 if DIR is not a kvfs mount.",
		Example:               "  kvfs warm --from s3://kv-cache/prod --object endpoint=https://s3.example.org:9000 --size 64GiB /mnt/kv",
		DisableFlagsInUseLine: true,

		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: complete.MountArg(connect),
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.from == "" {
				return usageError(cmd, "--from is missing: name the bucket, as in s3://BUCKET/PREFIX")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			return flags.run(ctx, cmd, connect, args)
		},
	}
	cmd.Flags().StringVar(&flags.from, "from", "", "the bucket: s3://BUCKET/PREFIX")
	cmd.Flags().StringVar(&flags.keys, "object", "", "how to reach the bucket: `endpoint=URL,...`, with the keys of --object of kvfs mount, but url")
	cmd.Flags().TextVar(&flags.size, "size", scalar.Size(0), "how many bytes to load; by default three quarters of memory.size")
	cmd.Flags().BoolVar(&flags.JSON, "json", false, "print the answer as JSON, as kvfs prefetch does")
	cmd.Flags().BoolVarP(&flags.Quiet, "quiet", "q", false, "do not show the progress")
	return cmd
}

func (f *warmFlags) run(ctx context.Context, cmd *cobra.Command, connect client.Connector, args []string) error {
	place, err := bucketAt(f.from, f.keys)
	if err != nil {
		return err
	}
	c, err := connect()
	if err != nil {
		return err
	}
	dir, err := mountArg(connect, args)
	if err != nil {
		return err
	}
	named := &client.Blocks{}
	if named.Mount, err = c.Root(dir); err != nil {
		return err
	}
	memory, err := bucketListed(ctx, named.Mount)
	if err != nil {
		return err
	}
	left := int64(f.size)
	if left == 0 {
		left = memory / 4 * 3
	}
	seen := map[string]bool{}
	err = place.Newest(ctx, func(b object.Named) bool {
		if seen[b.Path] {
			return true
		}
		if left -= b.Size; left >= 0 {
			seen[b.Path] = true
			named.Names, named.Paths = append(named.Names, filepath.Join(named.Mount, b.Path)), append(named.Paths, b.Path)
		}
		return left >= 0
	})
	if err != nil {
		return fmt.Errorf("warm: %w", err)
	}
	if len(named.Paths) == 0 {
		return fmt.Errorf("warm: %s has no blocks, or none of so few bytes", f.from)
	}
	d, err := c.Dial(named.Mount, "prefetch")
	if err != nil {
		return err
	}
	defer d.Close()
	return f.Run(ctx, streams(cmd), c, d, named)
}

// bucketListed waits until the daemon of a mount has listed its bucket, and returns the size of its memory tier in bytes.
func bucketListed(ctx context.Context, mount string) (memory int64, err error) {
	for {
		text, err := client.Status(mount, mounts.Timeout)
		if err != nil {
			return 0, err
		}
		doc, err := status.Parse(text)
		if err != nil {
			return 0, err
		}
		buckets := 0
		for _, t := range doc.Secondaries {
			detail, _ := t.Detail.(map[string]any)
			listed, ok := detail["listed"].(bool)
			if listed {
				return doc.Tiers[0].CapacityBytes, nil
			}
			if ok {
				buckets++
			}
		}
		if buckets == 0 {
			return 0, errors.New("warm: the mount has no tier on object storage; see --object of kvfs mount")
		}
		select {
		case <-ctx.Done():
			return 0, errors.New("warm: interrupted; the daemon has not yet listed the bucket")
		case <-time.After(100 * time.Millisecond):
		}
	}
}
