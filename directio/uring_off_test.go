//go:build !giouring

package directio

import (
	"errors"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestWithoutTag shows that a build without io_uring says so when it is asked for, and
// once, without alarm, when not.
func TestWithoutTag(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	e, err := Open(t.Context(), Options{Logger: zap.New(core)})
	must(t, err)
	closeEngine(t, e)
	if e.Name() != EnginePread || logs.Len() != 1 || logs.All()[0].Level != zapcore.InfoLevel {
		t.Errorf("%s, %v", e.Name(), logs.All())
	}
	if e, err := Open(t.Context(), Options{Engine: EngineUring}); !errors.Is(err, errNoUring) || e != nil {
		t.Errorf("io_uring: %v", err)
	}
}
