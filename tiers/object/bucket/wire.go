package bucket

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// The kinds of request that are counted.
const (
	opGet = iota
	opList
	opPut // multipart uploads too
	opDelete
	ops
)

var errSilent = errors.New("no answer, or no more of it, for half of the deadline")

// wire makes the requests of the library. It counts them and their bytes, and ends a request of which nothing comes for
// too long, which is then made again.
type wire struct {
	base     *http.Transport
	deadline time.Duration // of Options

	requests     [ops]atomic.Uint64
	bytesRead    atomic.Uint64
	bytesWritten atomic.Uint64
}

// op returns the kind of a request.
func op(r *http.Request) int {
	switch {
	case r.Method == http.MethodGet && r.Header.Get("Range") != "":
		return opGet
	case r.Method == http.MethodGet:
		return opList
	case r.Method == http.MethodDelete || r.URL.Query().Has("delete"):
		return opDelete
	}
	return opPut
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	kind := op(r)
	w.requests[kind].Add(1)
	patience := w.deadline / 2
	if kind != opGet {
		patience *= slower
	}
	ctx, cancel := context.WithCancel(r.Context())
	b := &watched{bytes: &w.bytesRead, patience: patience, cancel: cancel}
	b.timer = time.AfterFunc(patience, func() { b.silent.Store(true); cancel() })
	r = r.WithContext(ctx)
	if r.Body != nil {
		r.Body = &upload{ReadCloser: r.Body, answer: b, bytes: &w.bytesWritten}
	}
	resp, err := w.base.RoundTrip(r)
	b.timer.Stop()
	if err != nil {
		cancel()
		return nil, b.why(err)
	}
	b.ReadCloser = resp.Body
	resp.Body = b
	return resp, nil
}

// watched is the body of an answer. Its reader may take its time; the server may not.
type watched struct {
	io.ReadCloser
	bytes    *atomic.Uint64
	patience time.Duration
	timer    *time.Timer // runs while something is awaited from the server
	silent   atomic.Bool // the timer has fired
	cancel   context.CancelFunc
}

// Read implements io.Reader.
func (b *watched) Read(p []byte) (int, error) {
	b.timer.Reset(b.patience)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	b.bytes.Add(uint64(n))
	return n, b.why(err)
}

// Close implements io.Closer.
func (b *watched) Close() error {
	b.timer.Stop()
	b.cancel() // a body that is not read to its end costs its connection
	return b.ReadCloser.Close()
}

// why returns err, or errSilent if the timer is behind it.
func (b *watched) why(err error) error {
	if err != nil && err != io.EOF && b.silent.Load() {
		return errSilent
	}
	return err
}

// upload is the body of a request.
type upload struct {
	io.ReadCloser
	answer *watched
	bytes  *atomic.Uint64
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.bytes.Add(uint64(n))
	u.answer.timer.Reset(u.answer.patience)
	return n, err
}
