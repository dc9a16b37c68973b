package breaker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBreaker walks through the states with a fake clock: three failures in a row open
// it, probes come with growing intervals, one that succeeds closes it on probation.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b := New(time.Second, 30*time.Second)
		var mu sync.Mutex // guards these
		answer := errors.New("dead")
		var probes []time.Time
		go func() { // ends with ctx; synctest waits for it
			b.Run(ctx, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				probes = append(probes, time.Now())
				return answer
			})
		}()
		b.Failed()
		b.Failed()
		b.OK() // not in a row
		b.Failed()
		if b.Failed() || b.State() != "closed" {
			t.Fatal("open after two failures in a row")
		}
		opened := time.Now()
		if !b.Failed() || b.State() != "open" || b.Closed() {
			t.Fatal("not open after three")
		}
		time.Sleep(5 * time.Minute) // reason: the fake clock
		synctest.Wait()
		mu.Lock()
		last, want := opened, time.Second
		for i, at := range probes {
			if d := at.Sub(last); d < want*3/4 || d > want*5/4 {
				t.Errorf("probe %d after %v, want about %v", i, d, want)
			}
			last, want = at, min(2*want, 30*time.Second)
		}
		if len(probes) < 10 || b.State() != "open" {
			t.Fatalf("%d probes, %s", len(probes), b.State())
		}
		mu.Unlock()
		b.OK() // of a call from before
		if b.State() != "open" {
			t.Fatal("closed by a late success")
		}
		mu.Lock()
		answer = nil
		mu.Unlock()
		time.Sleep(time.Minute) // reason: the fake clock
		synctest.Wait()
		if b.State() != "closed" {
			t.Fatal("a probe that succeeds does not close it")
		}
		mu.Lock()
		n := len(probes)
		mu.Unlock()
		if !b.Failed() {
			t.Fatal("not open after one failure on probation")
		}
		opened = time.Now()
		time.Sleep(time.Minute) // reason: the fake clock
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if d := probes[n].Sub(opened); d < 20*time.Second {
			t.Errorf("on probation the back-off is %v: it began anew", d)
		}
		b.OK()
		b.Failed()
		if b.Failed() {
			t.Error("a success does not end the probation")
		}
		b.Failed()
		b.Reset()
		if b.State() != "closed" || b.Failed() {
			t.Error("reset does not begin anew")
		}
	})
}
