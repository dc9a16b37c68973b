package launch

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReadFile shows that the file of an engine is read up to a limit.
func TestReadFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(name, []byte("a: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := ReadFile(name); err != nil || string(text) != "a: 1\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := os.Truncate(name, maxFile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(name); err == nil {
		t.Error("a file beyond the limit is read")
	}
	if _, err := ReadFile(name + "x"); err == nil {
		t.Error("a file that is not there is read")
	}
}
