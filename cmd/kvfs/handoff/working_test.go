package handoff

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestWorking shows that an heir may take longer than the silence that is allowed, as long as it tells that it works, and that
// one that tells nothing is blocked.
func TestWorking(t *testing.T) {
	const silence = time.Second
	for _, tells := range []bool{true, false} {
		o, path := offer(t)
		c := dialOffer(t, path)
		outcome := make(chan error, 1)
		go func() { // ends with the takeover
			h := <-o.Heir()
			defer h.Close()
			null, err := os.Open("/dev/null")
			if err == nil {
				defer null.Close()
				err = h.HandOver(&Handed{Init: []byte("init"), Epoch: 4, Dev: null})
			}
			if err == nil {
				err = h.Outcome(t.Context(), silence)
			}
			outcome <- err
		}()
		p, m, err := c.TakeOver(t.Context(), "v2")
		must(t, err)
		m.Dev.Close()
		if !tells {
			if err := <-outcome; !errors.Is(err, ErrBlocked) {
				t.Errorf("a silent heir: %v", err)
			}
			p.Close()
			continue
		}
		for began := time.Now(); time.Since(began) < 2*silence; {
			time.Sleep(silence / 20) // reason: the pace of the heir
			must(t, p.Working())
		}
		check(t, errors.Join(p.Serving(), <-outcome))
	}
}
