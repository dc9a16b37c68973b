package bucket

import (
	"time"

	"github.com/kvfs/kvfs/tiers/latency"
)

// Stats are the numbers of a Bucket since New.
type Stats struct {
	Requests     Requests `json:"requests"`
	BytesRead    uint64   `json:"bytes_read" help:"bytes of answers"`
	BytesWritten uint64   `json:"bytes_written" help:"bytes of requests"`
	Retries      uint64   `json:"retries" help:"requests that were made again"`
	Hedges       uint64   `json:"hedges" help:"reads that were asked for a second time because the answer took long"`
	HedgesWon    uint64   `json:"hedges_won" help:"those whose second answer came first"`
	Failures     uint64   `json:"failures" help:"calls that failed after all repetitions"`
	Breaker      string   `json:"breaker" help:"'closed': calls go through; 'open' or 'half-open': the store did not answer and is probed"`
	// Times of reads until the first byte, and of whole Puts; a power of two, rounded up. 0 without calls.
	GetP50 time.Duration `json:"get_p50_ns" help:"median time until the first byte of a read, rounded up to a power of two"`
	GetP95 time.Duration `json:"get_p95_ns" help:"the time that 95 % of them do not exceed, likewise"`
	PutP50 time.Duration `json:"put_p50_ns" help:"median time of a write of an object, likewise"`
	PutP95 time.Duration `json:"put_p95_ns" help:"the time that 95 % of them do not exceed, likewise"`
}

// Requests are the requests to the server, repetitions included.
type Requests struct {
	Get    uint64 `json:"get" help:"reads of objects, repetitions included"`
	List   uint64 `json:"list" help:"listings, likewise"`
	Put    uint64 `json:"put" help:"writes of objects, likewise"`
	Delete uint64 `json:"delete" help:"deletions, likewise"`
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
