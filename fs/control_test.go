package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/tiers"
)

// evictorFunc is a control.Evictor.
type evictorFunc func(context.Context, tiers.EvictRequest) (tiers.EvictReply, error)

// EvictFrom implements control.Evictor.
func (f evictorFunc) EvictFrom(ctx context.Context, r tiers.EvictRequest) (tiers.EvictReply, error) {
	return f(ctx, r)
}

// TestRequestThroughMount shows the dialogue through the kernel: another process
// asks twice on one descriptor, a large request included, while a request that
// runs keeps nobody else from the mount; a reader that is killed ends it.
func TestRequestThroughMount(t *testing.T) {
	for name, passthrough := range map[string]Switch{"own device": Auto, "go-fuse's server": Off} {
		t.Run(name, func(t *testing.T) { requestThroughMount(t, passthrough) })
	}
}

func requestThroughMount(t *testing.T, passthrough Switch) {
	ended := make(chan error, 1)
	began := make(chan struct{})
	file := control.Evict(evictorFunc(func(ctx context.Context, r tiers.EvictRequest) (tiers.EvictReply, error) {
		if r.Tier != "slow" {
			return tiers.EvictReply{Blocks: int64(len(r.Paths)), Bytes: int64(len(fmt.Sprint(r.Paths)))}, nil
		}
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return tiers.EvictReply{}, ctx.Err()
	}), func(context.Context) {}, nil)
	file.Name = "asked"
	s, dir := mountHereWith(t, Options{Control: []control.File{file}, Passthrough: passthrough})
	path := filepath.Join(dir, ".kvfs", file.Name)
	startClient(t).do("evict", path)

	victim := startClient(t)
	fmt.Fprintln(victim.in, "evict-slow", path)
	<-began
	other := startClient(t)
	other.do("write", filepath.Join(dir, "g", "block"))
	other.do("read", filepath.Join(dir, "g", "block"))
	victim.kill()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the request ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the request goes on without anybody to hear the answer")
	}
	released(t, s)
}

// clientEvict is what the client does for TestRequestThroughMount.
func clientEvict(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Mode() != 0o600 {
		return fmt.Errorf("mode %v, %w", st.Mode(), err)
	}
	for _, n := range []int{1, 100_000, 2} {
		request, err := json.Marshal(control.EvictRequest{Tier: "memory", Paths: slices.Repeat([]string{"group/block"}, n)})
		if err != nil {
			return err
		}
		if _, err := f.Write(append(request, '\n')); err != nil {
			return err
		}
		var answer bytes.Buffer
		if _, err := answer.ReadFrom(f); err != nil {
			return err
		}
		want := fmt.Sprintf(`{"blocks":%d,"bytes":%d,"kept_total":0,"kept":[]}`+"\n", n, 12*n+1)
		if answer.String() != want {
			return fmt.Errorf("%d paths: got %q, want %q", n, answer.String(), want)
		}
	}
	if _, err := f.Seek(0, 0); !errors.Is(err, unix.ESPIPE) {
		return fmt.Errorf("seek: %w", err)
	}
	return nil
}

// clientEvictSlow asks for what never ends.
func clientEvictSlow(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(`{"tier":"slow"}`); err != nil {
		return err
	}
	_, err = f.Read(make([]byte, 100))
	return err
}

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitFor waits until wrong has nothing to say.
func waitFor(t testing.TB, wrong func() string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // reason: polls for what has no event
		what := wrong()
		if what == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}
