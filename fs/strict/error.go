package strict

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of errors, in bytes. A request may have names and values of up to 16 MiB, and these are
// not sent back.
const (
	MaxText    = 1 << 10
	MaxPointer = 1 << 10 // of a JSON Pointer
	maxDotted  = 256     // of a pointer in a text
)

// Error says what is wrong with a request. It becomes the answer.
type Error struct {
	Part string // JSON Pointer to the faulty part; empty: none in particular
	Why  string
}

// Error returns the reason after the faulty part in a programmer's notation: "hashes[17]: got
// number, want string".
func (e *Error) Error() string {
	text := e.Why
	if e.Part != "" {
		text = Dotted(e.Part) + ": " + text
	}
	return block.Shorten(text, MaxText)
}

// Field returns the JSON Pointer to the faulty part.
func (e *Error) Field() string { return e.Part }

// Faulty makes an Error about a part of the request.
func Faulty(field, format string, args ...any) *Error {
	return &Error{Part: clipPointer(field), Why: fmt.Sprintf(format, args...)}
}

// pointerText decodes the escapes of a JSON Pointer.
var pointerText = strings.NewReplacer("~1", "/", "~0", "~")

// PointerName encodes a name as part of a JSON Pointer.
var PointerName = strings.NewReplacer("~", "~0", "/", "~1")

// clipPointer cuts a pointer that is too long for an answer. It cuts between characters.
func clipPointer(pointer string) string {
	if len(pointer) <= MaxPointer {
		return pointer
	}
	return strings.TrimSuffix(block.Clip(pointer, MaxPointer), "~") // half an escape
}

// Dotted turns "/set/gemma/groups/0" into "set.gemma.groups[0]".
func Dotted(pointer string) string {
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
