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

var update = flag.Bool("update", false, "write testdata/schema.txt and the fields in docs/metrics.md")

// stable begins the paths of the fields that no schema changes. Commands of other versions of kvfs read them.
var stable = regexp.MustCompile(`^(schema|version|pid|uptime_seconds|mount\.|store\.|tiers\[\]|events\.next|` +
	`cluster\.(members\[\]|rdma\.(transport|provider|error|plan)))`)

// snake is the form of names.
var snake = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// leaf is a field of the document that has no fields itself.
type leaf struct {
	path  string // a list adds [] to the path of its elements, a map {}
	kind  string // as in JSON
	tier  string // of which a detail is, "" for all others
	field reflect.StructField
}

// details has the types of secondaries[].detail, by tier.
func details() map[string]reflect.Type {
	return map[string]reflect.Type{"disk": reflect.TypeFor[disk.Detail](), "object": reflect.TypeFor[object.Detail](), "peer": reflect.TypeFor[peer.Detail]()}
}

// fields returns the paths of the fields of the document with their types. It fails for types that cannot be read again.
func fields(t *testing.T) map[string]string {
	all := map[string]string{}
	for _, l := range leaves(t, reflect.TypeFor[Document](), leaf{}) {
		if l.kind == "" || all[l.path] != "" && all[l.path] != l.kind {
			t.Errorf("%s is a %v, before it was of type %q", l.path, l.field.Type, all[l.path])
		}
		all[l.path] = l.kind
	}
	return all
}

// leaves returns the leaves of a type at the place of one, in the order of their declarations.
func leaves(t *testing.T, typ reflect.Type, at leaf) []leaf {
	text, reads := reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()
	below := func(more string) leaf { at.path += more; return at }
	switch {
	case typ == reflect.TypeFor[time.Time]():
		at.kind = "time"
	case typ.Implements(text) && reflect.PointerTo(typ).Implements(reads):
		at.kind = "string"
	case at.path == "secondaries[].detail" && typ.Kind() == reflect.Interface: // of any form; these are known
		var all []leaf
		for _, at.tier = range slices.Sorted(maps.Keys(details())) {
			all = append(all, leaves(t, details()[at.tier], at)...)
		}
		return all
	case at.path == "secondaries[].detail.client" && typ.Kind() == reflect.Interface:
		return leaves(t, reflect.TypeFor[bucket.Stats](), at)
	case typ.Kind() == reflect.Pointer:
		return leaves(t, typ.Elem(), at)
	case typ.Kind() == reflect.Slice:
		return leaves(t, typ.Elem(), below("[]"))
	case typ.Kind() == reflect.Map && typ.Key().Kind() == reflect.String:
		return leaves(t, typ.Elem(), below("{}"))
	case typ.Implements(reflect.TypeFor[json.Marshaler]()) || typ.Implements(text):
	case typ.Kind() == reflect.Struct:
		return structure(t, typ, at)
	case typ.Kind() == reflect.String:
		at.kind = "string"
	case typ.Kind() == reflect.Bool:
		at.kind = "boolean"
	case reflect.Zero(typ).CanInt() || reflect.Zero(typ).CanUint():
		at.kind = "integer"
	case reflect.Zero(typ).CanFloat():
		at.kind = "number"
	}
	return []leaf{at}
}

// structure returns the leaves of a structure.
func structure(t *testing.T, typ reflect.Type, at leaf) []leaf {
	var all []leaf
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		below := leaf{strings.TrimPrefix(at.path+"."+name, "."), "", at.tier, f}
		switch {
		case !f.IsExported() || name == "-":
		case f.Anonymous && name == "":
			all = append(all, leaves(t, f.Type, at)...)
		case !snake.MatchString(name):
			t.Errorf("%s.%s: the name %q is not in snake_case", at.path, f.Name, name)
		default:
			all = append(all, leaves(t, f.Type, below)...)
		}
	}
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
