package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// maxRequest bounds a request to a control file, in bytes.
const maxRequest = 16 << 20

// Dialogue answers one request to a control file, which it may keep until it returns. What it
// writes to answer is read by the client; a write waits while there is much that has not been
// read, and fails when the descriptor is closed or the mount goes away, as ctx is done then.
type Dialogue func(ctx context.Context, request []byte, answer io.Writer)

// controlError is the answer to a request that failed.
type controlError struct {
	Error string `json:"error"`
	Field string `json:"field,omitempty"` // JSON Pointer to the part of the request that is to blame
}

const (
	// maxAnswer is how much of an answer waits to be read before its writer has to wait.
	maxAnswer = 1 << 20
	// maxSpare bounds the buffer that a descriptor keeps for its next request.
	maxSpare = 4 << 20
)

// controlRequest is the dialogue on one open file of requests. What is written is
// a request, until the first read, which runs it; what is read is the answer, up
// to its end. Then, or when it has been answered, the next request may be written.
//
// The request runs on a goroutine of its own. A reader that is interrupted stops
// waiting for it and may come back; the close of the descriptor cancels it.
type controlRequest struct {
	do     Dialogue
	wg     *sync.WaitGroup // of the goroutines of the mount
	ctx    context.Context // until the close, or the end of the mount
	cancel context.CancelFunc

	follows bool // it was opened for reading only: the end of the mount is the end of the stream

	mu struct {
		sync.Mutex               // leaf
		request    requestBuffer // the handler's while it runs
		written    bool          // request has not been run
		refused    string        // why it will not be, and is only counted as written; else empty
		running    bool          // the handler has not returned
		used       bool          // there has been a request
		closed     bool          // there will be none any more
		answer     []byte        // what has not been read begins at read
		read       int           // bytes of answer
		changed    chan struct{} // closed when any of that changes; nil if nobody waits
	}
}

// newControlRequest begins a dialogue, which ends with ctx or close. wg counts
// the goroutines that it starts, memory what its requests take until close.
func newControlRequest(ctx context.Context, wg *sync.WaitGroup, memory *requestMemory, do Dialogue) *controlRequest {
	r := &controlRequest{do: do, wg: wg}
	r.mu.request.memory = memory
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// ask runs the empty request.
func (r *controlRequest) ask() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follows, r.mu.used = true, true
	r.startLocked()
}

// close cancels what runs, and gives the memory back, or leaves that to what runs.
func (r *controlRequest) close() {
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.closed, r.mu.written = true, false
	if !r.mu.running {
		r.mu.request.drop()
	}
}

// write adds to the request, or begins the next one. It fails with EBUSY while one
// runs. What is too large, or finds no memory, is swallowed, and its answer says so:
// so no writer waits for memory while it has some itself.
func (r *controlRequest) write(data []byte) (uint32, fuse.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return 0, fuse.EBADF
	case r.mu.running:
		return 0, fuse.EBUSY
	}
	if !r.mu.written {
		r.mu.written, r.mu.used, r.mu.refused = true, true, ""
		r.clearAnswerLocked()
	}
	switch {
	case r.mu.refused != "":
	case len(r.mu.request.bytes)+len(data) > maxRequest:
		r.mu.refused = refusedSize
		r.mu.request.drop()
	case !r.mu.request.add(data):
		r.mu.refused = refusedMemory
		r.mu.request.drop()
	}
	return uint32(len(data)), fuse.OK
}

// read runs the request if that has not been done, waits until some of the answer is there, and
// returns it; none at its end. It fails with EINTR when cancel is closed first, with EAGAIN if it
// would have to wait and may not, and with EIO when the mount goes away.
func (r *controlRequest) read(cancel <-chan struct{}, nonblock bool, buf []byte) (int, fuse.Status) {
	for {
		n, changed := r.take(buf)
		switch {
		case changed == nil:
			return n, fuse.OK
		case nonblock:
			return 0, fuse.EAGAIN
		}
		select {
		case <-changed:
		case <-cancel:
			return 0, fuse.EINTR
		case <-r.ctx.Done():
			if r.follows {
				return 0, fuse.OK
			}
			return 0, fuse.EIO
		}
	}
}

// take copies what there is of the answer, having begun the request if need be. If the reader
// has to wait, it returns the channel to wait on.
func (r *controlRequest) take(buf []byte) (int, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.written && !r.mu.running {
		r.startLocked()
	}
	if !r.mu.used {
		r.mu.used = true
		r.mu.answer = encodeAnswer(controlError{Error: "nothing was asked: write a request to this descriptor first"})
	}
	if r.mu.read == len(r.mu.answer) && r.mu.running {
		return 0, r.waitLocked()
	}
	n := copy(buf, r.mu.answer[r.mu.read:])
	if r.mu.read += n; r.mu.read == len(r.mu.answer) {
		r.clearAnswerLocked()
		r.wakeLocked()
	}
	return n, nil
}

