//go:build !(ofi && cgo)

package fabric

import (
	"errors"
	"testing"
)

// TestStub shows that a program without the library builds, and says what it lacks.
func TestStub(t *testing.T) {
	if _, err := Open(Options{Provider: TCP}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("open: %v", err)
	}
	if _, err := Open(Options{Provider: "x"}); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("open with a provider that there is not: %v", err)
	}
	if _, err := Probe(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("probe: %v", err)
	}
}
