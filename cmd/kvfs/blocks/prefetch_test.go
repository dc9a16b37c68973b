package blocks

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// held is a control file that gives one answer, and then keeps its reader waiting.
type held struct {
	*io.PipeReader
	w      *io.PipeWriter
	answer string
}

// Write implements io.Writer.
func (h *held) Write(request []byte) (int, error) {
	go h.w.Write([]byte(h.answer)) // ends with the close of the reader
	return len(request), nil
}

// cancelWriter cancels when something is shown.
type cancelWriter struct{ cancel context.CancelFunc }

// Write implements io.Writer.
func (w cancelWriter) Write(p []byte) (int, error) { w.cancel(); return len(p), nil }

// TestPrefetchCancelled shows that a run that is cancelled ends while the daemon is silent, and knows how
// far it was.
func TestPrefetchCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	file := &held{answer: `{"done":2,"total":3,"bytes":2048}` + "\n"}
	file.PipeReader, file.w = io.Pipe()
	c := &client.Controls{Open: func(string) (io.ReadWriteCloser, error) { return file, nil }}
	d, err := c.Dial("/m", "prefetch")
	if err != nil {
		t.Fatal(err)
	}
	bar := show.NewBar(cancelWriter{cancel}, true)
	p := &prefetch{c: c, d: d, blocks: &client.Blocks{Mount: "/m", Names: []string{"x", "y", "z"}}, bar: bar}
	if err := p.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	d.Close()
	if p.sum.Done != 2 || p.sum.Bytes != 2048 || string(p.results) != "???" {
		t.Errorf("%d done, %d bytes, results %s", p.sum.Done, p.sum.Bytes, p.results)
	}
}
