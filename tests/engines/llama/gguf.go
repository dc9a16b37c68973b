package llama

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
)

// Model is the shape of a model.
type Model struct {
	Layers  int
	Width   int
	Heads   int
	KVHeads int // heads of keys and values; divides Heads
	Feed    int // width of the feed-forward layers
	Context int // tokens
}

// Small is as small as it can be with a state file of more than 1 MiB: layers *
// (keys + values) * width * 2 bytes of f16 are 4 KiB per token, and f32 weights
// come to 11 MB.
func Small() Model {
	return Model{Layers: 4, Width: 256, Heads: 4, KVHeads: 4, Feed: 512, Context: 1024}
}

// Parameters returns the number of weights.
func (m Model) Parameters() int {
	n := uint64(0)
	for _, t := range m.tensors() {
		n += t.values()
	}
	return int(n)
}

// Vocabulary: three control tokens and one token for each byte. llama.cpp
// refuses to decode without a tokenizer, and a tokenizer of type llama without
// all 256 byte tokens.
const (
	tokenUnknown = iota
	tokenStart
	tokenEnd
	firstByteToken
	vocabulary = firstByteToken + 256
)

// Types of metadata values in a GGUF file.
const (
	ggufUint32  = 4
	ggufInt32   = 5
	ggufFloat32 = 6
	ggufString  = 8
	ggufArray   = 9
)

// Types of tokens in a GGUF file.
const (
	ggufTokenUnknown = 2
	ggufTokenControl = 3
	ggufTokenByte    = 6
)

// ggufAlign is the alignment of tensor data that readers assume when the file
// does not name one.
const ggufAlign = 32 // bytes

// ggufTensor is a tensor of f32. dims is in GGUF's order: the row length first.
type ggufTensor struct {
	name string
	dims []uint64
}

// values returns the number of elements.
func (t ggufTensor) values() uint64 {
	n := uint64(1)
	for _, d := range t.dims {
		n *= d
	}
	return n
}

// bytes returns the size of the tensor in the file.
func (t ggufTensor) bytes() uint64 { return alignUp(4 * t.values()) }

func alignUp(n uint64) uint64 { return (n + ggufAlign - 1) &^ (ggufAlign - 1) }

// WriteModel writes a llama model with random weights to a new file at path.
// The same seed gives the same file.
func WriteModel(path string, m Model, seed uint64) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	w := &ggufWriter{w: bufio.NewWriterSize(f, 1<<20)}
	w.model(m, rand.New(rand.NewPCG(seed, 0)))
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	return nil
}

// tensors lists the tensors in the order of their data.
func (m Model) tensors() []ggufTensor {
	width, feed, kv := uint64(m.Width), uint64(m.Feed), uint64(m.Width/m.Heads*m.KVHeads)
	t := []ggufTensor{
		{"token_embd.weight", []uint64{width, vocabulary}},
		{"output_norm.weight", []uint64{width}},
		{"output.weight", []uint64{width, vocabulary}},
	}
	for i := range m.Layers {
		for _, b := range []ggufTensor{
			{"attn_norm", []uint64{width}},
			{"attn_q", []uint64{width, width}},
			{"attn_k", []uint64{width, kv}},
			{"attn_v", []uint64{width, kv}},
			{"attn_output", []uint64{width, width}},
			{"ffn_norm", []uint64{width}},
			{"ffn_gate", []uint64{width, feed}},
			{"ffn_up", []uint64{width, feed}},
			{"ffn_down", []uint64{feed, width}},
		} {
			t = append(t, ggufTensor{fmt.Sprintf("blk.%d.%s.weight", i, b.name), b.dims})
		}
	}
	return t
}

// ggufWriter writes the parts of a GGUF file, version 3. Errors stick to w and
// come back from its Flush.
type ggufWriter struct {
	w *bufio.Writer
	n uint64 // bytes written
}

// model writes the whole file.
func (g *ggufWriter) model(m Model, r *rand.Rand) {
	meta := m.metadata()
	tensors := m.tensors()
	g.raw([]byte("GGUF"))
	g.u32(3)
	g.u64(uint64(len(tensors)))
	g.u64(uint64(len(meta)))
	for _, datum := range meta {
		g.str(datum.key)
		g.value(datum.value)
	}
	var offset uint64
	for _, t := range tensors {
		g.str(t.name)
		g.u32(uint32(len(t.dims)))
		for _, d := range t.dims {
			g.u64(d)
		}
		g.u32(0) // f32
		g.u64(offset)
		offset += t.bytes()
	}
	g.pad()
	for _, t := range tensors {
		g.tensor(t, r)
	}
}

