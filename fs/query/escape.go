package query

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape returns a name for printing. It escapes characters that a terminal would obey, bytes that
// are no character, and backslashes, as Go does. Unescape brings the name back.
func Escape(name string) string {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, odd) {
		return name
	}
	var b strings.Builder
	for len(name) > 0 {
		r, n := utf8.DecodeRuneInString(name)
		if odd(r) || r == utf8.RuneError && n == 1 {
			quoted := strconv.Quote(name[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(name[:n])
		}
		name = name[n:]
	}
	return b.String()
}

func odd(r rune) bool { return r == '\\' || !unicode.IsPrint(r) }

// Unescape returns the name for an escaped text. Characters without an escape stand for themselves.
// It fails with strconv.ErrSyntax.
func Unescape(text string) (string, error) {
	var name []byte
	for {
		plain, rest, escaped := strings.Cut(text, `\`)
		name = append(name, plain...)
		if !escaped {
			return string(name), nil
		}
		r, wide, rest, err := strconv.UnquoteChar(`\`+rest, 0)
		if err != nil {
			return "", err
		}
		if wide {
			name = utf8.AppendRune(name, r)
		} else {
			name = append(name, byte(r))
		}
		text = rest
	}
}
