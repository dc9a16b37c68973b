package daemon

import (
	"os"
	"os/signal"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
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
	return c.Build()
}

// Warn logs the oddities of the configuration.
func Warn(cfg *config.Config, log *zap.Logger) {
	for _, line := range cfg.Warnings {
		log.Warn(line)
	}
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
