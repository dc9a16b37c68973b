package gossip

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// rejects counts what strangers send.
type rejects struct {
	log   *zap.Logger
	total atomic.Uint64

	mu     sync.Mutex // guards warned
	warned time.Time
}

// add counts one packet or stream, and warns of it at most once a minute: a stranger
// must not be able to fill the log.
func (r *rejects) add(why, from string) {
	total := r.total.Add(1)
	r.mu.Lock()
	warn := r.warned.IsZero() || time.Since(r.warned) >= time.Minute
	if warn {
		r.warned = time.Now()
	}
	r.mu.Unlock()
	if warn {
		r.log.Warn("rejected what is not from this cluster", zap.String("why", why),
			zap.String("from", from), zap.Uint64("rejected", total))
	}
}

// rejections are the parts of memberlist's messages that tell of input which is not of
// its protocol or not encrypted with our keys. It has no other way to tell. A test shows
// that each kind of bad input is counted.
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

// logWriter takes memberlist's log, one line a call: it counts what is rejected and
// passes the rest on with the level of its prefix.
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