// tensor writes weights that keep the variance of what passes through them, so
// that no layer saturates; norms are 1.
func (g *ggufWriter) tensor(t ggufTensor, r *rand.Rand) {
	scale := 1 / math.Sqrt(float64(t.dims[0]))
	row := make([]byte, 4*t.dims[0])
	for range t.values() / t.dims[0] {
		for i := range t.dims[0] {
			v := 1.0
			if len(t.dims) > 1 {
				v = r.NormFloat64() * scale * weightGain
			}
			binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(float32(v)))
		}
		g.raw(row)
	}
	g.pad()
}

// weightGain is above 1 to sharpen attention: the next token then depends on
// single earlier tokens and not on their mean.
const weightGain = 1.5

// metadatum is one key of the file's metadata.
type metadatum struct {
	key   string
	value any // uint32, float32, string, []string, []float32 or []int32
}

func (m Model) metadata() []metadatum {
	tokens, scores, types := modelVocabulary()
	return []metadatum{
		{"general.architecture", "llama"},
		{"general.name", "random"},
		{"llama.context_length", uint32(m.Context)},
		{"llama.embedding_length", uint32(m.Width)},
		{"llama.block_count", uint32(m.Layers)},
		{"llama.feed_forward_length", uint32(m.Feed)},
		{"llama.attention.head_count", uint32(m.Heads)},
		{"llama.attention.head_count_kv", uint32(m.KVHeads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.rope.dimension_count", uint32(m.Width / m.Heads)},
		{"llama.vocab_size", uint32(vocabulary)},
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.tokens", tokens},
		{"tokenizer.ggml.scores", scores},
		{"tokenizer.ggml.token_type", types},
		{"tokenizer.ggml.unknown_token_id", uint32(tokenUnknown)},
		{"tokenizer.ggml.bos_token_id", uint32(tokenStart)},
		{"tokenizer.ggml.eos_token_id", uint32(tokenEnd)},
	}
}

// modelVocabulary returns text, score and type of each token.
func modelVocabulary() (tokens []string, scores []float32, types []int32) {
	tokens = []string{"<unk>", "<s>", "</s>"}
	types = []int32{ggufTokenUnknown, ggufTokenControl, ggufTokenControl}
	for b := range 256 {
		tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
		types = append(types, ggufTokenByte)
	}
	return tokens, make([]float32, len(tokens)), types
}

// value writes a metadata value with its type.
func (g *ggufWriter) value(v any) {
	switch v := v.(type) {
	case uint32:
		g.u32(ggufUint32)
		g.u32(v)
	case float32:
		g.u32(ggufFloat32)
		g.u32(math.Float32bits(v))
	case string:
		g.u32(ggufString)
		g.str(v)
	case []string:
		g.array(ggufString, len(v))
		for _, s := range v {
			g.str(s)
		}
	case []float32:
		g.array(ggufFloat32, len(v))
		for _, f := range v {
			g.u32(math.Float32bits(f))
		}
	case []int32:
		g.array(ggufInt32, len(v))
		for _, i := range v {
			g.u32(uint32(i))
		}
	}
}

func (g *ggufWriter) array(elem uint32, n int) {
	g.u32(ggufArray)
	g.u32(elem)
	g.u64(uint64(n))
}

func (g *ggufWriter) str(s string) {
	g.u64(uint64(len(s)))
	n, _ := io.WriteString(g.w, s)
	g.n += uint64(n)
}

func (g *ggufWriter) u32(v uint32) { g.raw(binary.LittleEndian.AppendUint32(nil, v)) }

func (g *ggufWriter) u64(v uint64) { g.raw(binary.LittleEndian.AppendUint64(nil, v)) }

func (g *ggufWriter) raw(p []byte) {
	n, _ := g.w.Write(p)
	g.n += uint64(n)
}

// pad fills up to the next aligned offset.
func (g *ggufWriter) pad() { g.raw(make([]byte, alignUp(g.n)-g.n)) }
