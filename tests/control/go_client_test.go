package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	client "github.com/kvfs/kvfs/clients/go"
	"github.com/kvfs/kvfs/tests/harness"
)

// TestGoClient shows that a Go program writes, finds, prefetches and reads blocks with package clients/go.
func TestGoClient(t *testing.T) {
	d := harness.Mount(t, harness.Options{Disk: "256MiB"})
	c, err := client.Open(d.Dir)
	must(t, "open", err)
	ctx := t.Context()
	hashes := make([]string, 40)
	for i := range hashes {
		hashes[i] = hash(i)
		must(t, "put", c.Put("g/sub/"+hashes[i], pattern(hashes[i], 100_000+i)))
	}
	blocks := client.Blocks{Hashes: append(slices.Clone(hashes), "absent"), Group: "g/sub"}
	wantExists := func(states string) {
		t.Helper()
		e, err := c.Exists(ctx, blocks, client.LookupOptions{Request: "go"})
		must(t, "exists", err)
		if e.States != states || e.Prefix != 40 || e.Hits != 40 || e.Misses != 1 || !e.Hit(39) || e.Hit(40) {
			t.Errorf("exists: %+v, want states %s", e, states)
		}
	}
	wantExists(strings.Repeat("m", 40) + ".")
	n, err := c.Release(ctx, "go")
	if must(t, "release", err); n != 40 {
		t.Errorf("%d leases released, want 40", n)
	}

	kvfs(t, "drain", d.Dir)
	kvfs(t, "evict", "--tier", "memory", "--all", d.Dir)
	wantExists(strings.Repeat("d", 40) + ".")
	last := client.Progress{}
	p, err := c.Prefetch(ctx, blocks, func(p client.Progress) { last = p })
	must(t, "prefetch", err)
	if p.Results != strings.Repeat("l", 40)+"." || p.Loaded != 40 || p.Absent != 1 || p.Done != 41 || last != p.Progress {
		t.Errorf("prefetch: %+v, last progress %+v", p, last)
	}
	var buf []byte
	for i, h := range hashes {
		buf, err = c.Get("g/sub/"+h, buf)
		if must(t, "get", err); !bytes.Equal(buf, pattern(h, 100_000+i)) {
			t.Fatalf("block %d has other bytes", i)
		}
	}

	tokens := 40 * 16
	spec := map[string]any{"hash_block_size": 16, "groups": []any{map[string]any{"kind": "full", "block_size": 16}}}
	hit, err := c.LongestHit(ctx, client.Prompt{Spec: spec, Hashes: hashes, Template: "g/sub/{hash}", NumTokens: &tokens, Fetch: true}, client.LookupOptions{})
	must(t, "longest hit", err)
	if hit.HitTokens != tokens-16 || !hit.Capped || len(hit.Groups) != 1 || len(hit.Groups[0].Fetch) != 39 {
		t.Errorf("longest hit: %+v", hit)
	}
}

// TestGoClientEvents shows that events come in order and that leaving the loop ends them.
func TestGoClientEvents(t *testing.T) {
	d := harness.Mount(t, harness.Options{})
	c, err := client.Open(d.Dir)
	must(t, "open", err)
	must(t, "put", c.Put("g/a", []byte("x")))
	must(t, "put", c.Put("h/a", []byte("x")))
	must(t, "put", c.Put("g/b", []byte("x")))
	var got []string
	for e, err := range c.Events(t.Context(), client.EventOptions{Since: 1, Groups: []string{"g"}, Events: []string{"stored"}}) {
		must(t, "events", err)
		if got = append(got, e.Group+"/"+e.Hash); len(got) == 2 {
			break
		}
	}
	if want := "[g/a g/b]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range c.Events(ctx, client.EventOptions{}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of the context: %v", err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range c.Events(t.Context(), client.EventOptions{Since: 1, Events: []string{"gap"}}) {
			ended <- err
		}
	}()
	d.Kill()
	if err := <-ended; err == nil {
		t.Error("no error after the end of the daemon")
	}
	d.Restart()
	if _, err := c.Exists(t.Context(), client.Blocks{Keys: []string{"g/a"}}, client.LookupOptions{}); err != nil {
		t.Errorf("with the next daemon: %v", err)
	}
}

// TestGoClientErrors shows what a wrong call gets.
func TestGoClientErrors(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "16MiB"})
	c, err := client.Open(d.Dir)
	must(t, "open", err)
	if _, err := client.Open(t.TempDir()); !errors.Is(err, client.ErrNotMount) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := c.Get("g/absent", nil); !errors.Is(err, iofs.ErrNotExist) {
		t.Errorf("an absent block: %v", err)
	}
	_, err = c.Exists(t.Context(), client.Blocks{Keys: []string{"g/a", "/b"}}, client.LookupOptions{})
	if refusal, ok := errors.AsType[*client.Error](err); !ok || refusal.Field != "/keys/1" {
		t.Errorf("a wrong path: %v", err)
	}
	if _, err := c.Exists(t.Context(), client.Blocks{Keys: []string{"g/\xff"}}, client.LookupOptions{}); err == nil {
		t.Error("a name that is not UTF-8: no error")
	}
	if err := c.Put("g/large", make([]byte, 64<<20)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a block larger than memory: %v", err)
	}
	left, err := filepath.Glob(c.Path("g/*"))
	if must(t, "glob", err); len(left) != 0 {
		t.Errorf("a failed Put leaves %v", left)
	}
}
