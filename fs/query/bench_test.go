package query

import (
	"context"
	"encoding/hex"
	"io"
	"testing"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/names"
)

// instantEngine finds everything in memory at no cost: what is measured with it is this package.
type instantEngine struct{ fakeEngine }

func (*instantEngine) Presences(_ [][]byte, _ names.PresenceOptions, out []names.Place) {
	for i := range out {
		out[i] = names.Place{Presence: driver.Hit}
	}
}

const vllmTemplate = "meta-llama_Llama_c78c9e79d404_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin"

// benchQuery asks with each engine, and reports keys a second.
func benchQuery(b *testing.B, request []byte, keys int, blocks map[string]names.Place, specs map[string]hybrid.Spec) {
	for name, engine := range map[string]Engine{"engine=none": &instantEngine{}, "engine=map": &fakeEngine{blocks: blocks}} {
		b.Run(name, func(b *testing.B) {
			s, err := New(Options{Engine: engine, Tiers: []string{"memory", "disk"}, Specs: specs})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Query(context.Background(), nil, request, io.Discard)
			}
			b.ReportMetric(float64(keys)*float64(b.N)/b.Elapsed().Seconds(), "keys/s")
			b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(keys)/float64(b.N), "ns/key")
		})
	}
}

// present returns the blocks of a group.
func present(prefix string, hashes []string) map[string]names.Place {
	blocks := map[string]names.Place{}
	for _, h := range hashes {
		blocks[prefix+h] = inMemory
	}
	return blocks
}

func BenchmarkExistsJSON(b *testing.B) {
	hashes := hashList(10_000)
	b.Run("native", func(b *testing.B) {
		benchQuery(b, []byte(`{"op": "exists", "group": "g0", "hashes": `+list(hashes)+`}`), len(hashes), present("g0/", hashes), nil)
	})
	b.Run("vllm", func(b *testing.B) {
		request := `{"op": "exists", "group": "0", "template": "` + vllmTemplate + `", "hashes": ` + list(hashes) + `}`
		benchQuery(b, []byte(request), len(hashes), nil, nil)
	})
	b.Run("keys", func(b *testing.B) {
		keys := make([]string, len(hashes))
		for i, h := range hashes {
			keys[i] = "g0/" + h
		}
		benchQuery(b, []byte(`{"op": "exists", "keys": `+list(keys)+`}`), len(hashes), present("g0/", hashes), nil)
	})
}

func BenchmarkExistsBinary(b *testing.B) {
	hashes := hashList(10_000)
	for _, c := range []struct{ name, template string }{{"native", ""}, {"vllm", vllmTemplate}} {
		b.Run(c.name, func(b *testing.B) {
			var raw []byte
			for _, h := range hashes {
				raw, _ = hex.AppendDecode(raw, []byte(h))
			}
			request := binaryForm{op: binaryExists, size: 32, count: len(hashes), subject: "g0", template: c.template, hashes: raw}.encode()
			benchQuery(b, request, len(hashes), present("g0/", hashes), nil)
		})
	}
}

// BenchmarkLongestHit asks for 4 groups of 4,000 blocks that are all there: two that look at
// everything and two windows.
func BenchmarkLongestHit(b *testing.B) {
	spec := hybrid.Spec{HashBlockSize: 16, Groups: []hybrid.Group{
		{Kind: hybrid.Full, BlockSize: 16}, {Kind: hybrid.Full, BlockSize: 16, Variant: 1},
		{Kind: hybrid.SlidingWindow, BlockSize: 16, Window: 1024}, {Kind: hybrid.SlidingWindow, BlockSize: 16, Window: 4096},
	}}
	hashes := hashList(4000)
	blocks := map[string]names.Place{}
	for _, group := range []string{"0/", "1/", "2/", "3/"} {
		for _, h := range hashes {
			blocks[group+h] = inMemory
		}
	}
	specs := map[string]hybrid.Spec{"s": spec}
	b.Run("JSON", func(b *testing.B) {
		benchQuery(b, []byte(`{"op": "longest_hit", "spec": "s", "hashes": `+list(hashes)+`}`), 4*len(hashes), blocks, specs)
	})
	b.Run("binary", func(b *testing.B) {
		var raw []byte
		for _, h := range hashes {
			raw, _ = hex.AppendDecode(raw, []byte(h))
		}
		request := binaryForm{op: binaryLongestHit, size: 32, count: len(hashes), subject: "s", hashes: raw}.encode()
		benchQuery(b, request, 4*len(hashes), blocks, specs)
	})
}
