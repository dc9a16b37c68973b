package tcp

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

// turns is a pacer that has callers wait until another session waits, too, as long as there are two.
type turns struct {
	mu       sync.Mutex
	changed  sync.Cond
	sessions int
	waiting  []context.Context // in the order of their calls
	order    []context.Context
	bytes    map[context.Context]int
	most     int
}

func (r *turns) WaitN(ctx context.Context, n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, ctx)
	r.changed.Broadcast()
	for r.waiting[0] != ctx || len(r.waiting) < r.sessions {
		r.changed.Wait()
	}
	r.waiting = slices.Delete(r.waiting, 0, 1)
	r.order, r.most = append(r.order, ctx), max(r.most, n)
	if r.bytes[ctx] += n; r.bytes[ctx] == rateBody {
		r.sessions--
	}
	r.changed.Broadcast()
	return nil
}

const rateBody = 1<<20 + 1

// TestRate shows that all bytes of blocks count towards the limit, with and without TLS, and that two connections send in turns.
func TestRate(t *testing.T) {
	for _, secure := range []bool{false, true} {
		o := Options{Bind: "127.0.0.1:0", Rate: 1 << 40, StallTimeout: patience}
		if secure {
			server, client := testTLS(t)
			o.ServerTLS, o.ClientTLS = server, client
		}
		body := bytes.Repeat([]byte("kvfs turn"), rateBody/9+1)[:rateBody]
		o.Source = lender{memfd(t, body), rateBody, nil}
		holder := open(t, o)
		r := &turns{sessions: 2, bytes: map[context.Context]int{}}
		r.changed.L = &r.mu
		holder.rate = r
		var wg sync.WaitGroup
		for range 2 {
			p := connect(t, open(t, o), holder.Addr())
			f := memfd(t, nil)
			wg.Go(func() {
				_, err := getAll(t.Context(), p, 1, f, 0)
				got := make([]byte, rateBody)
				if _, short := f.ReadAt(got, 0); errors.Join(err, short) != nil || !bytes.Equal(got, body) {
					t.Errorf("TLS %v: %v, %v", secure, err, short)
				}
			})
		}
		wg.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		count := map[context.Context]int{}
		for i, ctx := range r.order {
			count[ctx]++
			if other := i + 1 - count[ctx]; r.bytes[ctx] != rateBody || i%2 == 1 && count[ctx] != other {
				t.Fatalf("TLS %v: after %d turns one session had %d, of %d bytes", secure, i+1, count[ctx], r.bytes[ctx])
			}
		}
		if len(count) != 2 || r.most > rateTurn {
			t.Errorf("TLS %v: %d sessions, turns of up to %d bytes", secure, len(count), r.most)
		}
	}
}
