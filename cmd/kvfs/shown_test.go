package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// hostile is a name that would clear a terminal, set its title, and forge a line.
const hostile = "g/\x1b[2J\u009b31m\x1b]0;x\x07\rline\n\x7f\xff"

// TestShown shows that nothing that peers or other users name reaches a terminal as it is.
func TestShown(t *testing.T) {
	var failed client.Failures
	failed.Add(hostile, hostile)
	members, err := json.Marshal([]cluster.Member{{
		Name: hostile, State: "refused", Reason: hostile, Zone: hostile, Version: hostile, GossipAddr: hostile, LastError: hostile, Failures: 1,
		PathReason: hostile, Missing: []string{hostile},
	}})
	must(t, err)
	text, _ := json.Marshal(hostile)
	for what, print := range map[string]func(w *bufio.Writer){
		"event": func(w *bufio.Writer) {
			f := newFakeDaemon("/m", "events", func(string) string {
				return `{"event":"stored","group":"g","hash":` + string(text) + `,"from":` + string(text) + `,"reason":` + string(text) + "}\n" + hold
			})
			out, _, _ := f.run(t, newEventsCommand, "", "-n", "1", "/m")
			w.WriteString(out)
		},
		"lookup": func(w *bufio.Writer) {
			f := newFakeDaemon("/m", "query", func(string) string { return `{"states":"0"}` })
			out, _, _ := f.run(t, newLookupCommand, "", "/m/"+hostile)
			w.WriteString(out)
		},
		"why": func(w *bufio.Writer) {
			f := newFakeDaemon("/m", "query", func(string) string { return `{"verdicts":[{"text":` + string(text) + `}]}` })
			out, _, _ := f.run(t, newWhyCommand, "", "/m/"+hostile)
			w.WriteString(out)
		},
		"pin":     func(w *bufio.Writer) { w.WriteString(failed.Err("%d", 1).Error()) },
		"members": func(w *bufio.Writer) { printMembers(w, members) },
		"status": func(w *bufio.Writer) {
			c := status.Cluster{Warning: hostile, Requested: []string{hostile}, Members: []cluster.Member{{Name: hostile, State: "alive", Version: hostile, Missing: []string{hostile}}}}
			text, err := json.Marshal(map[string]any{"schema": status.Schema, "cluster": &c, "tiers": []status.Tier{{State: "degraded", Reason: "no answer from " + hostile}}})
			if err != nil {
				t.Error(err)
			}
			status.Print(w, text)
		},
	} {
		var out bytes.Buffer
		w := bufio.NewWriter(&out)
		print(w)
		w.Flush()
		if !strings.Contains(out.String(), `[2J`) {
			t.Errorf("%s: the name is not there: %q", what, out.String())
		}
		if i := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) && r != '\t' }); i >= 0 || strings.Contains(out.String(), "line\n") {
			t.Errorf("%s prints %q", what, out.String())
		}
	}
}
