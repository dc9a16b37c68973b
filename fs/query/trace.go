package query

import (
	"strings"
	"time"

	"github.com/kvfs/kvfs/fs/strict"
)

// Traced is a request with a trace context that was answered.
type Traced struct {
	Context    string // its name, a traceparent
	Operation  string // exists, longest_hit, load_mask, store_mask, release, why or prefetch
	Blocks     int    // named in it
	Start, End time.Time
	Err        error // what was wrong with it; nil: nothing
}

// Operations of requests that do not name them. Constant.
var opExists, opLongestHit, opPrefetch = []byte("exists"), []byte("longest_hit"), []byte("prefetch")

// traceparentBytes is the length of a traceparent of version 00. Source: W3C Trace Context, 3.2.2.
const traceparentBytes = 55

// IsTraceparent reports whether the name of a request looks like a traceparent. It may still be invalid.
func IsTraceparent(request string) bool {
	return len(request) == traceparentBytes && strings.HasPrefix(request, "00-")
}

// begun returns the time, or the zero time if nobody is told of requests.
func (s *Service) begun() (t time.Time) {
	if s.traced != nil {
		t = s.now()
	}
	return t
}

// ended follows the answer to a request that has begun at start.
func (s *Service) ended(sc *scratch, start time.Time, err *strict.Error) {
	q := &sc.q
	if s.traced == nil || !IsTraceparent(q.request) {
		return
	}
	t := Traced{Context: q.request, Operation: string(q.op), Blocks: q.names.count, Start: start, End: s.now()}
	if _, ok := operations[t.Operation]; !ok && t.Operation != string(opPrefetch) {
		return
	}
	if err != nil {
		t.Err = err
	}
	s.traced(t)
}
