package main

import (
	"os"
	"strings"
	"testing"
)

// TestList applies each mutation to today's text of its file, which has the old text once.
func TestList(t *testing.T) {
	all, err := parse(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 40 {
		t.Errorf("%d mutations", len(all))
	}
	for i, m := range all {
		text, err := os.ReadFile("../../" + m.file)
		if err != nil {
			t.Errorf("mutation %d: %v", i+1, err)
			continue
		}
		if broken, err := m.apply(string(text)); err != nil {
			t.Errorf("mutation %d: %v", i+1, err)
		} else if !strings.Contains(broken, m.to) {
			t.Errorf("mutation %d: the new text is not in the file", i+1)
		}
	}
}

// TestParse refuses a list with a mistake, and a file without the old text or with two of it.
func TestParse(t *testing.T) {
	for _, bad := range []string{"a.go: breaks\n+new\n", "a.go\n-old\n+new\n", "a.go: breaks\n-old\n+old\n"} {
		if all, err := parse("# comment\n\n" + bad); err == nil {
			t.Errorf("%q: got %v", bad, all)
		}
	}
	all, err := parse("# comment\n\na.go: breaks\n-old\n-\tline\n+new\n")
	if err != nil || len(all) != 1 || all[0] != (mutation{"a.go", "breaks", "old\n\tline", "new"}) {
		t.Fatalf("got %q, %v", all, err)
	}
	for _, text := range []string{"", "old\n\tline\nold\n\tline"} {
		if broken, err := all[0].apply(text); err == nil {
			t.Errorf("%q became %q", text, broken)
		}
	}
	for out, want := range map[string]string{
		"=== RUN\n    --- FAIL: TestA (0.1s)\n--- FAIL: TestB (0s)\n": "TestA",
		"panic: boom\n\ngoroutine 1\n":                                "panic: boom",
		"panic: late\n\trunning tests:\n\t\tTestC (9s)\n\t\tTestD\n":  "panic: late\n\t\tTestC (9s)",
		"x\nFAIL\tp\t3s\n": "FAIL\tp\t3s",
	} {
		if got := firstFailed(out); got != want {
			t.Errorf("%q: got %q", out, got)
		}
	}
}
