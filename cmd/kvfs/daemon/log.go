package daemon

import (
	"os"
	"os/signal"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
)

// NewLogger logs to standard error.
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

// Warn logs what is odd about the configuration.
func Warn(cfg *config.Config, log *zap.Logger) {
	for _, line := range cfg.Warnings {
		log.Warn(line)
	}
}

// hearHangup has SIGHUP, of which a process dies that does not know it, say how settings are changed. The
// function that it returns ends that.
func hearHangup(log *zap.Logger) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP)
	go func() { // ends with stop
		for range signals {
			log.Info("SIGHUP: settings are not read again; with kvfs mount --takeover another daemon takes them, certificates and keys are read when their files change")
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}
