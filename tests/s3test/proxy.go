package s3test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Fault is what a Proxy does to a request. The zero value lets it through.
type Fault struct {
	Status    int           // answers with this status, not asking the server
	Code      string        // of S3, with Status
	Delay     time.Duration // before anything else
	Stall     bool          // no answer until the client gives up
	StallBody bool          // half of the body of the answer, and then nothing until the client gives up
	Reset     bool          // closes the connection, not answering
	Truncate  bool          // half of the body of the answer, and then closes the connection
	Flip      bool          // flips a bit in the body of the answer
	FlipPut   bool          // flips a bit in the body of the request
}

// Proxy is an HTTP server before a Server. Its clients sign requests for its own address, which it passes on.
type Proxy struct {
	URL string

	mu struct {
		sync.Mutex
		script func(*http.Request) Fault
		seen   int
	}
}

// NewProxy starts a proxy before a server without TLS. It ends with the test.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	to, err := url.Parse(s.URL)
	must(tb, err)
	p := &Proxy{}
	p.Script(func(*http.Request) Fault { return Fault{} })
	pass := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host }, // Host stays: it is signed
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(pass, w, r) }))
	p.URL = server.URL
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return p
}

// Script says what happens to each request from now on. It may be called by many goroutines.
func (p *Proxy) Script(f func(*http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.script, p.mu.seen = f, 0
}

// First does a fault to the first n requests from now on.
func (p *Proxy) First(n int, f Fault) {
	var mu sync.Mutex
	p.Script(func(*http.Request) Fault {
		mu.Lock()
		defer mu.Unlock()
		if n--; n >= 0 {
			return f
		}
		return Fault{}
	})
}

// Seen returns how many requests came since the last Script or First.
func (p *Proxy) Seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.seen
}

// serve answers a request.
func (p *Proxy) serve(pass http.Handler, w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.mu.seen++
	script := p.mu.script
	p.mu.Unlock()
	f := script(r)
	gone := r.Context().Done()
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-gone:
			return
		}
	}
	switch {
	case f.Stall:
		io.Copy(io.Discard, r.Body) // net/http sees the end of a client only after the body
		<-gone
		return
	case f.Reset:
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(f.Status)
		io.WriteString(w, "<Error><Code>"+f.Code+"</Code><Message>of the proxy</Message></Error>")
		return
	case f.FlipPut:
		r.Body = io.NopCloser(&flipping{r.Body})
	}
	pass.ServeHTTP(&faulty{ResponseWriter: w, fault: f, gone: gone}, r)
}

// flipping flips a bit of the first byte of each Read.
type flipping struct{ io.Reader }

// Read implements io.Reader.
func (f *flipping) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if n > 0 {
		p[0] ^= 1
	}
	return n, err
}

// faulty is an answer that a fault changes.
type faulty struct {
	http.ResponseWriter
	fault Fault
	gone  <-chan struct{}
	left  int64 // bytes before the body breaks off
}

// Unwrap gives http.ResponseController what it needs to flush.
func (f *faulty) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (f *faulty) WriteHeader(status int) {
	length, _ := strconv.ParseInt(f.Header().Get("Content-Length"), 10, 64) // 0: the body breaks off at once
	f.left = length / 2
	f.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (f *faulty) Write(p []byte) (int, error) {
	if f.fault.Flip && len(p) > 0 {
		p = slices.Clone(p)
		p[0] ^= 1
	}
	if !f.fault.Truncate && !f.fault.StallBody {
		return f.ResponseWriter.Write(p)
	}
	n, err := f.ResponseWriter.Write(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	if err != nil || n == len(p) {
		return n, err
	}
	if err := http.NewResponseController(f.ResponseWriter).Flush(); err != nil {
		return n, err
	}
	if f.fault.StallBody {
		<-f.gone
	}
	panic(http.ErrAbortHandler)
}
