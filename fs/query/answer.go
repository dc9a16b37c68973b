package query

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvfs/kvfs/fs/strict"
)

// appendText appends a JSON string. It replaces bytes that are not UTF-8 by U+FFFD.
func appendText[T ~string | ~[]byte](out []byte, text T) []byte {
	out, _ = jsontext.AppendQuote(out, text) // the error only says that bytes were replaced
	return out
}

// appendNumber appends a further member of an object.
func appendNumber(out []byte, name string, n int) []byte {
	out = append(append(append(out, `, "`...), name...), `": `...)
	return strconv.AppendInt(out, int64(n), 10)
}

// appendMember appends a further member of an object, if text is not empty.
func appendMember(out []byte, name, text string) []byte {
	if text == "" {
		return out
	}
	out = append(append(append(out, `, "`...), name...), `": `...)
	return appendText(out, text)
}

// appendBits appends '1' and '0' for a mask.
func appendBits(out []byte, mask []bool) []byte {
	for _, b := range mask {
		if b {
			out = append(out, '1')
		} else {
			out = append(out, '0')
		}
	}
	return out
}

// appendList appends a JSON list of numbers.
func appendList(out []byte, list []int) []byte {
	out = append(out, '[')
	for i, n := range list {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = strconv.AppendInt(out, int64(n), 10)
	}
	return append(out, ']')
}

// appendError appends the answer to a request that failed.
func appendError(out []byte, err *strict.Error) []byte {
	out = appendText(append(out, `{"error": `...), err.Error())
	out = appendMember(out, "field", err.Part)
	return append(out, "}\n"...)
}
