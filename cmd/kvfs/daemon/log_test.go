package daemon

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestLogger shows that the level counts and both formats work.
func TestLogger(t *testing.T) {
	for _, format := range []string{"console", "json"} {
		log, err := NewLogger(loadConfig(t, `{"log": {"level": "warn", "format": "`+format+`"}}`))
		must(t, err)
		if log.Core().Enabled(zapcore.InfoLevel) || !log.Core().Enabled(zapcore.WarnLevel) {
			t.Errorf("%s: level is %v, want warn", format, log.Level())
		}
	}
}

// TestWarn shows that each warning of the configuration is a line in the log.
func TestWarn(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	cfg := loadConfig(t, `{"mode": "standalone-store", "memory": {"keep": true}}`)
	Warn(cfg, zap.New(core))
	all := logs.All()
	if len(all) != 1 || all[0].Level != zapcore.WarnLevel || !strings.HasSuffix(all[0].Message, "only kvfs serve heeds memory.keep") {
		t.Errorf("got %v", all)
	}
}
