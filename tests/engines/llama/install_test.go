package llama

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestFindNodeTooOld shows that an old Node, or none, is a reason to skip with
// its version in it, and that an unreadable version is not.
func TestFindNodeTooOld(t *testing.T) {
	tests := []struct {
		name, version string
		ok, skip      bool
	}{
		{"oldest", "v20.0.0", true, false},
		{"newer", "v24.1.0", true, false},
		{"old", "v18.20.4", false, true},
		{"garbage", "node", false, false},
		{"none", "", false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if tt.version != "" {
				script := "#!/bin/sh\necho " + tt.version + "\n"
				if err := os.WriteFile(filepath.Join(dir, "node"), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			_, err := findNode(t.Context())
			if got := err == nil; got != tt.ok {
				t.Errorf("ok: got %v (%v), want %v", got, err, tt.ok)
			}
			if got := errors.Is(err, ErrUnavailable); got != tt.skip {
				t.Errorf("skip: got %v (%v), want %v", got, err, tt.skip)
			}
		})
	}
}

// TestNpmErrorCode shows that a registry out of reach is told from an install
// that went wrong, with the words of the npm versions in use.
func TestNpmErrorCode(t *testing.T) {
	tests := []struct{ out, want string }{
		{"npm error code ENOTFOUND\nnpm error syscall getaddrinfo\n", "ENOTFOUND"},
		{"npm ERR! code EAI_AGAIN\n", "EAI_AGAIN"},
		{"npm warn old\nnpm error code EINTEGRITY\n", "EINTEGRITY"},
		{"Segmentation fault\n", ""},
	}
	for _, tt := range tests {
		if got := npmErrorCode([]byte(tt.out)); got != tt.want {
			t.Errorf("npmErrorCode(%q): got %q, want %q", tt.out, got, tt.want)
		}
	}
}
