package status

import (
	"cmp"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// part is a table of docs/metrics.md: the fields whose paths begin with one, without those that have their own part.
type part struct{ heading, path, tier, text string }

func parts() []part {
	return []part{
		{"### The daemon", "", "", ""},
		{"### `mount`, `store.mounts[]`: a mount", "mount", "",
			"`mount` is the mount whose `.kvfs/status` you read, empty if the document comes from the socket of an owner. `store.mounts[]` are all mounts of an owner."},
		{"### `store`: an owner of many mounts", "store", "", ""},
		{"### `tiers[]`: all tiers", "tiers[]", "", "Memory is first."},
		{"### `groups[]`: groups of blocks", "groups[]", "", ""},
		{"### `quotas[]`: quotas of memory", "quotas[]", "",
			"Quotas of the configuration, and those that [`kvfs quota`](control.md#quota) set. Each group, user or cgroup with a quota of memory or of pins has a row."},
		{"### `counters`: events in memory", "counters", "", ""},
		{"### `reads`: where readers found blocks", "reads", "", ""},
		{"### `secondaries[]`: the tiers below memory", "secondaries[]", "",
			"The first rows are what the tier itself counts, with loads and stores of all kinds. A cascade copies a block down to the tier, a promotion loads it up."},
		{"### `secondaries[].detail` of an SSD tier", "secondaries[].detail", "disk", "A tier of a further type may have other details."},
		{"### `secondaries[].detail.devices[]`: the directories of an SSD tier", "secondaries[].detail.devices[]", "disk", ""},
		{"### `secondaries[].detail` of an object store", "secondaries[].detail", "object", ""},
		{"### `secondaries[].detail` of the peer tier", "secondaries[].detail", "peer", ""},
		{"### `cluster`: the peers", "cluster", "", "Absent without `bind`."},
		{"### `cluster.members[]`: the nodes", "cluster.members[]", "", "`.kvfs/members` and `kvfs members --json` have the same list. This node is first."},
		{"### `cluster.node`: this node's part", "cluster.node", "", ""},
		{"### `cluster.bulk`: blocks over TCP", "cluster.bulk", "", ""},
		{"### `cluster.rdma`: blocks over RDMA", "cluster.rdma", "", "[RDMA](rdma.md) explains plans and rails. `stats` is absent without RDMA."},
		{"### `events`: the event log", "events", "", "`events.zmq` is absent if no events are published over ZeroMQ."},
		{"### `memory`: the directory of the blocks in memory", "memory", "", ""},
		{"### `process`: resources of the daemon", "process", "", ""},
	}
}

var quoted = regexp.MustCompile(`(^|[ ([])'([^']+)'`)

// row returns a row for a field: its tag help says what it means. A tag kind says what its type cannot.
func (l leaf) row(name string) string {
	kinds := map[string]string{"string": "text", "time": "time", "boolean": "boolean", "number": "gauge", "integer": "gauge"}
	kind, typ := kinds[l.kind], l.field.Type
	for typ.Kind() == reflect.Map || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if reflect.Zero(typ).CanUint() {
		kind = "counter"
	}
	kind = cmp.Or(l.field.Tag.Get("kind"), kind)
	return "| `" + name + "` | " + kind + " | " + quoted.ReplaceAllString(l.field.Tag.Get("help"), "$1`$2`") + " |\n"
}

// TestDocs shows that docs/metrics.md has the fields of the document, as the code declares them.
func TestDocs(t *testing.T) {
	const name, begin, end = "../../../docs/metrics.md", "<!-- generated: fields -->\n", "<!-- end -->\n"
	all, rows := parts(), make([]string, len(parts()))
	for _, l := range leaves(t, reflect.TypeFor[Document](), leaf{}) {
		if strings.HasPrefix(l.path, "store.mounts[].") {
			continue // as mount
		}
		best := 0
		for i, p := range all {
			if p.tier == l.tier && strings.HasPrefix(l.path, p.path+".") && len(p.path) > len(all[best].path) {
				best = i
			}
		}
		if l.field.Tag.Get("help") == "" || strings.ContainsAny(l.field.Tag.Get("help"), "|\n") {
			t.Errorf("%s: its tag help says %q", l.path, l.field.Tag.Get("help"))
		}
		rows[best] += l.row(strings.TrimPrefix(strings.TrimPrefix(l.path, all[best].path), "."))
	}
	var want strings.Builder
	for i, p := range all {
		want.WriteString("\n" + p.heading + "\n")
		if p.text != "" {
			want.WriteString("\n" + p.text + "\n")
		}
		want.WriteString("\n| field | kind | meaning |\n|---|---|---|\n" + rows[i])
	}
	want.WriteString("\n")
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	fields, after, ended := strings.Cut(rest, end)
	switch {
	case !ok || !ended:
		t.Fatalf("%s has no place for fields", name)
	case *update:
		if err := os.WriteFile(name, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case fields != want.String():
		t.Errorf("%s is stale: go test ./cmd/kvfs/status -run TestDocs -update", name)
	}
}
