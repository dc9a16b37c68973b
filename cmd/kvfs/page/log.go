package page

import (
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Limits of Log.
const (
	maxLines = 50
	maxLine  = 1 << 10 // bytes; the rest of a line is cut off
)

// Log keeps the latest warnings and errors of a logger. Methods may be called in parallel.
type Log struct {
	mu    sync.Mutex
	lines []string // newest last
}

// Watch returns a logger like log whose warnings and errors l keeps.
func (l *Log) Watch(log *zap.Logger) *zap.Logger {
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime, c.EncodeLevel, c.ConsoleSeparator = zapcore.RFC3339TimeEncoder, zapcore.CapitalLevelEncoder, " "
	c.CallerKey, c.StacktraceKey = zapcore.OmitKey, zapcore.OmitKey
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(c), zapcore.AddSync(l), zapcore.WarnLevel)
	return log.WithOptions(zap.WrapCore(func(was zapcore.Core) zapcore.Core { return zapcore.NewTee(was, core) }))
}

// Write implements io.Writer: it takes one entry.
func (l *Log) Write(entry []byte) (int, error) {
	line := strings.ToValidUTF8(string(entry[:min(len(entry), maxLine)]), "\uFFFD")
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == maxLines {
		l.lines = slices.Delete(l.lines, 0, 1)
	}
	l.lines = append(l.lines, strings.TrimSpace(line))
	return len(entry), nil
}

// Lines returns what l keeps, newest first.
func (l *Log) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := slices.Clone(l.lines)
	slices.Reverse(lines)
	return lines
}
