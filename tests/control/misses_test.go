package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// storeSoon is how long after a look-up of a name its store may begin, so that the look-up is no miss: docs/metrics.md.
const storeSoon = 100 * time.Millisecond

// misses follows reads.misses of a mount. late counts the stores of this test that began too late on a busy machine, so
// that their look-ups may be misses.
type misses struct {
	t          *testing.T
	d          *harness.Daemon
	last, late int64
}

func (m *misses) want(what string, want int64) {
	m.t.Helper()
	time.Sleep(2 * storeSoon) // reason: only time decides that no store follows a look-up
	s := m.d.Status()
	got := s.Reads.Misses - m.last
	if got < want || got > want+m.late || int(s.Reads.Misses) != counter(m.t, m.d, "lookup_misses") {
		m.t.Errorf("%s: %d misses, want %d (%d late stores); lookup_misses %d of %d", what, got, want, m.late, counter(m.t, m.d, "lookup_misses"), s.Reads.Misses)
	}
	m.last, m.late = s.Reads.Misses, 0
}

// look looks a file up that is not there.
func (m *misses) look(name string) {
	m.t.Helper()
	if _, err := os.Stat(m.d.Path(name)); !errors.Is(err, fs.ErrNotExist) {
		m.t.Errorf("stat %s: %v", name, err)
	}
}

// store looks a file up, as engines do, and then makes it by way of another name, or of none.
func (m *misses) store(by, name string) {
	m.t.Helper()
	began := time.Now()
	m.look(name)
	f, err := os.OpenFile(m.d.Path(by), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	must(m.t, "create", err)
	_, err = f.WriteString("block")
	must(m.t, "write", errors.Join(err, f.Close()))
	if by != name {
		must(m.t, "rename", os.Rename(m.d.Path(by), m.d.Path(name)))
	}
	if time.Since(began) > storeSoon {
		m.late += 4 // the kernel looks up each name before it makes it
	}
}

// TestMisses counts stores and reads as engines make them, and shows that the numbers of the status, of kvfs stats and of
// the metrics are those of the reads alone.
func TestMisses(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	m := &misses{t: t, d: d}
	began := time.Now()
	must(t, "mkdir", os.MkdirAll(d.Path("g/a/b"), 0o755))
	if time.Since(began) > storeSoon {
		m.late += 6
	}
	m.want("directories", 0)
	for i := range 100 {
		m.store(fmt.Sprintf("g/%d.tmp", i), fmt.Sprintf("g/%d", i))
	}
	m.want("100 stored by a temporary name", 0)
	for i := range 100 {
		m.store(fmt.Sprintf("g/x%d.part-%d", i, i), fmt.Sprintf("g/x%d", i))
	}
	m.want("100 stored by a name that is not temporary", 0)
	for i := range 100 {
		m.store(fmt.Sprintf("g/i%d", i), fmt.Sprintf("g/i%d", i))
	}
	m.want("100 stored in place", 0)
	for i := range 20 {
		if got, err := os.ReadFile(d.Path(fmt.Sprintf("g/%d", i))); err != nil || string(got) != "block" {
			t.Errorf("read: %q, %v", got, err)
		}
	}
	m.want("20 read", 0)
	if s := d.Status().Reads; s.MemoryHits != 20 || s.Served != 20 {
		t.Errorf("%d hits, %d served, want 20", s.MemoryHits, s.Served)
	}
	for i := range 20 {
		m.look(fmt.Sprintf("g/none%d", i))
	}
	m.want("20 that are nowhere", 20)
	for i := range 20 {
		m.look(fmt.Sprintf("g/computed%d", i))
	}
	time.Sleep(2 * storeSoon) // reason: an engine that misses a block takes its time to compute it
	for i := range 20 {
		m.store(fmt.Sprintf("g/%d.tmp", i), fmt.Sprintf("g/computed%d", i))
	}
	m.want("20 missed, computed and stored", 20)

	text, err := os.ReadFile(d.Path(".kvfs", "metrics"))
	must(t, "metrics", err)
	for _, line := range []string{`kvfs_reads_total{result="served"} 20`, `kvfs_reads_total{result="missed"} 40`, `kvfs_reads_total{result="failed"} 0`} {
		if m.last == 40 && !strings.Contains(string(text), line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
}
