package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// withoutJSON are the commands without --json, and why.
var withoutJSON = map[string]string{
	"kvfs":                "prints what it is",
	"kvfs mount":          "serves until it ends; --ready-fd tells programs that it answers",
	"kvfs serve":          "serves until it ends; --ready-fd tells programs that it answers",
	"kvfs run":            "its output is that of the engine",
	"kvfs config print":   "prints YAML, which programs read",
	"kvfs config example": "prints YAML, which programs read",
	"kvfs keys":           "has only subcommands",
	"kvfs certs":          "has only subcommands",
	"kvfs config":         "has only subcommands",
	"kvfs debug":          "has only subcommands",
	"kvfs csi":            "serves until it ends",
}

// TestAllJSON shows that every command prints its result as JSON with --json, but for those above.
func TestAllJSON(t *testing.T) {
	seen := map[string]bool{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		name := cmd.CommandPath()
		has, why := cmd.Flags().Lookup("json") != nil, withoutJSON[name]
		seen[name] = true
		switch {
		case has && why != "":
			t.Errorf("%s has --json, and is among those without", name)
		case !has && why == "":
			t.Errorf("%s has no --json, and no reason why", name)
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRootCommand())
	for name := range withoutJSON {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// TestJSONResults shows the JSON of commands that need no mount: one document, with these members.
func TestJSONResults(t *testing.T) {
	cleanEnv(t)
	dir := t.TempDir()
	t.Chdir(dir)
	key := "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	for _, row := range []struct{ args, members string }{
		{"keys create keys", "file"},
		{"keys add keys", "file key"},
		{"keys add keys " + key, "file"},
		{"keys use keys " + key, "file"},
		{"keys list keys", "keys"},
		{"certs init --dir pki --node a --node b", "ca ca_key nodes"},
		{"certs issue --dir pki c", "ca cert key node_name not_after"},
		{"config check", "warnings"},
		{"debug bundle -o bundle.tar.gz", "file"},
		{"version", "arch go os revision version"},
	} {
		code, stdout, stderr := runCLI(append(strings.Fields(row.args), "--json")...)
		var doc map[string]json.RawMessage
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != exit.OK || stderr != "" {
			t.Errorf("%s: exit code %d, %q, %q: %v", row.args, code, stdout, stderr, err)
			continue
		}
		for _, name := range strings.Fields(row.members) {
			if doc[name] == nil {
				t.Errorf("%s: no %s in %s", row.args, name, stdout)
			}
		}
		if len(doc) != len(strings.Fields(row.members)) {
			t.Errorf("%s: got %s, want %s", row.args, stdout, row.members)
		}
	}
	for _, name := range []string{"keys", "pki/ca.pem", "pki/c.pem", "bundle.tar.gz"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	_, stdout, _ := runCLI("keys", "list", "--json", "keys")
	if strings.Count(stdout, `"encrypts": true`)+strings.Count(stdout, `"encrypts":true`) != 1 || strings.Count(stdout, "fingerprint") != 3 {
		t.Errorf("keys list: %s", stdout)
	}
}
