package bucket

import (
	"time"

	"github.com/kvfs/kvfs/tiers/latency"
)

// Stats are the numbers of a Bucket since New.
type Stats struct {
	Requests     Requests `json:"requests"`
	BytesRead    uint64   `json:"bytes_read"`    // of answers, lists and errors included
	BytesWritten uint64   `json:"bytes_written"` // of bodies of requests
	Retries      uint64   `json:"retries"`       // requests that were made again
	Hedges       uint64   `json:"hedges"`        // reads that were asked for a second time, as the first answer took long
	HedgesWon    uint64   `json:"hedges_won"`    // those whose second answer came first
	Failures     uint64   `json:"failures"`      // calls that ended as block.ErrUnavailable
	Breaker      string   `json:"breaker"`       // closed, open or half-open
	// Times of reads until the first byte, and of whole Puts; a power of two, rounded up. 0 without calls.
	GetP50 time.Duration `json:"get_p50_ns"`
	GetP95 time.Duration `json:"get_p95_ns"`
	PutP50 time.Duration `json:"put_p50_ns"`
	PutP95 time.Duration `json:"put_p95_ns"`
}

// Requests are the requests to the server, repetitions included.
type Requests struct {
	Get    uint64 `json:"get"`
	List   uint64 `json:"list"` // objects, uploads, the region
	Put    uint64 `json:"put"`  // also parts of uploads, and what begins and completes these
	Delete uint64 `json:"delete"`
}

// Stats returns the numbers now.
func (b *Bucket) Stats() Stats {
	var gets, puts latency.Counts
	b.gets.AddTo(&gets)
	b.puts.AddTo(&puts)
	w := b.wire
	s := Stats{
		Requests:  Requests{Get: w.requests[opGet].Load(), List: w.requests[opList].Load(), Put: w.requests[opPut].Load(), Delete: w.requests[opDelete].Load()},
		BytesRead: w.bytesRead.Load(), BytesWritten: w.bytesWritten.Load(),
		Retries: b.retries.Load(), HedgesWon: b.won.Load(), Failures: b.failures.Load(), Breaker: b.breaker.State(),
		GetP50: gets.Quantile(0.5), GetP95: gets.Quantile(0.95), PutP50: puts.Quantile(0.5), PutP95: puts.Quantile(0.95),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Hedges = b.mu.hedges
	return s
}
