package metrics

import (
	"bytes"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// ContentType is the form of the text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// patience is how long a reader waits for a collection. After it the reader gets the last text.
const patience = 2 * time.Second

// share bounds the cost of collecting, however often the text is read: a collection that took a time begins no earlier than
// share times as long after the last one.
const share = 10

// Page is a text that a daemon collects when somebody reads it. A hanging tier delays a reader by patience at most. Methods may be called in parallel.
type Page struct {
	make     func() []byte
	patience time.Duration

	mu struct {
		sync.Mutex
		running chan struct{} // closed at the end of the collection under way; nil: there is none
		text    []byte        // of the last one
		next    time.Time     // when the next one may begin
		closed  bool
	}
}

// NewPage returns the page of the metrics of what source returns, and of the process. Page calls source from one
// goroutine at a time, until Close.
func NewPage(source func() *Snapshot) *Page {
	registry := prometheus.NewRegistry()
	registry.MustRegister(New(source), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return PageOf(func() []byte { return encode(registry) })
}

// PageOf returns the page of what make returns, which Page calls as NewPage does source.
func PageOf(make func() []byte) *Page { return &Page{make: make, patience: patience} }

// Text returns the text. If a collection is under way, or another one would cost too much, it is that of the
// last one. Text is empty if there is none yet and the first one hangs.
func (p *Page) Text() []byte {
	p.mu.Lock()
	running := p.mu.running
	if running == nil && !p.mu.closed && !time.Now().Before(p.mu.next) {
		running = make(chan struct{})
		p.mu.running = running
		go p.collect(running) // ends with source; Close waits for it
	} else if p.mu.text != nil || running == nil {
		defer p.mu.Unlock()
		return p.mu.text
	}
	p.mu.Unlock()
	await(running, p.patience)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.text
}

// await waits for the end of a collection.
func await(running <-chan struct{}, most time.Duration) {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-running:
	case <-t.C:
	}
}

// collect makes the next text.
func (p *Page) collect(running chan struct{}) {
	begun := time.Now()
	text := p.make()
	took := time.Since(begun)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.text, p.mu.running, p.mu.next = text, nil, begun.Add(share*took)
	close(running)
}

// encode returns what can be gathered. What cannot is a bug, which the tests of the package find.
func encode(from prometheus.Gatherer) []byte {
	families, _ := from.Gather()
	var b bytes.Buffer
	out := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		_ = out.Encode(f) // to memory
	}
	return b.Bytes()
}

// Close ends collecting: source is called no more, unless a collection hangs for longer than a reader would wait.
// Text goes on with the last text.
func (p *Page) Close() {
	p.mu.Lock()
	p.mu.closed = true
	running := p.mu.running
	p.mu.Unlock()
	if running != nil {
		await(running, p.patience)
	}
}
