package plan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// config returns the text of a config in testdata.
func config(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// made returns the plan of a config in testdata.
func made(t *testing.T, name string, o Options) *Plan {
	t.Helper()
	p, err := tryMake(t, config(t, name), o)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p
}

// tryMake reads a config and makes a plan of it, on one rank unless o says otherwise.
func tryMake(t *testing.T, text []byte, o Options) (*Plan, error) {
	t.Helper()
	m, err := Parse(text)
	if err != nil {
		return nil, err
	}
	o.TP, o.PP = max(o.TP, 1), max(o.PP, 1)
	return Make(m, o)
}

// changed returns a config in testdata with other values of some fields, of its
// text_config if it has one. A nil value removes the field.
func changed(t *testing.T, name string, fields map[string]any) []byte {
	t.Helper()
	var outer map[string]any
	if err := json.Unmarshal(plainNumbers(config(t, name)), &outer); err != nil {
		t.Fatal(err)
	}
	inner := outer
	if nested, ok := outer["text_config"].(map[string]any); ok {
		inner = nested
	}
	for field, value := range fields {
		if inner[field] = value; value == nil {
			delete(inner, field)
		}
	}
	text, err := json.Marshal(outer)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// hasNote reports whether one of the assumptions has this text in it.
func hasNote(p *Plan, text string) bool {
	return strings.Contains(strings.Join(p.Notes, "\n"), text)
}
