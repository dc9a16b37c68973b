package query

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of errors, in bytes: requests have names and values of up to 16 MiB, which are not to be
// sent back.
const (
	maxError   = 1 << 10
	maxPointer = 1 << 10
	maxDotted  = 256 // of a pointer in a text
	shown      = 64  // of a name or value in a text
)

// requestError says what is wrong with a request. It is an answer.
type requestError struct {
	field string // JSON Pointer to the part that is to blame; empty: none in particular
	why   string
}

// Error returns the reason with the part in front, as a programmer would write it:
// "hashes[17]: got number, want string".
func (e *requestError) Error() string {
	text := e.why
	if e.field != "" {
		text = dotted(e.field) + ": " + text
	}
	return shorten(text, maxError)
}

// faulty makes a requestError about a part of the request.
func faulty(field, format string, args ...any) *requestError {
	return &requestError{field: clipPointer(field), why: fmt.Sprintf(format, args...)}
}

// element returns the pointer to the i-th element of a list.
func element(list string, i int) string { return list + "/" + strconv.Itoa(i) }

// pointerText decodes what a JSON Pointer escapes.
var pointerText = strings.NewReplacer("~1", "/", "~0", "~")

// pointerName encodes a name as part of a JSON Pointer.
var pointerName = strings.NewReplacer("~", "~0", "/", "~1")

// clipPointer cuts a pointer that is too long for an answer, between characters.
func clipPointer(pointer string) string {
	if len(pointer) <= maxPointer {
		return pointer
	}
	return strings.TrimSuffix(clip(pointer, maxPointer), "~") // half an escape
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
		name := pointerText.Replace(part)
		if len(name) > shown {
			name = clip(name, shown) + "..."
		}
		b.WriteString(name)
	}
	return b.String()
}

// clip returns the beginning of a text, at most limit bytes, cut between characters.
func clip[T ~string | ~[]byte](text T, limit int) T {
	if len(text) <= limit {
		return text
	}
	for end := limit; end > limit-utf8.UTFMax; end-- {
		if utf8.RuneStart(text[end]) {
			return text[:end]
		}
	}
	return text[:limit] // it is not UTF-8
}

// shorten returns a text of at most limit bytes, with dots at its end if it was cut.
func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return clip(text, limit-len("...")) + "..."
}

// quoted returns a text for errors, cut if it is long.
func quoted[T ~string | ~[]byte](text T) string {
	if len(text) > shown {
		return strconv.Quote(string(clip(text, shown))) + "..."
	}
	return strconv.Quote(string(text))
}
