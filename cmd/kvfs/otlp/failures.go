package otlp

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// failures logs what the exporter cannot send, one line in quiet.
type failures struct {
	log *zap.Logger

	mu struct {
		sync.Mutex // leaf
		next       time.Time
	}
}

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	now := time.Now()
	f.mu.Lock()
	due := !now.Before(f.mu.next)
	if due {
		f.mu.next = now.Add(quiet)
	}
	f.mu.Unlock()
	if due {
		f.log.Warn("the collector does not take spans; they are dropped", zap.Error(err))
	}
}
