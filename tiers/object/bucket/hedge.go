package bucket

import (
	"cmp"
	"context"
	"io"
	"math"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/kvfs/kvfs/tiers/latency"
)

const (
	hedgeShare  = 20                    // one in so many requests is made twice at most
	hedgeFloor  = 10 * time.Millisecond // of the time before the second one
	hedgeWindow = 128                   // reads from which the time is learnt
)

// answer is how a request for a range began.
type answer struct {
	body         io.ReadCloser
	info         minio.ObjectInfo
	contentRange string
	err          error // a failure
	index        int   // 1 for the second request
}

// first asks for a range, and a second time if no answer has begun after a time that 95 % of the recent ones kept. It
// returns the answer that begins first. ctx ends after its body is closed.
func (b *Bucket) first(ctx context.Context, key string, opts minio.GetObjectOptions) answer {
	start, timer := time.Now(), time.NewTimer(b.hedgeAfter())
	defer timer.Stop()
	answers := make(chan answer, 2)
	var cancels [2]context.CancelFunc
	ask := func(i int) {
		ctx, cancel := context.WithCancel(ctx)
		cancels[i] = cancel
		b.running.Go(func() { // ends with the request
			a := b.request(ctx, key, opts)
			a.index = i
			answers <- a
		})
	}
	ask(0)
	for pending := 1; ; {
		select {
		case a := <-answers:
			if pending--; pending > 0 && again(a.err) {
				continue // the other one may still answer
			}
			if pending > 0 {
				cancels[1-a.index]()
				b.running.Go(func() { // ends with the request
					if late := <-answers; late.err == nil {
						late.body.Close()
					}
				})
			}
			if a.index == 1 && a.err == nil {
				b.won.Add(1)
			}
			b.observe(start, a)
			return a
		case <-timer.C:
			if pending == 1 && b.mayHedge() {
				ask(1)
				pending++
			}
		}
	}
}

func (b *Bucket) request(ctx context.Context, key string, opts minio.GetObjectOptions) answer {
	body, info, header, err := b.core.GetObject(ctx, b.opts.Bucket, key, opts)
	return answer{body: body, info: info, contentRange: header.Get("Content-Range"), err: b.judge(err, false)}
}

// observe counts the time to a first byte.
func (b *Bucket) observe(start time.Time, a answer) {
	if a.err != nil {
		return
	}
	d := time.Since(start)
	b.gets.Observe(d)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.recent.Observe(d)
	if b.mu.recent.Total() == hedgeWindow {
		b.mu.p95 = max(b.mu.recent.Quantile(0.95), hedgeFloor)
		b.mu.recent = latency.Counts{}
	}
}

// hedgeAfter returns the time after which a request is made a second time.
func (b *Bucket) hedgeAfter() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.asked++
	return cmp.Or(b.mu.p95, math.MaxInt64) // not known yet: never
}

// mayHedge takes a second request from the share.
func (b *Bucket) mayHedge() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.hedges*hedgeShare >= b.mu.asked {
		return false
	}
	b.mu.hedges++
	return true
}
