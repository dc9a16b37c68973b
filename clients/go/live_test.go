package kvfs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	client "github.com/kvfs/kvfs/clients/go"
)

// These tests need the mount in KVFS_TEST_MOUNT, with an SSD tier: tests/control runs them, each on a mount of its own.

// open returns a client of the mount.
func open(t *testing.T) *client.Client {
	t.Helper()
	dir := os.Getenv("KVFS_TEST_MOUNT")
	if dir == "" {
		t.Skip("KVFS_TEST_MOUNT names no mount")
	}
	c, err := client.Open(dir)
	must(t, "open", err)
	return c
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func hash(i int) string { return fmt.Sprintf("%032x", i+1) }

func pattern(name string, size int) []byte {
	return bytes.Repeat([]byte(name), size/len(name)+1)[:size]
}

// ask has tests/control do something, and waits until it is done.
func ask(t *testing.T, what string) {
	t.Helper()
	fmt.Println("do:" + what)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || line != "done\n" {
		t.Fatalf("%s: %q, %v", what, line, err)
	}
}

// TestClient shows that a Go program writes, finds, prefetches and reads blocks with this package.
func TestClient(t *testing.T) {
	c, ctx := open(t), context.Background()
	hashes := make([]string, 40)
	for i := range hashes {
		hashes[i] = hash(i)
		must(t, "put", c.Put("g/sub/"+hashes[i], pattern(hashes[i], 100_000+i)))
	}
	blocks := client.Blocks{Hashes: append(hashes[:40:40], "absent"), Group: "g/sub"}
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

	ask(t, "evict")
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

// TestEvents shows that events come in order and that leaving the loop ends them.
func TestEvents(t *testing.T) {
	c := open(t)
	must(t, "put", c.Put("g/a", []byte("x")))
	must(t, "put", c.Put("h/a", []byte("x")))
	must(t, "put", c.Put("g/b", []byte("x")))
	var got []string
	for e, err := range c.Events(context.Background(), client.EventOptions{Since: 1, Groups: []string{"g"}, Events: []string{"stored"}}) {
		must(t, "events", err)
		if got = append(got, e.Group+"/"+e.Hash); len(got) == 2 {
			break
		}
	}
	if want := "[g/a g/b]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, err := range c.Events(ctx, client.EventOptions{}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of the context: %v", err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range c.Events(context.Background(), client.EventOptions{Since: 1, Events: []string{"gap"}}) {
			ended <- err
		}
	}()
	ask(t, "kill")
	if err := <-ended; err == nil {
		t.Error("no error after the end of the daemon")
	}
	ask(t, "restart")
	if _, err := c.Exists(context.Background(), client.Blocks{Keys: []string{"g/a"}}, client.LookupOptions{}); err != nil {
		t.Errorf("with the next daemon: %v", err)
	}
}

// TestErrors shows what a wrong call gets.
func TestErrors(t *testing.T) {
	c := open(t)
	if _, err := client.Open(t.TempDir()); !errors.Is(err, client.ErrNotMount) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := c.Get("g/absent", nil); !errors.Is(err, iofs.ErrNotExist) {
		t.Errorf("an absent block: %v", err)
	}
	_, err := c.Exists(context.Background(), client.Blocks{Keys: []string{"g/a", "/b"}}, client.LookupOptions{})
	var refusal *client.Error
	if !errors.As(err, &refusal) || refusal.Field != "/keys/1" {
		t.Errorf("a wrong path: %v", err)
	}
	if _, err := c.Exists(context.Background(), client.Blocks{Keys: []string{"g/\xff"}}, client.LookupOptions{}); err == nil {
		t.Error("a name that is not UTF-8: no error")
	}
	if err := c.Put("g/large", make([]byte, 64<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a block larger than memory: %v", err)
	}
	left, err := filepath.Glob(c.Path("g/*"))
	if must(t, "glob", err); len(left) != 0 {
		t.Errorf("a failed Put leaves %v", left)
	}
}
