package query

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// reader reads one request in JSON. The first error stays; after it nothing is read.
type reader struct {
	dec     jsontext.Decoder
	buf     bytes.Buffer // of request: the decoder reads such without a copy
	request []byte
	side    []byte // strings that had escapes
	err     *requestError
}

// reset prepares for a request, or with nil forgets one.
func (r *reader) reset(request []byte) {
	r.request, r.err = request, nil
	r.buf = *bytes.NewBuffer(request)
	r.dec.Reset(&r.buf)
	// What was read may be in use as long as the request is.
	r.side = nil
}

func (r *reader) fail(err *requestError) {
	if r.err == nil {
		r.err = err
	}
}

// syntax keeps an error of the decoder.
func (r *reader) syntax(err error) {
	if errors.Is(err, io.EOF) {
		r.fail(&requestError{why: "the request is empty"})
		return
	}
	wrong, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		r.fail(&requestError{why: err.Error()})
		return
	}
	field := string(wrong.JSONPointer)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		r.fail(faulty(field, "is there twice"))
	case errors.Is(err, io.ErrUnexpectedEOF):
		r.fail(faulty(field, "the request ends too early, after %d bytes", len(r.request)))
	default:
		r.fail(faulty(field, "%v, at byte %d", wrong.Err, wrong.ByteOffset))
	}
}

// kindName names what a value is.
func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "bool"
	case '"':
		return "string"
	case '0':
		return "number"
	case '{':
		return "object"
	}
	return "list"
}

// begins reports whether the next value is of a kind.
func (r *reader) begins(kind jsontext.Kind) bool { return r.err == nil && r.dec.PeekKind() == kind }

// value returns the next value, which must be of a kind, as it stands in the request.
func (r *reader) value(field string, kind jsontext.Kind) []byte {
	if r.err != nil {
		return nil
	}
	got := r.dec.PeekKind()
	if got == 'f' && kind == 't' {
		got = 't'
	}
	if got != kind && got != 0 && got != '}' && got != ']' {
		r.fail(faulty(field, "got %s, want %s", kindName(got), kindName(kind)))
		return nil
	}
	v, err := r.dec.ReadValue()
	if err != nil {
		r.syntax(err)
		return nil
	}
	end := r.dec.InputOffset()
	return r.request[end-int64(len(v)) : end]
}

// object reads an object, calling member at each value with the name and the pointer to it.
func (r *reader) object(field string, member func(name []byte, field string)) {
	if !r.open(field, '{') {
		return
	}
	for r.err == nil && r.dec.PeekKind() != '}' {
		name := r.text(field)
		if r.err == nil {
			member(name, field+"/"+memberPointer(name))
		}
	}
	r.close()
}

// memberPointer returns a name as part of a pointer, without allocating for those that are
// common. It is cut if it is too long for one.
func memberPointer(name []byte) string {
	if m, ok := members[string(name)]; ok {
		return m.name
	}
	return pointerName.Replace(string(clip(name, maxPointer)))
}

// list reads a list, calling each at every element. It fails beyond limit elements.
func (r *reader) list(field string, limit int, each func(i int)) {
	if !r.open(field, '[') {
		return
	}
	for i := 0; r.err == nil && r.dec.PeekKind() != ']'; i++ {
		if i == limit {
			r.fail(faulty(field, "has more than %d elements", limit))
			return
		}
		each(i)
	}
	r.close()
}

func (r *reader) open(field string, kind jsontext.Kind) bool {
	if r.err != nil {
		return false
	}
	if got := r.dec.PeekKind(); got != kind && got != 0 {
		r.fail(faulty(field, "got %s, want %s", kindName(got), kindName(kind)))
		return false
	}
	return r.token()
}

func (r *reader) close() {
	if r.err == nil {
		r.token()
	}
}

func (r *reader) token() bool {
	if _, err := r.dec.ReadToken(); err != nil {
		r.syntax(err)
		return false
	}
	return true
}

// end checks that nothing follows.
func (r *reader) end() {
	if r.err != nil {
		return
	}
	if _, err := r.dec.ReadToken(); err == nil {
		r.fail(&requestError{why: "there is more than one value; ask again after the answer"})
	} else if !errors.Is(err, io.EOF) {
		r.syntax(err)
	}
}

// text reads a string. What it returns is part of the request unless there were escapes.
func (r *reader) text(field string) []byte {
	v := r.value(field, '"')
	if r.err != nil {
		return nil
	}
	return r.unquoted(v)
}

// word reads a string of which only a few are known: those are short.
func (r *reader) word(field string) []byte {
	v := r.text(field)
	if len(v) > shown {
		r.fail(faulty(field, "there is no %s", quoted(v)))
		return nil
	}
	return v
}

func (r *reader) unquoted(v []byte) []byte {
	inner := v[1 : len(v)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	start := len(r.side)
	side, err := jsontext.AppendUnquote(r.side, v)
	if err != nil {
		r.syntax(err)
		return nil
	}
	r.side = side
	return side[start:len(side):len(side)]
}

// texts appends the strings of a list. It has the loop of list inside, as it is what takes time.
func (r *reader) texts(field string, limit int, out [][]byte) [][]byte {
	if !r.open(field, '[') {
		return out
	}
	for i := 0; ; i++ {
		kind := r.dec.PeekKind()
		if kind == ']' {
			break
		}
		if i == limit {
			r.fail(faulty(field, "has more than %d elements", limit))
			return out
		}
		if kind != '"' {
			r.value(element(field, i), '"') // fails
			return out
		}
		v, err := r.dec.ReadValue()
		if err != nil {
			r.syntax(err)
			return out
		}
		end := r.dec.InputOffset()
		out = append(out, r.unquoted(r.request[end-int64(len(v)):end]))
	}
	r.close()
	return out
}

func (r *reader) bool(field string) bool {
	v := r.value(field, 't')
	return len(v) == len("true")
}

// number reads a whole number from low to high.
func (r *reader) number(field string, low, high int64) int64 {
	v := r.value(field, '0')
	if r.err != nil {
		return low
	}
	if bytes.ContainsAny(v, ".eE") {
		r.fail(faulty(field, "%s is not a whole number", quotedNumber(v)))
		return low
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < low || n > high {
		r.fail(faulty(field, "%s is not from %d to %d", quotedNumber(v), low, high))
		return low
	}
	return n
}

// integer is number for what fits an int32 and is judged later.
func (r *reader) integer(field string) int {
	return int(r.number(field, math.MinInt32, math.MaxInt32))
}

// quotedNumber returns a number for errors, cut if it is long.
func quotedNumber(v []byte) string {
	if len(v) > shown {
		return string(v[:shown]) + "..."
	}
	return string(v)
}
