package scalar

import "fmt"

// Kind is a sentinel of which only the identity counts: it adds nothing to the
// text of the violation that wraps it.
type Kind string

// Error returns the name of the kind.
func (k Kind) Error() string { return string(k) }

// The kinds of violation. Test with errors.Is.
const (
	ErrSyntax    = Kind("syntax")    // not YAML, not JSON, a second document, no mapping
	ErrUnknown   = Kind("unknown")   // a key, variable or flag that does not exist
	ErrDuplicate = Kind("duplicate") // a key given twice
	ErrType      = Kind("type")      // another type than the setting has
	ErrUnit      = Kind("unit")      // a size or duration without a unit, or with an unknown one
	ErrRange     = Kind("range")     // negative, too small, too large
	ErrEnum      = Kind("enum")      // not one of the values
	ErrInvalid   = Kind("invalid")   // any other bad value, or values that exclude each other
)

// violation is a text with a kind.
type violation struct {
	kind Kind
	text string
}

// Violate makes a violation.
func Violate(k Kind, format string, args ...any) error {
	return &violation{kind: k, text: fmt.Sprintf(format, args...)}
}

// Error returns the text.
func (v *violation) Error() string { return v.text }

// Unwrap returns the kind.
func (v *violation) Unwrap() error { return v.kind }
