package control

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// maxRequest bounds a request to a control file, in bytes.
const maxRequest = 16 << 20

const (
	// maxAnswer is how much of an answer waits to be read before its writer has to wait.
	maxAnswer = 1 << 20
	// maxSpare bounds the buffer that a descriptor keeps for its next request.
	maxSpare = 4 << 20
)

// conversation is the dialogue on one open file of requests. A client writes a request; its
// first read runs the request; it then reads the answer up to its end. After that the client
// may write the next request.
//
// The request runs on a goroutine of its own. An interrupted reader stops waiting for the
// answer and may come back. The close of the descriptor cancels the request.
type conversation struct {
	do     Dialogue
	wg     *sync.WaitGroup // of the goroutines of the mount
	ctx    context.Context // until the close, or the end of the mount
	cancel context.CancelFunc

	follows bool // opened for reading only: at the end of the mount, read returns the end of the stream

	mu struct {
		sync.Mutex               // leaf
		request    requestBuffer // the handler's while it runs
		written    bool          // request has not been run
		refused    string        // why the request is refused; its bytes are then only counted as written; else empty
		running    bool          // the handler has not returned
		used       bool          // there has been a request
		closed     bool          // no further request
		answer     []byte        // the unread part begins at read
		read       int           // bytes of answer
		changed    chan struct{} // closed at the next change of the above; nil if nobody waits
	}
}

// newConversation begins a dialogue, which ends with ctx or close. wg counts its goroutines.
// memory counts the bytes of its requests until close.
func newConversation(ctx context.Context, wg *sync.WaitGroup, memory *requestMemory, do Dialogue) *conversation {
	r := &conversation{do: do, wg: wg}
	r.mu.request.memory = memory
	r.ctx, r.cancel = context.WithCancel(ctx)
	return r
}

// ask runs the empty request.
func (r *conversation) ask() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follows, r.mu.used = true, true
	r.startLocked()
}

// close cancels the running request. It gives the memory back, or leaves that to the request.
func (r *conversation) close() {
	r.cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.closed, r.mu.written = true, false
	if !r.mu.running {
		r.mu.request.drop()
	}
}

// write adds to the request, or begins the next one. It fails with EBUSY while a request runs.
// A request that is too large, or finds no memory, is discarded, and its answer says so: a
// writer that holds memory never waits for more.
func (r *conversation) write(data []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return 0, unix.EBADF
	case r.mu.running:
		return 0, unix.EBUSY
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
	return len(data), nil
}

// read runs the written request, waits until some of the answer is there, and returns that.
// Zero bytes are the end of the answer. It fails with EINTR when cancel is closed first, with
// EAGAIN if it would have to wait and may not, and with EIO when the mount goes away.
func (r *conversation) read(cancel <-chan struct{}, nonblock bool, buf []byte) (int, error) {
	for {
		n, changed := r.take(buf)
		switch {
		case changed == nil:
			return n, nil
		case nonblock:
			return 0, unix.EAGAIN
		}
		select {
		case <-changed:
		case <-cancel:
			return 0, unix.EINTR
		case <-r.ctx.Done():
			if r.follows {
				return 0, nil
			}
			return 0, unix.EIO
		}
	}
}

// take copies the available part of the answer, after starting a written request. If the reader
// has to wait, take returns the channel to wait on.
func (r *conversation) take(buf []byte) (int, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.written && !r.mu.running {
		r.startLocked()
	}
	if !r.mu.used {
		r.mu.used = true
		r.mu.answer = encodeAnswer(failure{Error: "nothing was asked: write a request to this descriptor first"})
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
func (r *conversation) clearAnswerLocked() {
	if cap(r.mu.answer) > freeHeld {
		r.mu.answer = nil
	}
	r.mu.answer, r.mu.read = r.mu.answer[:0], 0
}

// waitLocked returns a channel that is closed at the next change.
func (r *conversation) waitLocked() <-chan struct{} {
	if r.mu.changed == nil {
		r.mu.changed = make(chan struct{})
	}
	return r.mu.changed
}

func (r *conversation) wakeLocked() {
	if r.mu.changed != nil {
		close(r.mu.changed)
		r.mu.changed = nil
	}
}

// startLocked runs the written request.
func (r *conversation) startLocked() {
	request, do := r.mu.request.bytes, r.do
	if why := r.mu.refused; why != "" {
		do = func(_ context.Context, _ []byte, answer io.Writer) {
			answer.Write(encodeAnswer(failure{Error: why}))
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

// answerWriter appends to the answer of a request.
type answerWriter struct{ r *conversation }

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
