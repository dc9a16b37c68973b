// Package metrics is what a daemon tells Prometheus.
//
//	Snapshot    the numbers of one moment; package daemon fills it
//	Collector   makes metrics of a Snapshot, by one table (tables.go)
//	Page        the metrics as text, collected at most once at a time
//
// Names are kvfs_<part>_<noun>_<unit>, and those of counters end in _total. The values of labels are bounded: tiers,
// reasons, rules and operations are few, and of the groups only the largest have names (maxGroups).
package metrics

import (
	"bytes"
	"cmp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/latency"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/publish"
)

// Snapshot is what a daemon knows at one moment.
type Snapshot struct {
	Time    time.Time
	Version string
	Unready []string // what is not ready

	Engine    tiers.Stats
	Groups    []memory.GroupStats
	Quotas    []memory.QuotaStats
	Loading   map[string]int // blocks that wait for a load job, by tier
	Evictions map[event.Eviction]uint64
	Adoptable bool // blocks in memory outlive a crash

	Mounts   []status.Mount
	Requests *device.Latencies
	Events   uint64         // number of the next event
	ZMQ      *publish.Stats // nil: no publisher
	Cluster  *Cluster       // nil: no cluster
}

// Cluster is the part about peers.
type Cluster struct {
	Members []cluster.Member
	Node    cluster.Stats
	Bulk    tcp.Stats
	RDMA    *rails.State
}

func (s *Snapshot) disks(yield func(tier string, d *disk.Detail) bool) {
	for i := range s.Engine.Secondaries {
		t := &s.Engine.Secondaries[i]
		if d, ok := t.Detail.(*disk.Detail); ok && !yield(t.Name, d) {
			return
		}
	}
}

// states are the states of a tier.
var states = []string{"online", "degraded", "offline"}

// maxGroups is how many groups have names in the metrics: those that use the most memory. The others are one.
const (
	maxGroups = 20
	others    = "other"
)

// groups returns the largest groups, largest first, and the sum of the others.
func (s *Snapshot) groups() []memory.GroupStats {
	all := slices.Clone(s.Groups)
	slices.SortStableFunc(all, func(a, b memory.GroupStats) int {
		return cmp.Or(cmp.Compare(b.UsedBytes, a.UsedBytes), cmp.Compare(a.Name, b.Name))
	})
	if len(all) <= maxGroups {
		return all
	}
	rest := memory.GroupStats{Name: others}
	list := all[:0:maxGroups]
	for _, g := range all {
		if len(list) < maxGroups && g.Name != others {
			list = append(list, g)
			continue
		}
		rest.UsedBytes += g.UsedBytes
		rest.QuotaBytes += g.QuotaBytes
	}
	return append(list, rest)
}

// fallbacks yields what kvfs can do without, and whether it does now.
func (s *Snapshot) fallbacks(yield func(name string, on bool)) {
	slow := slices.ContainsFunc(s.Mounts, func(m status.Mount) bool { return m.ReadPath != "" && m.ReadPath != "passthrough" })
	var threads, cached, tcp bool
	for _, d := range s.disks {
		for i := range d.Devices {
			threads = threads || d.Devices[i].Engine != "io_uring"
			cached = cached || !d.Devices[i].DirectIO
		}
	}
	if c := s.Cluster; c != nil {
		tcp = c.RDMA != nil && c.RDMA.Error != ""
		for i := range c.Members {
			tcp = tcp || c.Members[i].State == "alive" && c.Members[i].PathReason != ""
		}
	}
	yield("no_passthrough", slow)
	yield("no_io_uring", threads)
	yield("no_direct_io", cached)
	yield("no_rdma", tcp)
	yield("no_adoption", !s.Adoptable)
}

// count yields how many of the peers are in each of some states, of itself in none. It yields zeros, too, so that a
// state that ends does not vanish.
func (c *Cluster) count(of func(m *cluster.Member) string, states []string, yield func(state string, n int)) {
	n := map[string]int{}
	for i := range c.Members {
		if m := &c.Members[i]; !m.Self {
			n[of(m)]++
		}
	}
	for _, state := range states {
		yield(state, n[state])
	}
}

// family is one metric in all of its labels.
type family struct {
	name   string
	kind   kind
	labels string // with commas between
	help   string
	emit   func(s *Snapshot, o *output)
}

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
		o.put(float64(status.Sample("/gc/heap/live:bytes")))
	}},
	{"kvfs_daemon_goroutines", gauge, "", "Goroutines of the daemon.", func(_ *Snapshot, o *output) { o.put(float64(runtime.NumGoroutine())) }},
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

// ContentType is the form of the text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// patience is how long a reader waits for a collection. After it the reader gets the last text.
const patience = 2 * time.Second

// share bounds the cost of collecting, however often the text is read: a collection that took a time begins no earlier than
// share times as long after the last one.
const share = 10

// Page is a text that a daemon collects when somebody reads it. A hanging tier delays a reader by patience at most. Methods may be called in parallel.
type Page struct {
	make     func() []byte
	patience time.Duration

	mu struct {
		sync.Mutex
		running chan struct{} // closed at the end of the collection under way; nil: there is none
		text    []byte        // of the last one
		next    time.Time     // when the next one may begin
		closed  bool
	}
}

// NewPage returns the page of the metrics of what source returns, and of the process. Page calls source from one
// goroutine at a time, until Close.
func NewPage(source func() *Snapshot) *Page {
	registry := prometheus.NewRegistry()
	registry.MustRegister(New(source), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return PageOf(func() []byte { return encode(registry) })
}

// PageOf returns the page of what make returns, which Page calls as NewPage does source.
func PageOf(make func() []byte) *Page { return &Page{make: make, patience: patience} }

// Text returns the text. If a collection is under way, or another one would cost too much, it is that of the
// last one. Text is empty if there is none yet and the first one hangs.
func (p *Page) Text() []byte {
	p.mu.Lock()
	running := p.mu.running
	if running == nil && !p.mu.closed && !time.Now().Before(p.mu.next) {
		running = make(chan struct{})
		p.mu.running = running
		go p.collect(running) // ends with source; Close waits for it
	} else if p.mu.text != nil || running == nil {
		defer p.mu.Unlock()
		return p.mu.text
	}
	p.mu.Unlock()
	await(running, p.patience)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.text
}

// await waits for the end of a collection.
func await(running <-chan struct{}, most time.Duration) {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-running:
	case <-t.C:
	}
}

func (p *Page) collect(running chan struct{}) {
	begun := time.Now()
	text := p.make()
	took := time.Since(begun)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.text, p.mu.running, p.mu.next = text, nil, begun.Add(share*took)
	close(running)
}

// encode returns what can be gathered. What cannot is a bug, which the tests of the package find.
func encode(from prometheus.Gatherer) []byte {
	families, _ := from.Gather()
	var b bytes.Buffer
	out := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		_ = out.Encode(f) // to memory
	}
	return b.Bytes()
}

// Close ends collecting: source is called no more, unless a collection hangs for longer than a reader would wait.
// Text goes on with the last text.
func (p *Page) Close() {
	p.mu.Lock()
	p.mu.closed = true
	running := p.mu.running
	p.mu.Unlock()
	if running != nil {
		await(running, p.patience)
	}
}
