package index

import (
	"encoding/hex"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

const million = 1 << 20

// blockName returns a name as vLLM's native layout has them: 64 hex digits and
// ".bin", 68 bytes.
func blockName(p []byte, i uint64) string {
	r := rand.NewPCG(i, 1)
	var raw [32]byte
	for j := range raw {
		raw[j] = byte(r.Uint64())
	}
	return string(append(hex.AppendEncode(p[:0], raw[:]), ".bin"...))
}

// BenchmarkMemory reports what an entry costs at a million entries with names
// of 68 bytes: by our own count, and by the heap's.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		before := harness.HeapBytes()
		x := New()
		buf := make([]byte, 0, 80)
		for i := range uint64(million) {
			add(x, Root, blockName(buf, i), fileMode)
		}
		heap := harness.HeapBytes() - before
		b.ReportMetric(float64(x.Bytes())/million, "bytes/entry")
		b.ReportMetric(float64(heap)/million, "heap-bytes/entry")
		runtime.KeepAlive(x)
	}
}
