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
