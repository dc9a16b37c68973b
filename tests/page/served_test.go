package page

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestServed shows without a browser that a mount serves the page to everybody, and its numbers only with the token.
func TestServed(t *testing.T) {
	harness.KvfsOnly(t, "a daemon")
	l, err := net.Listen("tcp", "127.97.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	secret := filepath.Join(harness.NewDiskDir(t, nil), "token")
	d := harness.Mount(t, harness.Options{Flags: []string{"--http", address, "--http-token-file", secret}})
	if err := os.WriteFile(d.Path("block"), make([]byte, mib), 0o644); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(secret)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: harness.Deadline}
	get := func(path, token string) (int, []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		reply, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply.StatusCode, body
	}
	if code, page := get("/", ""); code != http.StatusOK || !bytes.Contains(page, []byte(`id="token"`)) || bytes.Contains(page, []byte(d.Dir)) {
		t.Errorf("the page: %d\n%.200s", code, page)
	}
	for _, token := range []string{"", "wrong"} {
		if code, body := get("/page.json", token); code != http.StatusUnauthorized || bytes.Contains(body, []byte(d.Dir)) {
			t.Errorf("numbers with token %q: %d\n%.200s", token, code, body)
		}
	}
	code, body := get("/page.json", strings.TrimSpace(string(text)))
	var numbers map[string]any
	if err := json.Unmarshal(body, &numbers); err != nil || code != http.StatusOK || !bytes.Contains(body, []byte(d.Dir)) {
		t.Errorf("numbers: %d %v\n%.200s", code, err, body)
	}
}
