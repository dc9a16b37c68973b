package lane_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tiers/lane"
)

// FuzzCutLoads: what waits to be loaded is cut into jobs of one request each, which are as long as they may be and
// not longer; what alone is larger than a job may be is one. No block is left out, and each request keeps its
// order. One byte is a block: its size, and in the highest bit whose it is (B15, B16, B18).
func FuzzCutLoads(f *testing.F) {
	f.Add([]byte{}, 1, int64(1))
	f.Add([]byte{1, 1, 1, 1}, 64, int64(2))
	f.Add([]byte{1, 100, 1, 3, 0, 0}, 2, int64(3))
	f.Add([]byte{1, 129, 1, 129, 2, 130}, 64, int64(1<<40))
	f.Add([]byte{1, 228, 1}, 64, int64(50))   // what is too large for a job of another request does not end this one
	f.Add(make([]byte, 1000), 1000, int64(1)) // no limit on the number but that which is set
	f.Fuzz(func(t *testing.T, raw []byte, keys int, budget int64) {
		if keys < 1 || budget < 1 {
			t.Skip("the configuration has no such limits")
		}
		sizes, requests := make([]int64, len(raw)), make([]string, len(raw))
		for i, b := range raw {
			sizes[i], requests[i] = int64(b&127), []string{"a", "b"}[b>>7]
		}
		jobs := lane.CutLoads(sizes, requests, keys, budget)
		next := map[string]int{} // jobs of each request are as long as they may be: the first of its next one does not fit
		var all []int
		for n, job := range jobs {
			var bytes int64
			request := requests[job[0]]
			for _, i := range job {
				bytes += sizes[i]
				if requests[i] != request || i < next[request] {
					t.Fatalf("job %d of %v has block %d of %q, want those of %q from %d on", n, jobs, i, requests[i], request, next[request])
				}
				next[request] = i + 1
			}
			all = append(all, job...)
			if len(job) > keys || bytes > budget && len(job) > 1 {
				t.Fatalf("job %v has %d bytes: limits %d keys, %d bytes", job, bytes, keys, budget)
			}
			for _, later := range jobs[n+1:] {
				if requests[later[0]] == request {
					if len(job) < keys && bytes+sizes[later[0]] <= budget {
						t.Fatalf("job %v could have block %d, too: limits %d keys, %d bytes", job, later[0], keys, budget)
					}
					break
				}
			}
		}
		slices.SortFunc(all, cmp.Compare)
		if len(all) != len(sizes) || len(slices.Compact(all)) != len(sizes) {
			t.Fatalf("%d blocks in jobs %v", len(sizes), jobs)
		}
	})
}
