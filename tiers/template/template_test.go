package template

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
)

// TestParse shows the grammar: the parts of a template, whether it can read paths, and the errors
// of wrong ones.
func TestParse(t *testing.T) {
	const unknown = ` at byte 0 is none of {group}, {rank}, {hash}, {hash:from:to}`
	for _, c := range []struct{ text, sample, reading, err string }{
		{text: "{group}/{hash}", sample: "x/x"},
		{text: "{hash}", sample: "x"},
		{text: "m r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin", sample: "m rx/x/x_gx/x.bin"},
		{text: "{hash:0:3}{hash}", sample: "xx"},
		{text: "{hash:3:}/{hash::2}/{hash::}/{hash}", sample: "x/x/x/x"},
		{text: "g/{hash:0:3}", sample: "g/x", reading: "has only parts of the hash"},
		{text: "a{group}{hash}", sample: "axx", reading: "nothing between them"},
		{text: "{hash:3:}{hash}", sample: "xx", reading: "nothing between them"},
		{text: "{hash:0:255}/{hash}", sample: "x/x"},
		{text: "{hash:0:256}/{hash}", sample: "x/x", reading: "after byte 255"},
		{text: "{hash:255:}/{hash}", sample: "x/x", reading: "after byte 255"},
		{text: "{hash:0:4096}", sample: "x", reading: "after byte 255"},

		{err: "has no {hash}: all blocks would have one name"},
		{text: "{group}/x", err: "has no {hash}: all blocks would have one name"},
		{text: "{group}/{hash", err: "the { at byte 8 is not closed"},
		{text: "{hash}}", err: "the } at byte 6 has no { before it"},
		{text: "a{hsh}", err: `"{hsh}" at byte 1 is none of {group}, {rank}, {hash}, {hash:from:to}`},
		{text: "{}{hash}", err: `"{}"` + unknown},
		{text: "{{hash}}", err: `"{{hash}"` + unknown},
		{text: "{Hash}", err: `"{Hash}"` + unknown},
		{text: "{hash:3}", err: `"{hash:3}"` + unknown},
		{text: "{hash:}", err: `"{hash:}"` + unknown},
		{text: "{hash:3:3}", err: `"{hash:3:3}"` + unknown},
		{text: "{hash::0}", err: `"{hash::0}"` + unknown},
		{text: "{hash:4:3}", err: `"{hash:4:3}"` + unknown},
		{text: "{hash:a:b}", err: `"{hash:a:b}"` + unknown},
		{text: "{hash:-3:3}", err: `"{hash:-3:3}"` + unknown},
		{text: "{hash:1:+3}", err: `"{hash:1:+3}"` + unknown},
		{text: "{hash:1:2:3}", err: `"{hash:1:2:3}"` + unknown},
		{text: "{hash:1:4097}", err: `"{hash:1:4097}"` + unknown},
		{text: "{hash:4294967296:}", err: `"{hash:4294967296:}"` + unknown},
		{text: "{" + strings.Repeat("x", 100) + "}", err: `"{` + strings.Repeat("x", 63) + `"` + unknown},
		{text: strings.Repeat("x", 4097), err: "has 4097 bytes, a path has at most 4096"},
	} {
		got, err := Parse([]byte(c.text))
		if c.err != "" {
			if err == nil || err.Error() != c.err || !errors.Is(err, block.ErrInvalid) {
				t.Errorf("%.70q: got %v, want %s", c.text, err, c.err)
			}
			continue
		}
		if err != nil || string(got.Sample()) != c.sample {
			t.Errorf("%q: got %q, %v, want %q", c.text, got.Sample(), err, c.sample)
		}
		err = got.Reversible()
		if (err == nil) != (c.reading == "") || err != nil && (!strings.Contains(err.Error(), c.reading) || !errors.Is(err, block.ErrInvalid)) {
			t.Errorf("%q: got %v, want %q", c.text, err, c.reading)
		}
	}
}
