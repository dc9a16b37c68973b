package fs

import (
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/fs/device"
)

// TestLatencies shows that the time of each request is counted once, whoever reads the requests: this package, or
// go-fuse for a mount without passthrough.
func TestLatencies(t *testing.T) {
	for _, path := range []Switch{Auto, Off} {
		t.Run(string(path), func(t *testing.T) {
			times := &device.Latencies{}
			s, dir := mountHereWith(t, Options{Passthrough: path, Latencies: times})
			c := startClient(t)
			file := filepath.Join(dir, "group", "block")
			c.do("write", file)
			c.do("reads", "20 "+file)
			released(t, s)
			waitFor(t, func() string { // the last request is being answered
				want, got := s.Ops(), map[string]uint64{}
				for op, c := range times.All() {
					if got[op.String()] = c.Total(); c.Sum <= 0 {
						t.Errorf("%d times %v took %v", c.Total(), op, c.Sum)
					}
				}
				delete(want, device.OpOther.String()) // the protocol has more of them than reach the files
				delete(got, device.OpOther.String())
				if maps.Equal(got, want) && want["OPEN"] >= 20 && want["CREATE"] > 0 {
					return ""
				}
				return fmt.Sprintf("timed %v, counted %v", got, want)
			})
		})
	}
}
