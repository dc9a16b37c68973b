package query

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of errors, in bytes. A request may have names and values of up to 16 MiB, and these are
// not sent back.
const (
	maxError   = 1 << 10
	maxPointer = 1 << 10
	maxDotted  = 256 // of a pointer in a text
)

// requestError says what is wrong with a request. It becomes the answer.
type requestError struct {
	field string // JSON Pointer to the faulty part; empty: none in particular
	why   string
}

// Error returns the reason after the faulty part in a programmer's notation: "hashes[17]: got
// number, want string".
func (e *requestError) Error() string {
	text := e.why
	if e.field != "" {
		text = dotted(e.field) + ": " + text
	}
	return block.Shorten(text, maxError)
}

// faulty makes a requestError about a part of the request.
func faulty(field, format string, args ...any) *requestError {
	return &requestError{field: clipPointer(field), why: fmt.Sprintf(format, args...)}
}

// element returns the pointer to the i-th element of a list.
func element(list string, i int) string { return list + "/" + strconv.Itoa(i) }

// pointerText decodes the escapes of a JSON Pointer.
var pointerText = strings.NewReplacer("~1", "/", "~0", "~")

// pointerName encodes a name as part of a JSON Pointer.
var pointerName = strings.NewReplacer("~", "~0", "/", "~1")

// clipPointer cuts a pointer that is too long for an answer. It cuts between characters.
func clipPointer(pointer string) string {
	if len(pointer) <= maxPointer {
		return pointer
	}
	return strings.TrimSuffix(block.Clip(pointer, maxPointer), "~") // half an escape
}

// dotted turns "/set/gemma/groups/0" into "set.gemma.groups[0]".
func dotted(pointer string) string {
	var b strings.Builder
	for i, part := range strings.Split(pointer[1:], "/") {
		if b.Len() > maxDotted {
			b.WriteString("...")
			break
		}
		if _, err := strconv.ParseUint(part, 10, 63); err == nil && i > 0 {
			b.WriteString("[" + part + "]")
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(block.Shorten(pointerText.Replace(part), block.Shown))
	}
	return b.String()
}

// quoted quotes a text for errors. It cuts a long one.
func quoted[T ~string | ~[]byte](text T) string {
	if cut := block.Clip(text, block.Shown-len("...")); len(cut) < len(text) {
		return strconv.Quote(string(cut)) + "..."
	}
	return strconv.Quote(string(text))
}
