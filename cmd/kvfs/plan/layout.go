package plan

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// The engines whose files the package knows.
const (
	VLLM     = "vllm"
	SGLang   = "sglang"
	LMCache  = "lmcache"
	LlamaCpp = "llama.cpp"
)

// blockTokens are the tokens of a file by default: the block size of vLLM, the usual page size of SGLang with its
// hierarchical cache, the chunk size of LMCache. A file of llama.cpp is a whole request.
var blockTokens = map[string]int{"": 16, VLLM: 16, SGLang: 64, LMCache: 256, LlamaCpp: 0}

const (
	filePage      = 4096 // vLLM's files are whole pages
	stateKernel   = 16   // vLLM's attention blocks beside states are multiples of it
	chunkHeader   = 28   // bytes before a chunk of LMCache
	sglangPoolSWA = "swa"
)

// Group is the layers of one file, of each block.
type Group struct {
	Name        string      `json:"name"`
	Kind        hybrid.Kind `json:"kind"`
	Layers      int         `json:"layers"`
	Window      int         `json:"window,omitempty"`       // tokens
	Chunk       int         `json:"chunk,omitempty"`        // tokens
	BlockTokens int         `json:"block_tokens,omitempty"` // 0: one for each request
	FileBytes   int64       `json:"file_bytes"`
	Files       int         `json:"files"` // of each block, each of FileBytes
}

// blockBytes returns the bytes stored for a block.
func (g *Group) blockBytes() int64 { return g.FileBytes * int64(g.Files) }

// needed returns how many blocks of the given tokens the next request needs at most.
func (g *Group) needed(tokens float64) float64 {
	if g.BlockTokens == 0 || g.Kind == hybrid.Mamba {
		return 1
	}
	all := tokens / float64(g.BlockTokens)
	switch g.Kind {
	case hybrid.SlidingWindow:
		return min(all, float64(g.Window)/float64(g.BlockTokens)+1) // a window may begin within a block
	case hybrid.ChunkedLocal:
		return min(all, float64(g.Chunk)/float64(g.BlockTokens))
	}
	return all
}

// layout returns the groups of an engine, and adds its assumptions to notes.
func (z *sizer) layout(engine string, block int, notes *[]string) ([]Group, error) {
	switch engine {
	case VLLM:
		return z.vllm(block, notes)
	case SGLang:
		return z.sglang(block, notes), nil
	case LMCache:
		return z.lmcache(block, notes)
	case LlamaCpp:
		return nil, nil // files are requests: Make computes them
	}
	*notes = append(*notes, "no --engine: a block is one file of all ranks and of all layers of a kind; engines group and pad them otherwise")
	var groups []Group
	for i, c := range z.model.Classes {
		g := c.group(fmt.Sprint(i), block)
		g.FileBytes = z.token(c.Shape) * int64(block)
		if !c.Shape.grows() {
			g.FileBytes = z.state(c.Shape)
		}
		g.FileBytes *= z.copies(c.Shape) * int64(len(c.Layers))
		groups = append(groups, g)
	}
	if z.recurrent() {
		*notes = append(*notes, fmt.Sprintf("a state is written for each block of %d tokens, which is the most that there can be", block))
	}
	return groups, nil
}

// group returns the group of the layers of c in one file.
func (c *Class) group(name string, block int) Group {
	return Group{Name: name, Kind: c.Shape.Kind, Layers: len(c.Layers), Window: c.Shape.Window, Chunk: c.Shape.Chunk, BlockTokens: block, Files: 1}
}

// recurrent reports whether some layers have a state.
func (z *sizer) recurrent() bool {
	for _, c := range z.model.Classes {
		if !c.Shape.grows() {
			return true
		}
	}
	return false
}

// vllm groups layers like vLLM's hybrid KV cache manager. A group has as many layers as the rarest kind, or as the
// most frequent kind if that has less than half as many more. All blocks have the same size: groups with fewer layers
// are padded, and states are padded to the size of an attention block. A file has the blocks of all ranks. Source:
// vLLM, vllm/v1/core/kv_cache_utils.py.
func (z *sizer) vllm(block int, notes *[]string) ([]Group, error) {
	page, block, err := z.vllmPage(block, notes)
	if err != nil {
		return nil, err
	}
	least, most := len(z.model.Classes[0].Layers), 0
	for _, c := range z.model.Classes {
		least, most = min(least, len(c.Layers)), max(most, len(c.Layers))
	}
	size := least
	if float64(most) < 1.5*float64(least) {
		size = most
	}
	var groups []Group
	tensors := 0 // of the stage and group with most
	for _, c := range z.model.Classes {
		count := (len(c.Layers) + size - 1) / size
		for i := range count {
			g := c.group(fmt.Sprint(len(groups)), block)
			g.Layers = 0
			stages := make([]int, z.pp)
			for j := i; j < len(c.Layers); j += count {
				g.Layers++
				stages[z.stage(c.Layers[j])]++
			}
			for _, n := range stages {
				tensors = max(tensors, n)
			}
			groups = append(groups, g)
		}
	}
	slots := 0
	for i := range groups {
		g := &groups[i]
		g.FileBytes = page * int64(tensors) * int64(z.pp) * z.copies(Shape{Kind: g.Kind})
		g.FileBytes = (g.FileBytes + filePage - 1) / filePage * filePage
		slots += tensors * z.pp
	}
	z.vllmNotes(groups, slots, notes)
	return groups, nil
}

