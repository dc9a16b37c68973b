package publish

import (
	"strings"
	"testing"
)

// TestTemplates shows how paths of engines are read.
func TestTemplates(t *testing.T) {
	const vllm = "meta-llama_Llama_c78c9e79d404_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin"
	const lmcache = "m@0x{rank}@{group}@{hash}.data"
	cases := []struct {
		template, path    string
		group, hash, rank string // hash "": it does not fit
	}{
		{defaultTemplate, "g0/9f08", "g0", "9f08", ""},
		{defaultTemplate, "g0/a/b", "", "", ""},
		{defaultTemplate, "9f08", "", "", ""},
		{"{hash}", "9f08", "", "9f08", ""},
		{"g{group}/{hash}", "g12/9f08", "12", "9f08", ""},
		{"g{group}/{hash}", "x12/9f08", "", "", ""},
		{vllm, "meta-llama_Llama_c78c9e79d404_r3/9f0/8a_g1/9f08a77.bin", "1", "9f08a77", "3"},
		{vllm, "meta-llama_Llama_c78c9e79d404_r3/9f0/8b_g1/9f08a77.bin", "", "", ""}, // parts disagree
		{vllm, "meta-llama_Llama_c78c9e79d404_r3/9f0/8a_g1/9f08a77.tmp", "", "", ""},
		{vllm, "meta-llama_Llama_c78c9e79d404_rx/9f0/8a_g1/9f08a77.bin", "", "", ""},
		{vllm, "meta-llama_Llama_c78c9e79d404_r3/9f0/8a_g1/9f0.bin", "", "", ""}, // hash too short
		{vllm, "other_r3/9f0/8a_g1/9f08a77.bin", "", "", ""},
		{"{hash:3:}-{hash}", "cd-abccd", "", "abccd", ""},
		{"{hash:3:}-{hash}", "d-abccd", "", "", ""},
		{"{hash::2}/{hash}", "ab/abcd", "", "abcd", ""},
		{"{group}_{hash}", "a_b_c", "a", "b_c", ""},
		{"{group}-{hash}-{hash}", "a-b-c-c", "a-b", "c", ""}, // the shortest group does not fit
		{"{group}/{group}_{hash}", "g0/g0_ab", "g0", "ab", ""},
		{"{group}/{group}_{hash}", "g0/g1_ab", "", "", ""},
		{"m@{rank}@{hash}@bf16.pt", "m@0@9f08@bf16.pt", "", "9f08", "0"},
		{"{hash}_m_{rank}_8.bin", "9f08_m_7_8.bin", "", "9f08", "7"},
		// LMCache's multi-process mode: since June 2026, before, with a salt (only the form text
		// has its hash).
		{lmcache, "m@0x02010201@0@9f08.data", "0", "9f08", "02010201"},
		{lmcache, "m@0x02010201@a@9f08.data", "a", "9f08", "02010201"},
		{lmcache, "m@0x02010201@9f08.data", "", "", ""},
		{lmcache, "m@0x02010201@0@9f08@alice.data", "0", "9f08@alice", "02010201"},
		{"m@0x{rank}@{group}@{hash}@alice.data", "m@0x02010201@0@9f08@alice.data", "0", "9f08", "02010201"},
		{"m@0x{rank}@{hash}.data", "m@0x02010201@0@9f08.data", "", "0@9f08", "02010201"},
		{"{hash}", "", "", "", ""},
	}
	for _, c := range cases {
		tm, err := parseTemplate(c.template)
		if err != nil {
			t.Errorf("%s: %v", c.template, err)
			continue
		}
		m, ok := matchPath(tm, []byte(c.path))
		if ok != (c.hash != "") {
			t.Errorf("%s in %s: fits: %v", c.template, c.path, ok)
		} else if ok && (string(m.group) != c.group || string(m.hash) != c.hash || string(m.rank) != c.rank) {
			t.Errorf("%s in %s: got %q %q %q", c.template, c.path, m.group, m.hash, m.rank)
		}
	}
}

// FuzzMatch shows that nothing panics, and that a match gives the path again.
func FuzzMatch(f *testing.F) {
	f.Add("r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin", "r1/abc/de_g0/abcdef.bin")
	f.Add("{hash:1:}.{group}-{hash}", "b.x-ab")
	f.Fuzz(func(t *testing.T, text, path string) {
		tm, err := parseTemplate(text)
		if err != nil || len(path) > 64 || strings.Count(text, "{") > 4 {
			return
		}
		if m, ok := matchPath(tm, []byte(path)); ok && !m.agrees(tm) {
			t.Errorf("%q in %q: %q %q %q", text, path, m.group, m.hash, m.rank)
		}
	})
}
