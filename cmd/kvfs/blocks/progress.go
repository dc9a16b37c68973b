package blocks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// followEvery is the time between two looks at what a daemon has to do.
const followEvery = 250 * time.Millisecond

// copiesLeft is a part of .kvfs/jobs.
type copiesLeft struct {
	Stores []struct {
		Keys int64 `json:"keys"`
	} `json:"stores"`
	Queued map[string]int64 `json:"queued"`
}

// blocks is how many copies are left.
func (c *copiesLeft) blocks() (n int64) {
	for _, s := range c.Stores {
		n += s.Keys
	}
	for _, q := range c.Queued {
		n += q
	}
	return n
}

// followCopies shows on w, if it is a terminal, how many of the copies to lower tiers of a mount are done: of the most
// that were left at one time. stop ends that, and removes the line.
func followCopies(ctx context.Context, w io.Writer, mount string) (stop func()) {
	if !show.IsTerminal(w) {
		return func() {}
	}
	bar := show.NewBar(w, true)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		defer bar.Clear()
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		for most := int64(0); ; {
			text, err := client.Read(mount, "jobs", followEvery)
			var left copiesLeft
			if err == nil && json.Unmarshal(text, &left) == nil {
				n := left.blocks()
				if most = max(most, n); most > 0 {
					bar.Share(fmt.Sprintf("copying %s to lower tiers", show.Blocks(most)), most-n, most)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
