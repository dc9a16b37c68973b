package object

import (
	"context"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/zap"
)

var update = flag.Bool("update", false, "write the settings into docs/object.md")

const (
	page  = "../../../docs/object.md"
	begin = "<!-- settings: go test ./cmd/kvfs/object -update -->\n"
	end   = "<!-- end of settings -->\n"
)

// TestPage shows that docs/object.md has the settings of the type as they are.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("the page has no place for the settings")
	}
	var b strings.Builder
	b.WriteString("\n| key | default | |\n|---|---|---|\n")
	rows(&b, reflect.TypeFor[Options](), "")
	want := before + begin + b.String() + "\n" + end + after
	switch {
	case string(text) == want:
	case *update:
		err = os.WriteFile(page, []byte(want), 0o644)
	default:
		t.Errorf("the page is stale: go test ./cmd/kvfs/object -update")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// rows writes a row for each setting.
func rows(b *strings.Builder, typ reflect.Type, prefix string) {
	for f := range typ.Fields() {
		key, help, def := prefix+f.Tag.Get("kvfs"), f.Tag.Get("help"), f.Tag.Get("default")
		if f.Type.Kind() == reflect.Struct {
			rows(b, f.Type, key+".")
			continue
		}
		if f.Tag.Get("required") == "true" {
			def = "required"
		} else if auto := f.Tag.Get("auto"); auto != "" {
			def = auto
		}
		if enum := f.Tag.Get("enum"); enum != "" {
			help += " One of " + strings.ReplaceAll(enum, "|", ", ") + "."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", key, def, help)
	}
}

// TestRefused shows the errors of wrong settings.
func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{URL: "kv-cache/prod"}, `url "kv-cache/prod": want s3://BUCKET`},
		{Options{URL: "https://kv-cache/prod"}, "want s3://BUCKET"},
		{Options{URL: "s3://"}, "want s3://BUCKET"},
		{Options{URL: "s3://key:secret@bucket"}, "want s3://BUCKET"},
		{Options{URL: "s3://b/p", Expire: "bucket", Capacity: 1 << 30}, "excludes capacity and ttl"},
		{Options{URL: "s3://bucket/p", Endpoint: "ftp://example.org"}, "endpoint"},
		{Options{URL: "s3://bucket/p", TLS: TLS{CAFile: "/none"}}, "/none"},
		{Options{URL: "s3://bucket/p", ReadRate: 5}, "second"},
	} {
		tier, err := tt.o.Open(context.Background(), "object", zap.NewNop())
		if err == nil {
			tier.Close(context.Background())
			t.Errorf("%+v: opened", tt.o)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: got %q, want %q in it, and no secret", tt.o, err, tt.want)
		}
	}
}
