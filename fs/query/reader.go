package query

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// reader reads one request in JSON. It keeps the first error and reads nothing after it.
type reader struct {
	dec     jsontext.Decoder
	buf     bytes.Buffer // of the request: the decoder reads a bytes.Buffer without a copy
	request []byte
	side    []byte // strings that had escapes
	err     *strict.Error
}

// reset prepares for a request. With nil it forgets the last one.
func (r *reader) reset(request []byte) {
	r.request, r.err = request, nil
	r.buf = *bytes.NewBuffer(request)
	r.dec.Reset(&r.buf)
	// Strings read from the request may be in use as long as the request is.
	r.side = nil
}

func (r *reader) fail(err *strict.Error) {
	if r.err == nil {
		r.err = err
	}
}

// syntax keeps an error of the decoder.
func (r *reader) syntax(err error) { r.fail(strict.Explain(err, len(r.request))) }

// limited decodes values as package strict does. It limits lists of groups while it reads.
var limited = json.JoinOptions(strict.Options, json.WithUnmarshalers(json.UnmarshalFromFunc(
	func(dec *jsontext.Decoder, _ *hybrid.Group) error {
		if _, n := dec.StackIndex(dec.StackDepth()); n > hybrid.MaxGroups {
			return fmt.Errorf("there are more than %d groups", hybrid.MaxGroups)
		}
		return errors.ErrUnsupported // decode it as usual
	})))

// decode reads a value of the type that v points to.
func (r *reader) decode(v any) {
	if r.err != nil {
		return
	}
	if err := json.UnmarshalDecode(&r.dec, v, limited); err != nil {
		r.syntax(err)
	}
}

// begins reports whether the next value is of a kind.
func (r *reader) begins(kind jsontext.Kind) bool { return r.err == nil && r.dec.PeekKind() == kind }

// value returns the next value as it stands in the request. The value must be of the given kind.
func (r *reader) value(field string, kind jsontext.Kind) []byte {
	if r.err != nil {
		return nil
	}
	got := r.dec.PeekKind()
	if got == 'f' && kind == 't' {
		got = 't'
	}
	if got != kind && got != 0 && got != '}' && got != ']' {
		r.fail(strict.Faulty(field, "got %s, want %s", strict.KindName(got), strict.KindName(kind)))
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

// memberPointer returns a name as part of a pointer. It does not allocate for common names. It cuts
// a name that is too long for a pointer.
func memberPointer(name []byte) string {
	if m, ok := members[string(name)]; ok {
		return m.name
	}
	return strict.PointerName.Replace(string(block.Clip(name, strict.MaxPointer)))
}

// list reads a list, calling each at every element. It fails beyond limit elements.
func (r *reader) list(field string, limit int, each func(i int)) {
	if !r.open(field, '[') {
		return
	}
	for i := 0; r.err == nil && r.dec.PeekKind() != ']'; i++ {
		if i == limit {
			r.fail(strict.Faulty(field, "has more than %d elements", limit))
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
		r.fail(strict.Faulty(field, "got %s, want %s", strict.KindName(got), strict.KindName(kind)))
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
		r.fail(&strict.Error{Why: "there is more than one value; ask again after the answer"})
	} else if !errors.Is(err, io.EOF) {
		r.syntax(err)
	}
}

// text reads a string. The result is part of the request unless the string has escapes.
func (r *reader) text(field string) []byte {
	v := r.value(field, '"')
	if r.err != nil {
		return nil
	}
	return r.unquoted(v)
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

// texts appends the strings of a list. It contains the loop of list, since this loop takes most of
// the time.
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
			r.fail(strict.Faulty(field, "has more than %d elements", limit))
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
		r.fail(strict.Faulty(field, "%s is not a whole number", block.Shorten(string(v), block.Shown)))
		return low
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < low || n > high {
		r.fail(strict.Faulty(field, "%s is not from %d to %d", block.Shorten(string(v), block.Shown), low, high))
		return low
	}
	return n
}
