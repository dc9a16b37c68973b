// Package strict decodes requests in JSON that people and programs write to control files. It refuses what a lenient
// decoder would guess: members that do not exist or stand twice, names in another case, null in place of a value, and
// numbers that are not whole. Its errors name the faulty part, and are short whatever the request.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvfs/kvfs/tiers/block"
)

// Options are for json.UnmarshalDecode. Give its errors to Explain. Constant.
var Options = json.RejectUnknownMembers(true)

// whole refuses null for a value that is no pointer, which the library takes for the zero value.
var whole = json.WithUnmarshalers(json.JoinUnmarshalers(notNull[string](), notNull[bool]()))

func notNull[T any]() *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *T) error {
		if dec.PeekKind() == 'n' {
			return fmt.Errorf("got null, want %s", typeName(reflect.TypeFor[T]()))
		}
		return errors.ErrUnsupported // decode it as usual
	})
}

// Unmarshal decodes one JSON object into the struct that v points to. The error is an *Error.
func Unmarshal(request []byte, v any) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(request))
	if kind := dec.PeekKind(); kind != '{' && kind != 0 {
		return &Error{Why: fmt.Sprintf("got %s, want object", KindName(kind))}
	}
	if err := json.UnmarshalDecode(dec, v, Options, whole); err != nil {
		return Explain(err, len(request))
	}
	switch _, err := dec.ReadToken(); {
	case err == nil:
		return &Error{Why: "there is more than one value; ask again after the answer"}
	case !errors.Is(err, io.EOF):
		return Explain(err, len(request))
	}
	return nil
}

// Explain says what is wrong with a request of size bytes, of which the decoder said err.
func Explain(err error, size int) *Error {
	if errors.Is(err, io.EOF) {
		return &Error{Why: "the request is empty"}
	}
	if wrong, ok := errors.AsType[*json.SemanticError](err); ok {
		return explainValue(wrong)
	}
	wrong, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return &Error{Why: err.Error()}
	}
	field := string(wrong.JSONPointer)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return Faulty(field, "is there twice")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Faulty(field, "the request ends too early, after %d bytes", size)
	}
	return Faulty(field, "%v, at byte %d", wrong.Err, wrong.ByteOffset)
}

// explainValue says why a value is not one of the type that it should be.
func explainValue(wrong *json.SemanticError) *Error {
	field := string(wrong.JSONPointer)
	switch {
	case errors.Is(wrong, json.ErrUnknownName):
		return Faulty(field, "there is no such member")
	case errors.Is(wrong, strconv.ErrSyntax):
		return Faulty(field, "%s is not a whole number", block.Shorten(string(wrong.JSONValue), block.Shown))
	case errors.Is(wrong, strconv.ErrRange):
		return Faulty(field, "%s is too large", block.Shorten(string(wrong.JSONValue), block.Shown))
	case wrong.Err != nil:
		return Faulty(field, "%v", wrong.Err)
	}
	return Faulty(field, "got %s, want %s", KindName(wrong.JSONKind), typeName(wrong.GoType))
}

// typeName names the values that a type takes.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.Bool:
		return KindName('t')
	case reflect.String:
		return KindName('"')
	case reflect.Struct:
		return KindName('{')
	case reflect.Slice:
		return KindName('[')
	}
	return KindName('0')
}

// KindName returns the word for a kind of value.
func KindName(k jsontext.Kind) string {
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
