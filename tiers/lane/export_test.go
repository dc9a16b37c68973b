package lane

import (
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// CutLoads returns the jobs into which a tier's waiting loads of these sizes are cut, as indexes: those of request[i]
// may not go with others.
func CutLoads(sizes []int64, requests []string, keys int, bytes int64) (jobs [][]int) {
	id := driver.JobID(0)
	l := New(Options{
		BatchKeys: keys, BatchBytes: bytes, Lock: &sync.Mutex{}, Now: time.Now, Logger: zap.NewNop(),
		NextJob: func() driver.JobID { id++; return id },
	})
	at := map[*Load]int{}
	for i, size := range sizes {
		ld := &Load{Size: size, Request: requests[i], Key: block.Key{Hash: block.Hash(strconv.Itoa(i))}}
		at[ld] = i
		l.QueueLoadLocked(ld)
	}
	for {
		j, batch := l.takeLoadsLocked()
		if j == nil {
			return jobs
		}
		l.loading-- // there is no limit here
		job := make([]int, len(batch))
		for i, ld := range batch {
			job[i] = at[ld]
		}
		jobs = append(jobs, job)
	}
}