// clearAnswerLocked forgets the answer, and its buffer if that is large.
func (r *controlRequest) clearAnswerLocked() {
	if cap(r.mu.answer) > freeHeld {
		r.mu.answer = nil
	}
	r.mu.answer, r.mu.read = r.mu.answer[:0], 0
}

// waitLocked returns a channel that is closed at the next change.
func (r *controlRequest) waitLocked() <-chan struct{} {
	if r.mu.changed == nil {
		r.mu.changed = make(chan struct{})
	}
	return r.mu.changed
}

func (r *controlRequest) wakeLocked() {
	if r.mu.changed != nil {
		close(r.mu.changed)
		r.mu.changed = nil
	}
}

// startLocked runs what was written.
func (r *controlRequest) startLocked() {
	request, do := r.mu.request.bytes, r.do
	if why := r.mu.refused; why != "" {
		do = func(_ context.Context, _ []byte, answer io.Writer) {
			answer.Write(encodeAnswer(controlError{Error: why}))
		}
	}
	r.mu.written, r.mu.running = false, true
	r.wg.Go(func() { // ends with the handler
		do(r.ctx, request, answerWriter{r})
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.running = false
		if r.mu.closed {
			r.mu.request.drop()
		} else {
			r.mu.request.empty()
		}
		r.wakeLocked()
	})
}

// answerWriter is where the handler of a request writes.
type answerWriter struct{ r *controlRequest }

// Write implements io.Writer.
func (w answerWriter) Write(p []byte) (int, error) {
	r := w.r
	for {
		r.mu.Lock()
		if r.ctx.Err() != nil {
			r.mu.Unlock()
			return 0, r.ctx.Err()
		}
		if len(r.mu.answer) < maxAnswer {
			r.mu.answer = append(r.mu.answer, p...)
			r.wakeLocked()
			r.mu.Unlock()
			return len(p), nil
		}
		changed := r.waitLocked()
		r.mu.Unlock()
		select {
		case <-changed:
		case <-r.ctx.Done():
		}
	}
}

// encodeAnswer returns the JSON of an answer, on one line.
func encodeAnswer(answer any) []byte {
	text, err := json.Marshal(answer)
	if err != nil {
		text = []byte(`{"error": "the answer cannot be encoded"}`) // a bug: answers are plain structs
	}
	return append(text, '\n')
}

// controlJSON makes a dialogue of a function of a request in JSON.
func controlJSON[Q, A any](do func(context.Context, Q) (A, error)) Dialogue {
	run := func(ctx context.Context, request []byte) any {
		var q Q
		if err := decodeRequest(request, &q); err != nil {
			return refusal(err)
		}
		a, err := do(ctx, q)
		if err != nil {
			return refusal(err)
		}
		return a
	}
	return func(ctx context.Context, request []byte, answer io.Writer) {
		answer.Write(encodeAnswer(run(ctx, request))) // fails if nobody waits for it any more
	}
}

// StreamJSON makes a dialogue of a function that takes a request in JSON, of which all parts may
// be left out, and writes an answer of any length. Its error becomes the answer, or the last line;
// one that has a method Field() string, a JSON Pointer, says which part of the request is to blame.
func StreamJSON[Q any](do func(ctx context.Context, q Q, answer io.Writer) error) Dialogue {
	return func(ctx context.Context, request []byte, answer io.Writer) {
		var q Q
		if len(request) > 0 {
			if err := decodeRequest(request, &q); err != nil {
				answer.Write(encodeAnswer(refusal(err)))
				return
			}
		}
		if err := do(ctx, q, answer); err != nil {
			answer.Write(encodeAnswer(refusal(err))) // fails if nobody waits for it any more
		}
	}
}

// Limits of errors, in bytes: requests may have long names, which are not to be sent back.
const (
	maxErrorText  = 1 << 10
	maxErrorField = 1 << 10
)

// fieldError is an error that knows which part of a request is to blame.
type fieldError interface {
	error
	Field() string // JSON Pointer; empty: none in particular
}

// refusal is the answer to a request that cannot be obeyed.
func refusal(err error) controlError {
	e := controlError{Error: block.Shorten(err.Error(), maxErrorText)}
	if at, ok := errors.AsType[fieldError](err); ok {
		e.Field = block.Clip(at.Field(), maxErrorField)
		if len(e.Field) < len(at.Field()) {
			e.Field = strings.TrimSuffix(e.Field, "~") // half an escape
		}
	}
	return e
}

// requestFault is what is wrong with a request.
type requestFault struct{ field, why string }

// Error returns the reason.
func (e *requestFault) Error() string { return "request: " + e.why }

