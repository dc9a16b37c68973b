package object

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// away are the ways in which a store does not answer.
func away() map[string]func(s *s3test.Server, p *s3test.Proxy) {
	return map[string]func(s *s3test.Server, p *s3test.Proxy){
		"hangs":   func(s *s3test.Server, _ *s3test.Proxy) { s.Signal(syscall.SIGSTOP) },
		"killed":  func(s *s3test.Server, _ *s3test.Proxy) { s.Kill() },
		"503":     func(_ *s3test.Server, p *s3test.Proxy) { p.Script(always(s3test.Fault{Status: 503, Code: "SlowDown"})) },
		"refuses": func(_ *s3test.Server, p *s3test.Proxy) { p.Script(always(s3test.Fault{Reset: true})) },
	}
}

// TestTakeoverAway shows that no client waits for a store that is away while the mount is taken over: with blocks on their way
// to it, removals that it has not heard of, and an open that waits for one of its blocks (G6).
func TestTakeoverAway(t *testing.T) {
	for name, fail := range away() {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				harness.Skip(t, "needs root, to take a mount over")
			}
			s := s3test.Start(t, s3test.Options{})
			if name == "hangs" {
				defer s.Signal(syscall.SIGCONT)
			}
			p := s3test.NewProxy(t, s)
			d := mount(t, p.URL, "", harness.Options{Flags: []string{"--drain-timeout", "1s"}})
			old, gone := numbered("cold", 3, 100_000), numbered("gone", 3, 100_000)
			cold(t, d, old)
			storeAll(t, d, gone)
			waitStored(t, d, gone)
			fail(s, p)
			for name := range gone {
				remove(t, d, name)
			}
			warm := numbered("warm", 10, 200_000)
			storeAll(t, d, warm)
			harness.Poll(t, "a copy to the store has begun", func() bool { return strings.Contains(jobs(t, d), `"object"`) })
			opened := make(chan error, 1)
			go func() { // ends with its deadline
				_, err := os.ReadFile(d.Path("cold/0000"))
				opened <- err
			}()
			longest := make(chan time.Duration, 1)
			end := make(chan struct{})
			go func() { // ends with end
				worst := time.Duration(0)
				for i := 0; ; i++ {
					select {
					case <-end:
						longest <- worst
						return
					default:
					}
					began := time.Now()
					os.Stat(d.Path(fmt.Sprintf("warm/absent%d", i)))
					worst = max(worst, time.Since(began))
				}
			}()
			d.TakeOver()
			close(end)
			if worst := <-longest; worst > 5*time.Second {
				t.Errorf("a look-up waited for %v", worst)
			}
			wantBlocks(t, d, warm)
			for name := range gone {
				wantAbsent(t, d, name)
			}
			<-opened
		})
	}
}

// TestStopAway shows that a stop beside a store that is away takes drain_timeout and a moment, and names the tier (G6).
func TestStopAway(t *testing.T) {
	for name, fail := range away() {
		t.Run(name, func(t *testing.T) {
			s := s3test.Start(t, s3test.Options{})
			if name == "hangs" {
				defer s.Signal(syscall.SIGCONT)
			}
			p := s3test.NewProxy(t, s)
			d := mount(t, p.URL, "", harness.Options{Flags: []string{"--drain-timeout", "1s"}})
			gone := numbered("gone", 3, 100_000)
			storeAll(t, d, gone)
			waitStored(t, d, gone)
			fail(s, p)
			for name := range gone {
				remove(t, d, name)
			}
			storeAll(t, d, numbered("warm", 10, 200_000))
			began := time.Now()
			if code := d.Stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("the stop took %v", took)
			}
			if said := d.LastLog(); !strings.Contains(said, "tier object: ") || strings.Contains(said, "SSD") {
				t.Errorf("the log does not name the tier:\n%s", said)
			}
		})
	}
}

// jobs returns .kvfs/jobs.
func jobs(t testing.TB, d *harness.Daemon) string {
	t.Helper()
	text, err := os.ReadFile(d.Path(".kvfs/jobs"))
	must(t, "jobs", err)
	return string(text)
}
