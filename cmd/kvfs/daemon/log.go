package daemon

import (
	"bytes"
	"os"
	"os/signal"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
)

// NewLogger returns a logger to standard error.
func NewLogger(cfg *config.Config) (*zap.Logger, error) {
	c := zap.NewProductionConfig()
	if cfg.Log.Format == "console" {
		c = zap.NewDevelopmentConfig()
		c.Development = false
	}
	c.DisableStacktrace, c.DisableCaller, c.Sampling = true, true, nil
	level, err := zapcore.ParseLevel(cfg.Log.Level)
	if err != nil {
		return nil, err
	}
	c.Level = zap.NewAtomicLevelAt(level)
	if m, err := mounts.Holds(int(os.Stderr.Fd())); err != nil || m == nil {
		return c.Build()
	}
	encoder := zapcore.NewJSONEncoder
	if cfg.Log.Format == "console" {
		encoder = zapcore.NewConsoleEncoder
	}
	later := startLater(os.Stderr)
	return c.Build(zap.WrapCore(func(zapcore.Core) zapcore.Core {
		return zapcore.NewCore(encoder(c.EncoderConfig), zapcore.AddSync(later), c.Level)
	}))
}

// later writes to a file that may not answer, as one of the mount that this process serves, without waiting for it.
type later chan []byte

// maxLater bounds the lines that wait.
const maxLater = 1024

// startLater returns a later for f, for as long as the process lives.
func startLater(f *os.File) later {
	l := make(later, maxLater)
	go func() {
		for line := range l {
			_, _ = f.Write(line) // nothing is left that could be told
		}
	}()
	return l
}

// Write never waits. It drops p if too many lines wait.
func (l later) Write(p []byte) (int, error) {
	select {
	case l <- bytes.Clone(p):
	default:
	}
	return len(p), nil
}

// Warn logs the oddities of the configuration.
func Warn(cfg *config.Config, log *zap.Logger) {
	for _, line := range cfg.Warnings {
		log.Warn(line)
	}
	warnOutput(log)
}

// hearHangup handles SIGHUP, which would end the process: it logs how settings are changed.
// stop ends that.
func hearHangup(log *zap.Logger) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP)
	go func() { // ends with stop
		for range signals {
			log.Info("SIGHUP: settings are not read again. To use new ones, run: kvfs mount --takeover. Changed files of certificates and keys are read without it")
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}
