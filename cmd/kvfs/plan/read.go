package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// object is a JSON object of a model config. It collects the errors of its fields in errs, so that all of them are
// reported at once.
type object struct {
	at     string // "" or "text_config."
	fields map[string]json.RawMessage
	errs   *[]error
}

// parseObject reads a config that Python wrote, in which numbers may be Infinity or NaN.
func parseObject(text []byte, errs *[]error) (object, error) {
	o := object{errs: errs}
	err := json.Unmarshal(plainNumbers(text), &o.fields)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return o, fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	if err != nil || o.fields == nil {
		return o, errors.New("not a JSON object")
	}
	return o, nil
}

// plainNumbers returns text with null in place of the numbers that Python writes and JSON does not have, padded to
// the same length.
func plainNumbers(text []byte) []byte {
	out := bytes.Clone(text)
	inString := false
	for i := 0; i < len(out); i++ {
		switch {
		case inString && out[i] == '\\':
			i++
		case out[i] == '"':
			inString = !inString
		case !inString:
			for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
				if !bytes.HasPrefix(out[i:], []byte(word)) {
					continue
				}
				null := "null"
				if len(word) < len(null) {
					null = "0" // NaN: any number will do, because no code reads it
				}
				copy(out[i:], null+string(bytes.Repeat([]byte(" "), len(word)-len(null))))
				i += len(word) - 1
				break
			}
		}
	}
	return out
}

// fail collects an error about a field.
func (o object) fail(name, format string, args ...any) {
	*o.errs = append(*o.errs, fmt.Errorf("%s%s: %s", o.at, name, fmt.Sprintf(format, args...)))
}

// value returns the text of a field, nil if it is absent or null.
func (o object) value(name string) json.RawMessage {
	text := o.fields[name]
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	return text
}

// wrong adds the error that a field does not have the wanted type.
func (o object) wrong(name, want string) {
	text := string(o.value(name))
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	o.fail(name, "got %s, want %s", text, want)
}

// number returns a whole number in 1..limit, 0 if the field is absent. For any other value it adds an error and
// returns 1, so that no second error follows from it.
func (o object) number(name string, limit int) int {
	text := o.value(name)
	if text == nil {
		return 0
	}
	if n, ok := wholeNumber(text); ok && n >= 1 && n <= int64(limit) {
		return int(n)
	}
	o.wrong(name, fmt.Sprintf("a whole number from 1 to %d", limit))
	return 1
}

// count is number for counts of layers, which may be zero.
func (o object) count(name string) int {
	if n, ok := wholeNumber(o.value(name)); ok && n == 0 {
		return 0
	}
	return o.number(name, maxLayers)
}

// wholeNumber reads 16 and 16.0, but not "16".
func wholeNumber(text json.RawMessage) (int64, bool) {
	if len(text) == 0 || text[0] == '"' {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(text), 64)
	n := int64(f)
	return n, err == nil && f > -1e15 && f < 1e15 && float64(n) == f
}

// flag returns a boolean, false if the field is absent.
func (o object) flag(name string) bool {
	text := o.value(name)
	var is bool
	if text != nil && json.Unmarshal(text, &is) != nil {
		o.wrong(name, "true or false")
	}
	return is
}

// text returns a string, empty if the field is absent.
func (o object) text(name string) string {
	value := o.value(name)
	var s string
	if value != nil && json.Unmarshal(value, &s) != nil {
		o.wrong(name, "a string")
	}
	return s
}

// texts returns a list of strings, nil if the field is absent.
func (o object) texts(name string) []string {
	value := o.value(name)
	var list []string
	if value != nil && json.Unmarshal(value, &list) != nil {
		o.wrong(name, "a list of strings")
	}
	return list
}

// bits returns a list of zeros and ones, nil if the field is absent.
func (o object) bits(name string) []int {
	value := o.value(name)
	var list []int
	if value != nil && json.Unmarshal(value, &list) != nil ||
		slices.ContainsFunc(list, func(n int) bool { return n != 0 && n != 1 }) {
		o.wrong(name, "a list of zeros and ones")
		return nil
	}
	return list
}

// object returns an object within o, and whether the field is there.
func (o object) object(name string) (object, bool) {
	value := o.value(name)
	if value == nil {
		return object{}, false
	}
	inner := object{at: o.at + name + ".", errs: o.errs}
	if json.Unmarshal(value, &inner.fields) != nil {
		o.wrong(name, "an object")
		return object{}, false
	}
	return inner, true
}
