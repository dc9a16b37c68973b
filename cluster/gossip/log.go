package gossip

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// rejects counts rejected input of strangers.
type rejects struct {
	log   *zap.Logger
	total atomic.Uint64

	mu     sync.Mutex // guards warned
	warned time.Time
}

// add counts one packet or stream. It warns at most once a minute, so that a stranger cannot
// fill the log.
func (r *rejects) add(why, from string) {
	total := r.total.Add(1)
	r.mu.Lock()
	warn := r.warned.IsZero() || time.Since(r.warned) >= time.Minute
	if warn {
		r.warned = time.Now()
	}
	r.mu.Unlock()
	if warn {
		r.log.Warn("rejected input that is not from this cluster", zap.String("why", why),
			zap.String("from", from), zap.Uint64("rejected", total))
	}
}

// rejections are parts of memberlist's log messages about input that has another protocol or
// is not encrypted with our keys. Memberlist reports such input nowhere else. A test checks
// each kind.
var rejections = []string{
	"Decrypt packet failed",
	"failed to receive",
	"cannot decode label",
	"label header cannot be empty",
	"with unacceptable label",
	"invalid checksum",
	"missing message type byte",
	"not supported",
	"invalid msgType",
	"Failed to decode",
	"truncated messages",
	"Failed to decompress",
	"Failed to read remote state",
	"Failed to receive user message",
	"Failed push/pull merge",
	"alive message for",
}

// logWriter receives memberlist's log, one line a call. It counts rejected input and passes
// the other lines on with the level of their prefix.
type logWriter struct {
	log     *zap.Logger
	rejects *rejects
}

// Write never fails.
func (w *logWriter) Write(p []byte) (int, error) {
	line := string(bytes.TrimSpace(p))
	level, text := "ERR", line
	if rest, ok := strings.CutPrefix(line, "["); ok {
		if l, t, ok := strings.Cut(rest, "] "); ok {
			level, text = l, t
		}
	}
	text = strings.TrimPrefix(text, "memberlist: ")
	switch {
	case level == "DEBUG":
		w.log.Debug(text)
	case strings.HasPrefix(text, "Conflicting address"):
		w.log.Debug(text) // the ConflictDelegate warns
	case strings.HasPrefix(text, "Refuting an alive message"):
		w.log.Debug("refuting an alive message of an earlier run or with other meta") // without the bytes of the meta
	case (level == "ERR" || level == "WARN") && isRejection(text):
		why, from, _ := strings.Cut(text, " from=")
		w.rejects.add(why, from)
		w.log.Debug(text)
	case level == "INFO":
		w.log.Info(text)
	default:
		w.log.Warn(text)
	}
	return len(p), nil
}

func isRejection(text string) bool {
	for _, part := range rejections {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
