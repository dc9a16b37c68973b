package handoff

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvfs/kvfs/fs/device"
)

// TestTakeOverEpochs: a takeover gives the last owner number that nodes can carry, and none above it. A mount is offered
// only while the next process and, if that fails, this one again can have a number.
func TestTakeOverEpochs(t *testing.T) {
	for epoch, want := range map[uint32]error{device.MaxEpoch: nil, device.MaxEpoch + 1: ErrMalformed} {
		o, path := offer(t)
		c := dialOffer(t, path)
		ended := make(chan error, 1)
		go func() { // ends with the takeover
			h := <-o.Heir()
			defer h.Close()
			null, err := os.Open("/dev/null")
			if err == nil {
				err = errors.Join(h.HandOver(&Handed{Init: []byte("init"), Epoch: epoch, Dev: null}), null.Close())
			}
			if err == nil && want == nil {
				err = h.Outcome(t.Context(), limit)
			}
			ended <- err
		}()
		p, m, err := c.TakeOver(t.Context(), "v2")
		if !errors.Is(err, want) {
			t.Errorf("epoch %d: got %v, want %v", epoch, err, want)
		}
		if err == nil {
			if m.Epoch != epoch {
				t.Errorf("epoch %d: got %d", epoch, m.Epoch)
			}
			err = errors.Join(m.Dev.Close(), p.Serving())
		}
		if sent := <-ended; sent != nil || want == nil && err != nil {
			t.Errorf("epoch %d: sent: %v, taken: %v", epoch, sent, err)
		}
	}
	for epoch, ok := range map[uint32]bool{device.MaxEpoch - 2: true, device.MaxEpoch - 1: false, device.MaxEpoch: false} {
		o, err := NewOffer(filepath.Join(t.TempDir(), "run", "mount-7.sock"), "v1", Offered{Dir: "/m", Epoch: epoch, Patience: time.Minute}, nil)
		if err == nil {
			err = o.Close()
		}
		if (err == nil) != ok {
			t.Errorf("offer by owner %d: got %v, want one: %t", epoch, err, ok)
		}
	}
}
