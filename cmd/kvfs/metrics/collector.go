package metrics

import (
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvfs/kvfs/tiers/latency"
)

// family is one metric in all of its labels.
type family struct {
	name   string
	kind   kind
	labels string // with commas between
	help   string
	emit   func(s *Snapshot, o *output)
}

// kind is the type of a metric.
type kind string

const (
	gauge     kind = "gauge"
	counter   kind = "counter"
	histogram kind = "histogram"
)

// output takes the values of one family.
type output struct {
	desc *prometheus.Desc
	kind kind
	to   chan<- prometheus.Metric
}

// put gives a value, with the values of the labels in order.
func (o *output) put(v float64, labels ...string) {
	of := prometheus.GaugeValue
	if o.kind == counter {
		of = prometheus.CounterValue
	}
	for i := range labels { // a name of a group may be any bytes
		labels[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
	}
	o.to <- prometheus.MustNewConstMetric(o.desc, of, v, labels...)
}

// is gives 1 for true, else 0.
func (o *output) is(v bool, labels ...string) {
	if v {
		o.put(1, labels...)
	} else {
		o.put(0, labels...)
	}
}

// times gives a histogram.
func (o *output) times(c *latency.Counts, labels ...string) {
	o.buckets(c.N[:], latency.Bound, c.Sum.Seconds(), labels...)
}

// coarse gives a histogram of times with every second bucket: each bound is four times that before it.
func (o *output) coarse(c *latency.Counts, labels ...string) {
	counts := make([]uint64, 0, latency.Buckets/2+1)
	for i := 0; i < latency.Buckets-1; i += 2 {
		counts = append(counts, c.N[i]+c.N[i+1])
	}
	counts = append(counts, c.N[latency.Buckets-1])
	o.buckets(counts, func(i int) time.Duration { return latency.Bound(2*i + 1) }, c.Sum.Seconds(), labels...)
}

// ages gives a histogram of long times.
func (o *output) ages(a *latency.Ages, labels ...string) {
	o.buckets(a.N[:], latency.AgeBound, a.Sum, labels...)
}

// buckets gives a histogram of numbers by bucket, the last of which has no bound. sum is in seconds.
func (o *output) buckets(counts []uint64, bound func(i int) time.Duration, sum float64, labels ...string) {
	buckets, n := make(map[float64]uint64, len(counts)), uint64(0)
	for i, k := range counts {
		if n += k; i < len(counts)-1 {
			buckets[bound(i).Seconds()] = n
		}
	}
	o.to <- prometheus.MustNewConstHistogram(o.desc, n, sum, buckets, labels...)
}

// Collector makes metrics of what source returns. It implements prometheus.Collector. Collect may run in parallel
// if source may.
type Collector struct {
	source func() *Snapshot
	descs  []*prometheus.Desc // of families
}

var _ prometheus.Collector = (*Collector)(nil)

// families are all metrics.
var families = slices.Concat(daemonFamilies, tierFamilies, engineFamilies, reuseFamilies, clusterFamilies)

// New returns a Collector of what source returns.
func New(source func() *Snapshot) *Collector {
	c := &Collector{source: source}
	for _, f := range families {
		var labels []string
		if f.labels != "" {
			labels = strings.Split(f.labels, ",")
		}
		c.descs = append(c.descs, prometheus.NewDesc(f.name, f.help, labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	s := c.source()
	for i, f := range families {
		f.emit(s, &output{c.descs[i], f.kind, to})
	}
}

// sample returns a metric of the Go runtime.
func sample(name string) float64 {
	s := []metrics.Sample{{Name: name}}
	if metrics.Read(s); s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return float64(s[0].Value.Uint64())
}

// daemonFamilies are about the process and its mounts.
var daemonFamilies = []family{
	{"kvfs_build_info", gauge, "version,go_version", "1, with the version of the daemon and of Go.", func(s *Snapshot, o *output) {
		o.put(1, s.Version, runtime.Version())
	}},
	{"kvfs_daemon_collect_time_seconds", gauge, "", "When these numbers were collected, in seconds since 1970. It stands still if the daemon hangs.", func(s *Snapshot, o *output) {
		o.put(float64(s.Time.UnixMilli()) / 1000)
	}},
	{"kvfs_daemon_ready", gauge, "", "1 if /readyz answers 200.", func(s *Snapshot, o *output) { o.is(len(s.Unready) == 0) }},
	{"kvfs_daemon_fallback_active", gauge, "fallback", "1 if the daemon works without something that makes it faster or safer.", func(s *Snapshot, o *output) {
		s.fallbacks(func(name string, on bool) { o.is(on, name) })
	}},
	{"kvfs_daemon_heap_bytes", gauge, "", "Live objects of the daemon after the last garbage collection.", func(_ *Snapshot, o *output) {
		o.put(sample("/gc/heap/live:bytes"))
	}},
	{"kvfs_daemon_goroutines", gauge, "", "Goroutines of the daemon.", func(_ *Snapshot, o *output) { o.put(sample("/sched/goroutines:goroutines")) }},
	{"kvfs_daemon_mounts", gauge, "state", "Mounts that the daemon answers.", func(s *Snapshot, o *output) {
		n := map[string]int{"serving": 0, "attaching": 0}
		for i := range s.Mounts {
			n[s.Mounts[i].State]++
		}
		for state, n := range n {
			o.put(float64(n), state)
		}
	}},
	{"kvfs_mount_backing_files", gauge, "", "Files in memory that are registered with the kernel for passthrough.", func(s *Snapshot, o *output) {
		n := 0
		for i := range s.Mounts {
			n += s.Mounts[i].BackingFiles
		}
		o.put(float64(n))
	}},
	{"kvfs_fuse_request_duration_seconds", histogram, "op", "Time from a request of the kernel to its answer, by FUSE operation, of those that there were. Reads and writes by passthrough are no requests.", func(s *Snapshot, o *output) {
		for op, c := range s.Requests.All() {
			if c.Total() > 0 {
				o.coarse(c, op.String())
			}
		}
	}},
}
