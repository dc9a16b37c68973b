package query

import (
	"strconv"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// readSpec reads a spec. What it means is judged by hybrid.New.
func readSpec(r *reader, field string) (spec hybrid.Spec) {
	r.object(field, func(name []byte, field string) {
		switch string(name) {
		case "hash_block_size":
			spec.HashBlockSize = r.integer(field)
		case "scheduler_block_size":
			spec.SchedulerBlockSize = r.integer(field)
		case "cache_block_size":
			spec.CacheBlockSize = r.integer(field)
		case "eagle":
			spec.Eagle = r.bool(field)
		case "retention_interval":
			interval := r.integer(field)
			spec.Retention = &interval
		case "prefill_context_parallel":
			spec.PrefillContext = r.integer(field)
		case "decode_context_parallel":
			spec.DecodeContext = r.integer(field)
		case "groups":
			spec.Groups = []hybrid.Group{}
			r.list(field, hybrid.MaxGroups, func(i int) {
				spec.Groups = append(spec.Groups, readGroup(r, element(field, i)))
			})
		default:
			r.fail(faulty(field, "there is no such member"))
		}
	})
	return spec
}

func readGroup(r *reader, field string) (g hybrid.Group) {
	r.object(field, func(name []byte, field string) {
		switch string(name) {
		case "name":
			g.Name = string(r.text(field))
		case "kind":
			g.Kind = hybrid.Kind(r.word(field))
		case "block_size":
			g.BlockSize = r.integer(field)
		case "window":
			g.Window = r.integer(field)
		case "chunk":
			g.Chunk = r.integer(field)
		case "mode":
			g.Mode = string(r.word(field))
		case "variant":
			g.Variant = r.integer(field)
		case "eagle":
			g.Eagle = r.bool(field)
		case "uniform":
			g.Uniform = r.bool(field)
		case "ranks":
			g.Ranks = r.integer(field)
		default:
			r.fail(faulty(field, "there is no such member"))
		}
	})
	return g
}

// appendSpec appends a spec as readSpec reads it, with all that is not left out by default.
func appendSpec(out []byte, s *hybrid.Spec) []byte {
	out = append(out, `{"hash_block_size": `...)
	out = strconv.AppendInt(out, int64(s.HashBlockSize), 10)
	out = appendNumber(out, "scheduler_block_size", s.SchedulerBlockSize)
	out = appendNumber(out, "cache_block_size", s.CacheBlockSize)
	out = appendBool(out, "eagle", s.Eagle)
	if s.Retention != nil {
		out = appendNumber(out, "retention_interval", *s.Retention)
	}
	out = appendNumber(out, "prefill_context_parallel", s.PrefillContext)
	out = appendNumber(out, "decode_context_parallel", s.DecodeContext)
	out = append(out, `, "groups": [`...)
	for i, g := range s.Groups {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = appendText(append(out, `{"name": `...), g.Name)
		out = appendMember(out, "kind", string(g.Kind))
		out = appendNumber(out, "block_size", g.BlockSize)
		if g.Window != 0 {
			out = appendNumber(out, "window", g.Window)
		}
		if g.Chunk != 0 {
			out = appendNumber(out, "chunk", g.Chunk)
		}
		out = appendMember(out, "mode", g.Mode)
		out = appendBool(out, "eagle", g.Eagle)
		if g.Ranks != 0 {
			out = appendNumber(out, "ranks", g.Ranks)
		}
		out = appendNumber(out, "variant", g.Variant)
		out = append(appendBool(out, "uniform", g.Uniform), '}')
	}
	return append(out, "]}"...)
}

// appendBool appends a further member of an object.
func appendBool(out []byte, name string, b bool) []byte {
	out = append(append(append(out, `, "`...), name...), `": `...)
	return strconv.AppendBool(out, b)
}
