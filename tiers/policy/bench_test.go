package policy

import (
	"runtime"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

const million = 1 << 20

// fill returns a policy with a million blocks of 1 MiB, half of them used again.
func fill(b *testing.B, name string) Policy {
	p := open(b, name, million<<20)
	for id := range uint32(million) {
		p.Add(id, uint64(id), 1<<20)
		if id%2 == 0 {
			p.Touch(id, 0)
		}
	}
	return p
}

// BenchmarkMemory reports bytes of heap a block at a million blocks, and bytes a
// ghost once as many ghosts have come as the policy keeps.
func BenchmarkMemory(b *testing.B) {
	for _, name := range names {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before := harness.HeapBytes()
				p := fill(b, name)
				full := harness.HeapBytes() - before
				b.ReportMetric(float64(full)/million, "bytes/block")
				p.Victims(func(uint32) Verdict { return Evict })
				ghosts := 0
				switch p := p.(type) {
				case *ARC:
					ghosts = p.b.ghosts.count(ghostOnce) + p.b.ghosts.count(ghostOften)
				case *MQ:
					ghosts = p.b.ghosts.count(ghostOnce)
				case *S3FIFO:
					ghosts = p.b.ghosts.count(ghostOnce)
				}
				if ghosts > 0 {
					b.ReportMetric(float64(harness.HeapBytes()-before-full)/float64(ghosts), "bytes/ghost")
				}
				runtime.KeepAlive(p)
			}
		})
	}
}
