package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/tiers/block"
)

// failure is the answer to a request that failed.
type failure struct {
	Error string `json:"error"`
	Field string `json:"field,omitempty"` // JSON Pointer to the faulty part of the request
}

// encodeAnswer returns the JSON of an answer, on one line.
func encodeAnswer(answer any) []byte {
	text, err := json.Marshal(answer)
	if err != nil {
		text = []byte(`{"error": "the answer cannot be encoded"}`) // a bug: answers are plain structs
	}
	return append(text, '\n')
}

// requestJSON makes a dialogue of a function that takes a request in JSON.
func requestJSON[Q, A any](do func(context.Context, Q) (A, error)) Dialogue {
	run := func(ctx context.Context, request []byte) any {
		var q Q
		if err := decodeRequest(request, &q); err != nil {
			return refusal(err)
		}
		a, err := do(ctx, q)
		if err != nil {
			return refusal(err)
		}
		return a
	}
	return func(ctx context.Context, request []byte, answer io.Writer) {
		answer.Write(encodeAnswer(run(ctx, request))) // fails if the client is gone
	}
}

// StreamJSON makes a dialogue of a function that takes a request in JSON and writes an answer
// of any length. All members of the request may be left out. An error of do becomes the answer,
// or its last line. An error with a method Field() string, a JSON Pointer, names the faulty
// part of the request.
func StreamJSON[Q any](do func(ctx context.Context, q Q, answer io.Writer) error) Dialogue {
	return func(ctx context.Context, request []byte, answer io.Writer) {
		var q Q
		if len(request) > 0 {
			if err := decodeRequest(request, &q); err != nil {
				answer.Write(encodeAnswer(refusal(err)))
				return
			}
		}
		if err := do(ctx, q, answer); err != nil {
			answer.Write(encodeAnswer(refusal(err))) // fails if the client is gone
		}
	}
}

// Limits of errors, in bytes. Requests may have long names, and these are not sent back.
const (
	maxErrorText  = 1 << 10
	maxErrorField = 1 << 10
)

// fieldError is an error that names the faulty part of a request.
type fieldError interface {
	error
	Field() string // JSON Pointer; empty: none in particular
}

// refusal is the answer to a request that failed with err.
func refusal(err error) failure {
	e := failure{Error: block.Shorten(err.Error(), maxErrorText)}
	if at, ok := errors.AsType[fieldError](err); ok {
		e.Field = block.Clip(at.Field(), maxErrorField)
		if len(e.Field) < len(at.Field()) {
			e.Field = strings.TrimSuffix(e.Field, "~") // half an escape
		}
	}
	return e
}

// requestFault says what is wrong with a request.
type requestFault struct{ field, why string }

// Error returns the reason.
func (e *requestFault) Error() string { return "request: " + e.why }

// Field implements fieldError.
func (e *requestFault) Field() string { return e.field }

// part is a member of a request, or an element of one that is a list.
type part struct {
	name  string
	index int // -1: all of it
}

// pointerName encodes a name as part of a JSON Pointer.
var pointerName = strings.NewReplacer("~", "~0", "/", "~1")

// faulty makes the error about the part.
func (p part) faulty(format string, args ...any) error {
	name := block.Shorten(p.name, block.Shown)
	field := "/" + pointerName.Replace(block.Clip(p.name, maxErrorField))
	if p.index >= 0 {
		field += "/" + strconv.Itoa(p.index)
		name += "[" + strconv.Itoa(p.index) + "]"
	}
	return &requestFault{field, name + ": " + fmt.Sprintf(format, args...)}
}

// decodeRequest decodes exactly one JSON object into the struct that q points to. Its members
// are strings, bools and whole numbers, pointers to these (which may be null), and lists of
// these. Errors name the place in the request.
func decodeRequest(request []byte, q any) error {
	if !json.Valid(request) {
		return &requestFault{why: syntaxFault(request)}
	}
	in := json.NewDecoder(bytes.NewReader(request))
	in.UseNumber()
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return &requestFault{why: fmt.Sprintf("the whole: got %s, want object", tokenKind(t))}
	}
	members := reflect.ValueOf(q).Elem()
	seen := map[string]bool{}
	for in.More() {
		t, err := in.Token()
		if err != nil {
			return err // impossible: the syntax was checked
		}
		at := part{t.(string), -1}
		member := memberOf(members, at.name)
		switch {
		case !member.IsValid():
			return at.faulty("there is no such member")
		case seen[at.name]:
			return at.faulty("is there twice")
		}
		seen[at.name] = true
		if err := decodeValue(in, at, member); err != nil {
			return err
		}
	}
	return nil
}

// syntaxFault returns what is wrong with a request that is not one JSON value.
func syntaxFault(request []byte) string {
	in := json.NewDecoder(bytes.NewReader(request))
	var value json.RawMessage
	err := in.Decode(&value)
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	switch {
	case err == nil:
		return fmt.Sprintf("byte %d: more than one value; ask again after the answer", in.InputOffset()+1)
	case ok:
		return fmt.Sprintf("byte %d: %v", syntax.Offset, err)
	case errors.Is(err, io.EOF):
		return "empty"
	}
	return fmt.Sprintf("byte %d: ends too early", len(request))
}

// memberOf returns the field of a struct with a name in JSON, or the zero Value.
func memberOf(members reflect.Value, name string) reflect.Value {
	for i := range members.NumField() {
		field := members.Type().Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == "" {
			tag = field.Name
		}
		if tag == name {
			return members.Field(i)
		}
	}
	return reflect.Value{}
}

// decodeValue decodes the next value into v.
func decodeValue(in *json.Decoder, at part, v reflect.Value) error {
	t, err := in.Token()
	if err != nil {
		return err // impossible: the syntax was checked
	}
	if v.Kind() == reflect.Pointer {
		if t == nil {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Slice:
		if t == json.Delim('[') {
			return decodeList(in, at, v)
		}
		return at.faulty("got %s, want list", tokenKind(t))
	case reflect.String:
		if s, ok := t.(string); ok {
			v.SetString(s)
			return nil
		}
		return at.faulty("got %s, want string", tokenKind(t))
	case reflect.Bool:
		if b, ok := t.(bool); ok {
			v.SetBool(b)
			return nil
		}
		return at.faulty("got %s, want bool", tokenKind(t))
	}
	n, ok := t.(json.Number)
	if !ok {
		return at.faulty("got %s, want number", tokenKind(t))
	}
	if err := json.Unmarshal([]byte(n), v.Addr().Interface()); err != nil {
		return at.faulty("%s is not a whole number, or out of range", block.Shorten(string(n), block.Shown))
	}
	return nil
}

// decodeList decodes the rest of a list.
func decodeList(in *json.Decoder, at part, list reflect.Value) error {
	list.Set(reflect.MakeSlice(list.Type(), 0, 0))
	element := reflect.New(list.Type().Elem()).Elem()
	for at.index = 0; in.More(); at.index++ {
		if err := decodeValue(in, at, element); err != nil {
			return err
		}
		list.Set(reflect.Append(list, element))
	}
	_, err := in.Token()
	return err
}

// tokenKind names the kind of value that a token begins.
func tokenKind(t json.Token) string {
	switch t := t.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case string:
		return "string"
	case json.Delim:
		if t == '{' {
			return "object"
		}
		return "list"
	}
	return "number"
}