// Field implements fieldError.
func (e *requestFault) Field() string { return e.field }

// part is a member of a request, or an element of one that is a list.
type part struct {
	name  string
	index int // -1: all of it
}

// pointerName encodes a name as part of a JSON Pointer.
var pointerName = strings.NewReplacer("~", "~0", "/", "~1")

// faulty makes the error about the part.
func (p part) faulty(format string, args ...any) error {
	name := block.Shorten(p.name, block.Shown)
	field := "/" + pointerName.Replace(block.Clip(p.name, maxErrorField))
	if p.index >= 0 {
		field += "/" + strconv.Itoa(p.index)
		name += "[" + strconv.Itoa(p.index) + "]"
	}
	return &requestFault{field, name + ": " + fmt.Sprintf(format, args...)}
}

// decodeRequest decodes exactly one JSON object into the struct that q points to. Its members are
// strings, bools and whole numbers, pointers to such, which may be null, and lists of such. Its
// errors say where in the request they are.
func decodeRequest(request []byte, q any) error {
	if !json.Valid(request) {
		return &requestFault{why: syntaxFault(request)}
	}
	in := json.NewDecoder(bytes.NewReader(request))
	in.UseNumber()
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return &requestFault{why: fmt.Sprintf("the whole: got %s, want object", tokenKind(t))}
	}
	members := reflect.ValueOf(q).Elem()
	seen := map[string]bool{}
	for in.More() {
		t, err := in.Token()
		if err != nil {
			return err // cannot be: the syntax was checked
		}
		at := part{t.(string), -1}
		member := memberOf(members, at.name)
		switch {
		case !member.IsValid():
			return at.faulty("there is no such member")
		case seen[at.name]:
			return at.faulty("is there twice")
		}
		seen[at.name] = true
		if err := decodeValue(in, at, member); err != nil {
			return err
		}
	}
	return nil
}

// syntaxFault returns what is wrong with a request that is not one JSON value.
func syntaxFault(request []byte) string {
	in := json.NewDecoder(bytes.NewReader(request))
	var value json.RawMessage
	err := in.Decode(&value)
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	switch {
	case err == nil:
		return fmt.Sprintf("byte %d: more than one value; ask again after the answer", in.InputOffset()+1)
	case ok:
		return fmt.Sprintf("byte %d: %v", syntax.Offset, err)
	case errors.Is(err, io.EOF):
		return "empty"
	}
	return fmt.Sprintf("byte %d: ends too early", len(request))
}

// memberOf returns the field of a struct that has a name in JSON; the zero Value if there is none.
func memberOf(members reflect.Value, name string) reflect.Value {
	for i := range members.NumField() {
		field := members.Type().Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == "" {
			tag = field.Name
		}
		if tag == name {
			return members.Field(i)
		}
	}
	return reflect.Value{}
}

// decodeValue decodes the next value into v.
func decodeValue(in *json.Decoder, at part, v reflect.Value) error {
	t, err := in.Token()
	if err != nil {
		return err // cannot be: the syntax was checked
	}
	if v.Kind() == reflect.Pointer {
		if t == nil {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Slice:
		if t == json.Delim('[') {
			return decodeList(in, at, v)
		}
		return at.faulty("got %s, want list", tokenKind(t))
	case reflect.String:
		if s, ok := t.(string); ok {
			v.SetString(s)
			return nil
		}
		return at.faulty("got %s, want string", tokenKind(t))
	case reflect.Bool:
		if b, ok := t.(bool); ok {
			v.SetBool(b)
			return nil
		}
		return at.faulty("got %s, want bool", tokenKind(t))
	}
	n, ok := t.(json.Number)
	if !ok {
		return at.faulty("got %s, want number", tokenKind(t))
	}
	if err := json.Unmarshal([]byte(n), v.Addr().Interface()); err != nil {
		return at.faulty("%s is not a whole number, or out of range", block.Shorten(string(n), block.Shown))
	}
	return nil
}

// decodeList decodes the rest of a list.
func decodeList(in *json.Decoder, at part, list reflect.Value) error {
	list.Set(reflect.MakeSlice(list.Type(), 0, 0))
	element := reflect.New(list.Type().Elem()).Elem()
	for at.index = 0; in.More(); at.index++ {
		if err := decodeValue(in, at, element); err != nil {
			return err
		}
		list.Set(reflect.Append(list, element))
	}
	_, err := in.Token()
	return err
}

// tokenKind names what begins with a token.
func tokenKind(t json.Token) string {
	switch t := t.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case string:
		return "string"
	case json.Delim:
		if t == '{' {
			return "object"
		}
		return "list"
	}
	return "number"
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
			a.Kept = append(a.Kept, EvictKept{kept.Path, kept.Reason.String()})
		}
		return a, nil
	}
}
