package blocks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// Flush makes the blocks of names durable, blocks and directories of one mount. It prints nothing, or with raw as JSON
// how many names are done; it ends at the first that fails.
func Flush(s Streams, c *client.Controls, names []string, raw bool) error {
	mount, paths, err := c.Locate(names)
	if err != nil {
		return err
	}
	if err := keeps(mount); err != nil {
		return fmt.Errorf("flush %s: %w", names[0], err)
	}
	for i, path := range paths {
		f, err := os.Open(filepath.Join(mount, path))
		if err == nil {
			err = f.Sync()
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("flush %s: %w", names[i], show.Reason(err))
		}
	}
	if !raw {
		return nil
	}
	return show.JSON(s.Out, struct {
		Mount   string `json:"mount"`
		Flushed int    `json:"flushed"` // names
	}{mount, len(paths)})
}

// keeps fails if the mount has no tier to which fsync copies blocks. An older daemon does not say so of its tiers.
func keeps(mount string) error {
	text, err := client.Status(mount, mounts.Timeout)
	if err != nil {
		return err
	}
	var now struct {
		Secondaries []struct {
			Durable *bool `json:"durable"`
		} `json:"secondaries"`
	}
	if err := json.Unmarshal(text, &now); err != nil {
		return fmt.Errorf("the status is unreadable: %w", err)
	}
	for _, s := range now.Secondaries {
		if s.Durable == nil || *s.Durable {
			return nil
		}
	}
	return errors.New("no tier keeps blocks when memory is lost: nothing was flushed. An SSD tier does (disk.dirs)")
}

// Drain waits until the copies to lower tiers that are under way at the mount at dir are done, at most for timeout
// unless that is 0. It prints nothing, or with raw as JSON how long it took.
func Drain(ctx context.Context, s Streams, c *client.Controls, dir string, timeout time.Duration, raw bool) error {
	mount, err := c.Root(dir)
	if err != nil {
		return err
	}
	d, err := c.Dial(mount, "drain")
	if err != nil {
		return err
	}
	defer d.Close()
	if timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = limited
	}
	start := time.Now()
	stop := followCopies(ctx, s.Err, mount)
	err = d.AskInto(ctx, struct{}{}, &struct{}{})
	stop()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not done after %v", timeout)
	}
	if err != nil {
		return fmt.Errorf("drain %s: %w", dir, err)
	}
	if !raw {
		return nil
	}
	return show.JSON(s.Out, struct {
		Mount   string  `json:"mount"`
		Seconds float64 `json:"seconds"`
	}{mount, time.Since(start).Seconds()})
}
