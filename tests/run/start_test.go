package run

import (
	"io"
	"os/exec"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

// BenchmarkStart measures what kvfs run adds to the start of a command: the time
// until the command writes its first byte, beside that of the command alone.
// The difference is to be under 300 ms.
func BenchmarkStart(b *testing.B) {
	harness.KvfsOnly(b, "kvfs run")
	harness.NeedFuse(b)
	kvfs := harness.Binary(b)
	for _, c := range []struct {
		name string
		args []string
	}{
		{"alone", nil},
		{"run", []string{kvfs, "run", "--memory-size", "64MiB", "--"}},
		{"run-default-memory", []string{kvfs, "run", "--"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var sum time.Duration
			for b.Loop() {
				sum += firstByte(b, append(c.args, "sh", "-c", "echo x"))
			}
			b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), "ms/first-byte")
		})
	}
}

// firstByte runs a command to its end and returns how long its first byte took.
func firstByte(b *testing.B, args []string) time.Duration {
	b.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	must(b, err)
	began := time.Now()
	must(b, cmd.Start())
	_, err = io.ReadFull(out, make([]byte, 1))
	took := time.Since(began)
	must(b, err)
	_, err = io.Copy(io.Discard, out)
	must(b, err)
	must(b, cmd.Wait())
	return took
}
