package query

import (
	"strconv"

	"github.com/kvfs/kvfs/tiers/block"
)

// element returns the pointer to the i-th element of a list.
func element(list string, i int) string { return list + "/" + strconv.Itoa(i) }

// quoted quotes a text for errors. It cuts a long one.
func quoted[T ~string | ~[]byte](text T) string {
	if cut := block.Clip(text, block.Shown-len("...")); len(cut) < len(text) {
		return strconv.Quote(string(cut)) + "..."
	}
	return strconv.Quote(string(text))
}
