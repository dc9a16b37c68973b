package config

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// TestSecretNames shows that a setting is a secret by its name, and that each setting of today whose name says so is
// the name of a file, which is none. A new setting that fails here is a secret by its name: if it is none, list it in noSecrets.
func TestSecretNames(t *testing.T) {
	for _, f := range allFields(t) {
		if looks := secretName.MatchString(f.key); looks != slices.Contains(noSecrets, f.path) {
			t.Errorf("%s: looks like a secret: %v", f.path, looks)
		}
	}
	for name, want := range map[string]bool{
		"access_key": true, "token": true, "Password": true, "secret_id": true, "auth": true, "aws_credentials": true,
		"keep": false, "hotkeys": false, "author": false, "path": false,
	} {
		if got := secretName.MatchString(name); got != want {
			t.Errorf("%s: secret %v", name, got)
		}
	}
}

// vault is a type of tier with secrets.
type vault struct {
	URL   string   `kvfs:"url" help:"x"`
	Token string   `kvfs:"token" help:"x"`
	Keys  []string `kvfs:"keys" help:"x"`
	Spare string   `kvfs:"spare_password" help:"x"`
}

type vaultTypes struct{}

func (vaultTypes) Types() []string { return []string{TierMemory, "vault"} }

func (vaultTypes) Options(name string) any {
	if name == TierMemory {
		return nil
	}
	return &vault{}
}

// TestPrintPublic shows that no secret is printed for others, and that names of files are.
func TestPrintPublic(t *testing.T) {
	text := `{"bind": "127.0.0.1", "peer": {"gossip_keys": "/etc/gossip.keys"}, "tiers": [{"type": "memory"},
		{"type": "vault", "url": "https://me:hush1@host/x", "token": "hush2", "keys": ["hush3", "hush4"]}]}`
	c, err := Load(Sources{InlineJSON: text, MemTotal: scalar.GiB, Hostname: "a", TierTypes: vaultTypes{}})
	must(t, err)
	var public, all bytes.Buffer
	must(t, PrintPublic(&public, c))
	if err := Print(&all, c); err != nil || strings.Count(all.String(), "hush") != 4 {
		t.Fatalf("%v, got\n%s", err, all.String())
	}
	if strings.Contains(public.String(), "hush") {
		t.Errorf("a secret in\n%s", public.String())
	}
	for _, want := range []string{`token: "(removed)"`, `keys: "(removed)"`, `spare_password: ""`, `url: "https://(removed)@host/x"`, "gossip_keys: /etc/gossip.keys"} {
		if !strings.Contains(public.String(), want) {
			t.Errorf("no %s in\n%s", want, public.String())
		}
	}
}
