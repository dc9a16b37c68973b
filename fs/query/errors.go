package query

import (
	"fmt"
	"strconv"
	"strings"
)

// requestError says what is wrong with a request. It is an answer.
type requestError struct {
	field string // JSON Pointer to the part that is to blame; empty: none in particular
	why   string
}

// Error returns the reason with the part in front, as a programmer would write it:
// "hashes[17]: got number, want string".
func (e *requestError) Error() string {
	if e.field == "" {
		return e.why
	}
	return dotted(e.field) + ": " + e.why
}

// faulty makes a requestError about a part of the request.
func faulty(field, format string, args ...any) *requestError {
	return &requestError{field: field, why: fmt.Sprintf(format, args...)}
}

// element returns the pointer to the i-th element of a list.
func element(list string, i int) string { return list + "/" + strconv.Itoa(i) }

// pointerText decodes what a JSON Pointer escapes.
var pointerText = strings.NewReplacer("~1", "/", "~0", "~")

// pointerName encodes a name as part of a JSON Pointer.
var pointerName = strings.NewReplacer("~", "~0", "/", "~1")

// dotted turns "/set/gemma/groups/0" into "set.gemma.groups[0]".
func dotted(pointer string) string {
	var b strings.Builder
	for i, part := range strings.Split(pointer[1:], "/") {
		if _, err := strconv.ParseUint(part, 10, 63); err == nil && i > 0 {
			b.WriteString("[" + part + "]")
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(pointerText.Replace(part))
	}
	return b.String()
}

// shown is the length up to which a faulty text is repeated in an error.
const shown = 64

// quoted returns a text for errors, cut if it is long.
func quoted(text []byte) string {
	if len(text) > shown {
		return strconv.Quote(string(text[:shown])) + "..."
	}
	return strconv.Quote(string(text))
}