// vllmPage returns the bytes of a block of one layer on one rank, and the tokens of a block.
func (z *sizer) vllmPage(block int, notes *[]string) (page int64, tokens int, err error) {
	var token, state int64
	for _, c := range z.model.Classes {
		switch n := z.token(c.Shape); {
		case !c.Shape.grows():
			state = max(state, z.state(c.Shape))
		case token != 0 && n != token:
			return 0, 0, errors.New("--engine vllm: how it groups attention layers of different sizes is not known")
		default:
			token = n
		}
	}
	if token == 0 {
		return 0, 0, errors.New("--engine vllm: how it groups a model without attention layers is not known")
	}
	if state == 0 {
		return token * int64(block), block, nil
	}
	unit := token * stateKernel
	tokens = int((state+unit-1)/unit) * stateKernel
	if rounded := (block + stateKernel - 1) / stateKernel * stateKernel; rounded > tokens {
		tokens = rounded
	}
	if tokens > hybrid.MaxBlockSize {
		return 0, 0, fmt.Errorf("--engine vllm: blocks of %d tokens, of which attention is as large as a state, are over %d", tokens, hybrid.MaxBlockSize)
	}
	*notes = append(*notes,
		fmt.Sprintf("vLLM raises its blocks to %d tokens, so that attention is as large as a state; the attention backend may round further up", tokens),
		fmt.Sprintf("a state is written for each block of %d tokens, which is the most that there can be", tokens))
	return token * int64(tokens), tokens, nil
}

// vllmNotes adds the assumptions about the files of vLLM.
func (z *sizer) vllmNotes(groups []Group, slots int, notes *[]string) {
	add := func(format string, args ...any) { *notes = append(*notes, fmt.Sprintf(format, args...)) }
	add("a file is one block of vLLM (blocks_per_chunk 1): with more, give --block-tokens as many tokens as a file has")
	if len(groups) > 1 {
		add("groups are in the order of their first layers; config.json, which vLLM writes beside the blocks, lists them as they are")
		layers := 0
		for _, g := range groups {
			layers += g.Layers
		}
		if slots > layers {
			add("%d of %d layer slots are padding, that is %d %% of what is stored", slots-layers, slots, (slots-layers)*100/slots)
		}
	}
	if z.tp > 1 && z.model.Classes[0].Shape.Kind == hybrid.MLA {
		add("vLLM stores latent rows once with the replicated layout; releases without it store them %d times", z.tp)
	}
	if z.pp > 1 {
		add("each stage of --pp is counted as large as the one with most layers")
	}
}

// sglang has one file a page and rank. Layers with a window and states have further files, with the suffixes .swa and
// .mamba.
func (z *sizer) sglang(block int, notes *[]string) []Group {
	var groups []Group
	at := map[string]int{}
	for _, c := range z.model.Classes {
		pool := ""
		switch c.Shape.Kind {
		case hybrid.SlidingWindow, hybrid.ChunkedLocal:
			pool = sglangPoolSWA
		case hybrid.Mamba:
			pool = "mamba"
		}
		i, there := at[pool]
		if !there {
			i = len(groups)
			at[pool] = i
			g := c.group(pool, block)
			g.Layers, g.Files = 0, int(z.copies(c.Shape))*z.pp
			if pool == "mamba" {
				g.BlockTokens = 0
			}
			groups = append(groups, g)
		}
		g := &groups[i]
		g.Layers += len(c.Layers)
		g.FileBytes += z.stageBytes(c, block)
	}
	if len(groups) == 1 {
		groups[0].Name = "" // one group needs no name
	}
	if z.recurrent() {
		*notes = append(*notes, "one state is written for each request")
	}
	if z.pp > 1 {
		*notes = append(*notes, "each stage of --pp is counted as large as the one with most layers")
	}
	return groups
}

// stageBytes returns the bytes of a block that one rank stores for the layers of c, in the stage with most of them.
func (z *sizer) stageBytes(c Class, block int) int64 {
	only := func(s Shape) int64 {
		switch {
		case s != c.Shape:
			return 0
		case s.grows():
			return z.token(s) * int64(block)
		}
		return z.state(s)
	}
	return z.largest(only)
}

// lmcache has one file a chunk and rank, of all layers.
func (z *sizer) lmcache(block int, notes *[]string) ([]Group, error) {
	if z.recurrent() {
		return nil, errors.New("--engine lmcache: how it keeps recurrent states is not known")
	}
	g := z.model.Classes[0].group("", block)
	g.Kind, g.Window, g.Chunk = hybrid.Full, 0, 0
	if z.model.Classes[0].Shape.Kind == hybrid.MLA {
		g.Kind = hybrid.MLA
	}
	g.Layers = z.model.Layers
	g.Files = int(z.copies(Shape{Kind: g.Kind})) * z.pp
	g.FileBytes = z.largest(z.token)*int64(block) + chunkHeader
	*notes = append(*notes, fmt.Sprintf("a chunk begins with %d bytes of its own (save_chunk_meta, the default of LMCache)", chunkHeader),
		"layers with a window are stored whole, like the others")
	if z.pp > 1 {
		*notes = append(*notes, "each stage of --pp is counted as large as the one with most layers")
	}
	return []Group{g}, nil
}
