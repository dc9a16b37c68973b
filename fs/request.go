package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
)

// maxRequest bounds a request to a control file, in bytes.
const maxRequest = 16 << 20

// controlHandler answers one request. What it returns is encoded as JSON.
type controlHandler func(ctx context.Context, request []byte) any

// controlError is the answer to a request that failed.
type controlError struct {
	Error string `json:"error"`
}

// controlRequest is the dialogue on one open file of requests. What is written is
// a request, until the first read, which runs it; what is read is the answer, up
// to its end. Then, or at any time before, the next request may be written.
//
// The request runs on a goroutine of its own. A reader that is interrupted stops
// waiting for it and may come back; the close of the descriptor cancels it.
type controlRequest struct {
	do     controlHandler
	wg     *sync.WaitGroup // of the goroutines of the mount
	ctx    context.Context // until the close, or the end of the mount
	cancel context.CancelFunc

	mu struct {
		sync.Mutex // leaf
		request    []byte
		written    bool          // request has not been run
		tooLarge   bool          // and is only counted as written
		running    chan struct{} // closed when the answer is there; nil if none is awaited
		answer     []byte        // what is left to read
		used       bool          // there has been a request
	}
}

// newControlRequest begins a dialogue, which ends with ctx or close. wg counts
// the goroutines that it starts.
func newControlRequest(ctx context.Context, wg *sync.WaitGroup, do controlHandler) *controlRequest {
	r := &controlRequest{do: do, wg: wg}
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// close cancels what runs.
func (r *controlRequest) close() { r.cancel() }

// write adds to the request, or begins the next one. It fails with EBUSY while one
// runs. What is too large is swallowed, and its answer says so.
func (r *controlRequest) write(data []byte) (uint32, fuse.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.running != nil {
		return 0, fuse.EBUSY
	}
	if !r.mu.written {
		r.mu.written, r.mu.used, r.mu.tooLarge = true, true, false
		r.mu.request, r.mu.answer = nil, nil
	}
	if len(r.mu.request)+len(data) > maxRequest {
		r.mu.request, r.mu.tooLarge = nil, true
	}
	if !r.mu.tooLarge {
		r.mu.request = append(r.mu.request, data...)
	}
	return uint32(len(data)), fuse.OK
}

// read runs the request if that has not been done, waits for the answer, and
// returns its next bytes; none at its end. It fails with EINTR when cancel is
// closed first, and with EIO when the mount goes away.
func (r *controlRequest) read(cancel <-chan struct{}, buf []byte) (int, fuse.Status) {
	if running := r.start(); running != nil {
		select {
		case <-running:
		case <-cancel:
			return 0, fuse.EINTR
		case <-r.ctx.Done():
			return 0, fuse.EIO
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := copy(buf, r.mu.answer)
	r.mu.answer = r.mu.answer[n:]
	return n, fuse.OK
}

// start runs what was written, and returns the channel to wait on, nil if there is
// nothing to wait for.
func (r *controlRequest) start() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.running != nil:
		return r.mu.running
	case !r.mu.used:
		r.mu.used = true
		r.mu.answer = encodeAnswer(controlError{"nothing was asked: write a request to this descriptor first"})
		return nil
	case !r.mu.written:
		return nil
	}
	request, do := r.mu.request, r.do
	if r.mu.tooLarge {
		do = func(context.Context, []byte) any {
			return controlError{fmt.Sprintf("the request has more than %d bytes", maxRequest)}
		}
	}
	running := make(chan struct{})
	r.mu.request, r.mu.written, r.mu.running = nil, false, running
	r.wg.Go(func() { // ends with the handler
		answer := encodeAnswer(do(r.ctx, request))
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.answer, r.mu.running = answer, nil
		close(running)
	})
	return running
}

// encodeAnswer returns the JSON of an answer, on one line.
func encodeAnswer(answer any) []byte {
	text, err := json.Marshal(answer)
	if err != nil {
		text = []byte(`{"error": "the answer cannot be encoded"}`) // a bug: answers are plain structs
	}
	return append(text, '\n')
}

// controlJSON makes a handler of a function of a request in JSON.
func controlJSON[Q, A any](do func(context.Context, Q) (A, error)) controlHandler {
	return func(ctx context.Context, request []byte) any {
		var q Q
		if err := decodeRequest(request, &q); err != nil {
			return controlError{"request: " + err.Error()}
		}
		a, err := do(ctx, q)
		if err != nil {
			return controlError{err.Error()}
		}
		return a
	}
}

// decodeRequest decodes exactly one JSON value without unknown fields. Its errors
// say where in the request they are.
func decodeRequest(request []byte, q any) error {
	in := json.NewDecoder(bytes.NewReader(request))
	in.DisallowUnknownFields()
	err := in.Decode(q)
	if err == nil {
		if rest := bytes.TrimSpace(request[in.InputOffset():]); len(rest) > 0 {
			return fmt.Errorf("byte %d: more than one value; ask again after the answer", in.InputOffset()+1)
		}
		return nil
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := wrong.Field
		if field == "" {
			field = "the whole"
		}
		return fmt.Errorf("%s: got %s, want %v", field, wrong.Value, wrong.Type)
	}
	if errors.Is(err, io.EOF) {
		return errors.New("empty")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("byte %d: ends too early", len(request))
	}
	return err // names the unknown field
}

// EvictRequest is what is written to .kvfs/evict, as JSON.
type EvictRequest struct {
	Tier  string   `json:"tier"`            // "memory", or a tier below it: "disk"
	All   bool     `json:"all,omitempty"`   // every block of the tier, without Paths
	Paths []string `json:"paths,omitempty"` // below the mount; a directory means all below it
	Force bool     `json:"force,omitempty"` // also what no other tier holds: such a block is lost
}

// EvictAnswer is what is then read from it. If the request failed it is
// {"error": "why"} instead.
type EvictAnswer struct {
	Blocks    int64       `json:"blocks"` // evicted
	Bytes     int64       `json:"bytes"`
	KeptTotal int64       `json:"kept_total"` // how many were not
	Kept      []EvictKept `json:"kept"`       // the first of them
}

// EvictKept is a block that was not evicted, or a path at which there is none.
type EvictKept struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// evictor is the part of the engine that .kvfs/evict needs.
type evictor interface {
	EvictFrom(context.Context, tiers.EvictRequest) (tiers.EvictReply, error)
}

// evictWith answers requests to evict, once the kernel has forgotten the names that
// went with their blocks, which flush waits for.
func evictWith(engine evictor, flush func(context.Context)) func(context.Context, EvictRequest) (EvictAnswer, error) {
	return func(ctx context.Context, q EvictRequest) (EvictAnswer, error) {
		reply, err := engine.EvictFrom(ctx, tiers.EvictRequest(q))
		flush(ctx)
		if err != nil {
			return EvictAnswer{}, err
		}
		a := EvictAnswer{Blocks: reply.Blocks, Bytes: reply.Bytes, KeptTotal: reply.KeptN, Kept: []EvictKept{}}
		for _, kept := range reply.Kept {
			a.Kept = append(a.Kept, EvictKept(kept))
		}
		return a, nil
	}
}
