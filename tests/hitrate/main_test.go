package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTable shows the shares of a chain of three blocks that is asked for three times, in room for all, for two and
// for one.
func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	line := `{"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": [7, 8, 9]}` + "\n"
	if err := os.WriteFile(file, []byte(strings.Repeat(line, 3)), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run([]string{file}, "3,2,1", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"trace.jsonl: 3 requests, 9 blocks", "| order | 3 | 2 | 1 |",
		"| `lru` | 0.6667 | 0.2222 | 0.0000 |", "| optimum | 0.6667 | 0.4444 | 0.2222 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
}
