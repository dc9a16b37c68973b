package template_test

import (
	"fmt"

	"github.com/kvfs/kvfs/tiers/template"
)

func ExampleParse() {
	t, err := template.Parse([]byte("{group}/{hash:0:2}/{hash}"))
	fmt.Println(len(t), t.Has(template.Group), t.Has(template.Rank), err)

	_, err = template.Parse([]byte("{group}/{name}"))
	fmt.Println(err)
	// Output:
	// 5 true false <nil>
	// "{name}" at byte 8 is none of {group}, {rank}, {hash}, {hash:from:to}
}
