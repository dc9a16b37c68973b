package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// statsLine is a line of kvfs stats --json.
type statsLine struct {
	Restarted  bool     `json:"restarted"`
	Writes     float64  `json:"writes_per_second"`
	WriteBytes float64  `json:"written_bytes_per_second"`
	Reads      float64  `json:"reads_per_second"`
	Misses     float64  `json:"misses_per_second"`
	HitRatio   *float64 `json:"hit_ratio"`
	Memory     int64    `json:"memory_used_bytes"`
	Disk       int64    `json:"disk_used_bytes"`
}

// TestStats follows kvfs stats through writes, reads, and a miss, to the death of the daemon, and asks kvfs du.
func TestStats(t *testing.T) {
	d := diskMount(t, harness.Options{})
	cmd := exec.Command(harness.Binary(t), "stats", "--json", "--interval", "20ms", d.Dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	must(t, "pipe", err)
	must(t, "start", cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	lines := make(chan statsLine)
	go func() { // ends with the command
		defer close(lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			var l statsLine
			if err := json.Unmarshal(in.Bytes(), &l); err != nil {
				t.Errorf("%s: %v", in.Text(), err)
			}
			lines <- l
		}
	}()
	until := func(what string, cond func(l statsLine) bool) {
		t.Helper()
		for {
			l := receive(t, what, lines)
			if l.Writes < 0 || l.WriteBytes < 0 || l.Reads < 0 || l.Misses < 0 || l.Memory < 0 {
				t.Errorf("negative: %+v", l)
			}
			if cond(l) {
				return
			}
		}
	}
	until("a first line", func(statsLine) bool { return true })
	store(t, d.Path("g/a"), pattern("a", mib))
	until("the write", func(l statsLine) bool { return l.Writes > 0 && l.WriteBytes >= mib*l.Writes && l.Memory >= mib })
	until("the copy", func(l statsLine) bool { return l.Disk >= mib })
	wantBytes(t, d.Path("g/a"), pattern("a", mib))
	until("the read", func(l statsLine) bool { return l.Reads > 0 && l.HitRatio != nil && *l.HitRatio > 0 })
	if tierOf(d.Path("g/none")) != "" {
		t.Error("g/none is there")
	}
	until("the miss", func(l statsLine) bool { return l.Misses > 0 })

	wantLine(t, kvfs(t, "du", d.Dir), "g ", "1.0 MiB")
	wantLine(t, kvfs(t, "du", d.Dir), "disk ", "1.0 GiB", "1")

	d.Kill()
	within(t, "the command ends", func() {
		for range lines {
		}
		cmd.Wait()
	})
	if code := cmd.ProcessState.ExitCode(); code != 5 || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "is dead") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
