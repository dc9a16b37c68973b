package status

import (
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/disk"
	"github.com/kvfs/kvfs/tiers/object"
	"github.com/kvfs/kvfs/tiers/object/bucket"
	"github.com/kvfs/kvfs/tiers/peer"
)

var update = flag.Bool("update", false, "write testdata/schema.txt")

// stable begins the paths of the fields that no schema changes. Commands of other versions of kvfs read them.
var stable = regexp.MustCompile(`^(schema|version|pid|uptime_seconds|mount\.|store\.|tiers\[\]|events\.next|` +
	`cluster\.(members\[\]|rdma\.(transport|provider|error|plan)))`)

// snake is the form of names.
var snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// fields returns the paths of the fields of the document with their types. It fails for types that cannot be read
// again. A list adds [] to the path of its elements, a map {}.
func fields(t *testing.T) map[string]string {
	all := map[string]string{}
	var walk func(typ reflect.Type, path string)
	structure := func(typ reflect.Type, path string) {
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported() || name == "-":
			case f.Anonymous && name == "":
				walk(f.Type, path)
			case !snake.MatchString(name):
				t.Errorf("%s.%s: the name %q is not in snake_case", path, f.Name, name)
			default:
				walk(f.Type, strings.TrimPrefix(path+"."+name, "."))
			}
		}
	}
	walk = func(typ reflect.Type, path string) {
		text, reads := reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()
		kind := ""
		switch {
		case typ == reflect.TypeFor[time.Time]():
			kind = "time"
		case typ.Implements(text) && reflect.PointerTo(typ).Implements(reads):
			kind = "string"
		case path == "secondaries[].detail" && typ.Kind() == reflect.Interface: // of any form; these are known
			walk(reflect.TypeFor[disk.Detail](), path)
			walk(reflect.TypeFor[peer.Detail](), path)
			walk(reflect.TypeFor[object.Detail](), path)
			return
		case path == "secondaries[].detail.client" && typ.Kind() == reflect.Interface:
			walk(reflect.TypeFor[bucket.Stats](), path)
			return
		case typ.Kind() == reflect.Pointer:
			walk(typ.Elem(), path)
			return
		case typ.Kind() == reflect.Slice:
			walk(typ.Elem(), path+"[]")
			return
		case typ.Kind() == reflect.Map && typ.Key().Kind() == reflect.String:
			walk(typ.Elem(), path+"{}")
			return
		case typ.Implements(reflect.TypeFor[json.Marshaler]()) || typ.Implements(text):
		case typ.Kind() == reflect.Struct:
			structure(typ, path)
			return
		case typ.Kind() == reflect.String:
			kind = "string"
		case typ.Kind() == reflect.Bool:
			kind = "boolean"
		case reflect.Zero(typ).CanInt() || reflect.Zero(typ).CanUint():
			kind = "integer"
		case reflect.Zero(typ).CanFloat():
			kind = "number"
		}
		if kind == "" || all[path] != "" && all[path] != kind {
			t.Errorf("%s is a %v, before it was of type %q", path, typ, all[path])
		}
		all[path] = kind
	}
	walk(reflect.TypeFor[Document](), "")
	return all
}

// TestSchema shows that no field vanishes or changes its type while Schema stays, and that some never do.
func TestSchema(t *testing.T) {
	const name = "testdata/schema.txt"
	golden, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var was int
	if _, err := fmt.Sscanf(string(golden), "schema %d\n", &was); err != nil || was > Schema {
		t.Fatalf("%s is of schema %d, %v", name, was, err)
	}
	now := fields(t)
	for line := range strings.Lines(string(golden)) {
		path, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case path == "schema" && kind != "integer" || now[path] == kind: // the former is the first line
		case stable.MatchString(path):
			t.Errorf("%s vanished or is no %s any more, but other versions of kvfs read it", path, kind)
		case was == Schema:
			t.Errorf("%s vanished or is no %s any more: Schema must rise", path, kind)
		}
	}
	text := fmt.Sprintf("schema %d\n", Schema)
	for _, path := range slices.Sorted(maps.Keys(now)) {
		text += path + " " + now[path] + "\n"
	}
	switch {
	case t.Failed() || text == string(golden):
	case !*update:
		t.Errorf("%s is old. Run: go test ./cmd/kvfs/status -run TestSchema -update", name)
	default:
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// TestDocs shows that docs/status.md has a row for each field of the document, and for nothing else, and that the kind
// in the row fits the type. The names in code in a heading are the paths above the fields of its table.
func TestDocs(t *testing.T) {
	const name = "../../../docs/status.md"
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string][]string{
		"string": {"text", "time"}, "time": {"time"}, "boolean": {"boolean"}, "number": {"counter", "gauge"}, "integer": {"counter", "gauge", "number"},
	}
	code, row := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile("^\\| `([^`]+)` \\| (\\w+) \\| .*\\S.* \\|$")
	left := fields(t)
	above := [][]string{nil}
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			above = code.FindAllStringSubmatch(line, -1)
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "| `") {
				t.Errorf("%s: no field: %s", name, line)
			}
			continue
		}
		if len(above) == 0 {
			above = [][]string{{"", ""}}
		}
		for _, a := range above {
			path := strings.TrimPrefix(a[1]+"."+m[1], ".")
			if !slices.Contains(kinds[left[path]], m[2]) {
				t.Errorf("%s: %s is a %s, and of type %q", name, path, m[2], left[path])
			}
			delete(left, path)
		}
	}
	for path := range left {
		t.Errorf("%s does not describe %s", name, path)
	}
}
