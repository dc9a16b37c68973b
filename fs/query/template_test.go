package query

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

// vllmTemplate is how vLLM's file tier names blocks.
const vllmTemplate = "meta-llama_Llama_c78c9e79d404_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin"

// TestTemplate shows what paths templates give.
func TestTemplate(t *testing.T) {
	for _, c := range []struct{ template, group, hash, want string }{
		{"{group}/{hash}", "g0", "9f08", "g0/9f08"},
		{"{hash}", "", "9f08", "9f08"},
		{"x/{hash}.bin", "unused", "9f08", "x/9f08.bin"},
		{vllmTemplate, "3", "abcdef", "meta-llama_Llama_c78c9e79d404_r7/abc/de_g3/abcdef.bin"},
		{"{hash:0:3}/{hash:3:5}", "", "abcde", "abc/de"},
		{"{hash:0:3}/{hash:3:5}", "", "abcd", ""},
		{"{hash::3}/{hash:3:}", "", "abcd", "abc/d"},
		{"{hash::3}/{hash:3:}", "", "abc", ""},
		{"{group}{group}/{hash:1:2}{rank}", "g", "abc", "gg/b7"},
		{"{hash}", "", strings.Repeat("x", block.MaxPath), strings.Repeat("x", block.MaxPath)},
		{"{hash}", "", strings.Repeat("x", block.MaxPath+1), ""},
		{"{group}/{hash}", strings.Repeat("x", block.MaxPath), "h", ""},
		{strings.Repeat("{hash}", 600), "", "12345678", ""},
	} {
		parts, err := (&nameList{template: []byte(c.template)}).parts()
		if err != nil {
			t.Fatal(c.template, err)
		}
		l, err := newLayout(parts, []byte(c.group), "/group")
		if err != nil {
			t.Fatal(c.template, err)
		}
		got, ok := l.appendPath([]byte("before"), []byte(c.hash), 7)
		if string(got) != "before"+c.want || ok != (c.want != "") {
			t.Errorf("%s of %.10q, %.10q: got %q, %t, want %q", c.template, c.group, c.hash, got, ok, c.want)
		}
	}
}

// TestHex compares with package hex.
func TestHex(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for n := range 600 {
		src := every
		if n > 0 {
			src = make([]byte, n%70)
			for i := range src {
				src[i] = byte(r.Uint32())
			}
		}
		if got, want := string(appendHex([]byte("x"), src)), fmt.Sprint("x", hex.EncodeToString(src)); got != want {
			t.Fatalf("%x: got %s", src, got)
		}
	}
}
