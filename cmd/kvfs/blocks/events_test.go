package blocks

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
)

// TestFollowEventsBrokenPipe shows that an error of writing ends it.
func TestFollowEventsBrokenPipe(t *testing.T) {
	lines := make(chan client.Line, 10)
	for line := range strings.Lines(`{"seq":41,"event":"stored"}` + "\n") {
		lines <- client.Line{Text: []byte(line)}
	}
	err := (&Events{}).follow(t.Context(), lines, brokenPipe{})
	if fmt.Sprint(err) != "broken pipe" {
		t.Errorf("got %v", err)
	}
	lines <- client.Line{Err: io.ErrUnexpectedEOF}
	if err := (&Events{}).follow(t.Context(), lines, io.Discard); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}

// brokenPipe is a writer that nobody reads.
type brokenPipe struct{}

// Write implements io.Writer.
func (brokenPipe) Write([]byte) (int, error) { return 0, unix.EPIPE }
