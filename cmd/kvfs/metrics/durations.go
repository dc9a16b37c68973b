package metrics

import (
	"bytes"
	"fmt"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvfs/kvfs/tiers/latency"
)

// RequestDurations is the histogram of the requests of the kernel. Its label is the FUSE operation.
const RequestDurations = "kvfs_fuse_request_duration_seconds"

// Durations returns a histogram of a page, by the value of its only label. It is empty if the page lacks the histogram.
func Durations(page []byte, name string) (map[string]latency.Counts, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil, fmt.Errorf("metrics of the daemon: %w", err)
	}
	found := map[string]latency.Counts{}
	for _, m := range families[name].GetMetric() {
		var c latency.Counts
		var before uint64 // in lower buckets
		h := m.GetHistogram()
		i := 0
		for _, b := range h.GetBucket() {
			for i < latency.Buckets-1 && latency.Bound(i).Seconds() < b.GetUpperBound() {
				i++
			}
			if n := b.GetCumulativeCount(); n > before {
				c.N[i], before = n-before, n
			}
		}
		c.Sum = time.Duration(h.GetSampleSum() * float64(time.Second))
		for _, l := range m.GetLabel() {
			found[l.GetValue()] = c
		}
	}
	return found, nil
}
