// Package kvfs is the Go client of kvfs: it writes and reads KV blocks by name, and asks about many blocks at once.
// It uses only the standard library and the files of a mount on this machine, so it needs no connection and no
// configuration.
//
//	c, err := kvfs.Open("/mnt/kv")
//	err = c.Put("g0/9f08", block)
//	block, err = c.Get("g0/9f08", block) // into block if it is large enough; nil: into a new slice
//	found, err := c.Exists(ctx, kvfs.Blocks{Group: "g0", Hashes: hashes}, kvfs.LookupOptions{})
//	_, err = c.Prefetch(ctx, kvfs.Blocks{Group: "g0", Hashes: hashes[:found.Prefix]}, nil)
//
// A Client may be used by several goroutines; their requests run in parallel. It needs no Close, and goes on with the
// next daemon after a restart. The end of a ctx ends the wait for an answer. It does not help against a daemon that is
// stopped (SIGSTOP): that blocks the calls of the kernel, as any file system would.
//
// Errors: *Error when the daemon refuses a request; ctx's error; otherwise those of the system, such as
// fs.ErrNotExist for a block that is not there, fs.ErrPermission (the control files are for root, the user of the
// daemon, and those whom its configuration names) and syscall.ENOTCONN (the daemon is gone).
//
// Source: docs/control.md has the requests and answers.
package kvfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Client asks one mount.
type Client struct{ dir string }

// ErrNotMount says that a directory is no kvfs mount.
var ErrNotMount = errors.New("not a kvfs mount")

// Open returns a client of the mount at dir. It fails with ErrNotMount, or with syscall.ENOTCONN if the daemon of the
// mount is gone.
func Open(dir string) (*Client, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Client{dir: abs}
	switch _, err := os.Lstat(c.control("status")); {
	case errors.Is(err, iofs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", dir, ErrNotMount)
	case err != nil:
		return nil, err
	}
	return c, nil
}

func (c *Client) control(file string) string { return filepath.Join(c.dir, ".kvfs", file) }

// Path returns the file of a block. key is its path below the mount, with slashes.
func (c *Client) Path(key string) string { return filepath.Join(c.dir, key) }

// Put writes a block. Other processes see it complete or not at all. It makes the directories that are missing.
// It may wait for room.
func (c *Client) Put(key string, block []byte) error {
	path := c.Path(key)
	temp := path + "." + strconv.FormatUint(rand.Uint64(), 36) + ".tmp"
	err := os.WriteFile(temp, block, 0o666)
	if errors.Is(err, iofs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o777); err == nil {
			err = os.WriteFile(temp, block, 0o666)
		}
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
	}
	return err
}

// Get reads a block and returns its bytes. They are in buf if that has the capacity, so that one buffer serves many
// blocks, and else in a new slice; buf may be nil. A block that is not there, or cannot be had in time, is fs.ErrNotExist: the
// caller computes it.
func (c *Client) Get(key string, buf []byte) ([]byte, error) {
	f, err := os.Open(c.Path(key))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if n := int(info.Size()); cap(buf) < n {
		buf = make([]byte, n)
	} else {
		buf = buf[:n]
	}
	_, err = io.ReadFull(f, buf)
	return buf, err
}

// Blocks names blocks, in one of two ways. Names must be UTF-8.
type Blocks struct {
	Keys []string `json:"keys,omitempty"` // paths below the mount

	Hashes   []string `json:"hashes,omitempty"`
	Group    string   `json:"group,omitempty"`    // of Hashes
	Template string   `json:"template,omitempty"` // of the path of a hash; empty: {group}/{hash}
	Ranks    int      `json:"ranks,omitempty"`    // a block is there if the files of all ranks are; 0: 1
}

// check fails for names that JSON cannot hold.
func (b *Blocks) check() error {
	for _, names := range [][]string{b.Keys, b.Hashes, {b.Group, b.Template}} {
		for _, name := range names {
			if !utf8.ValidString(name) {
				return fmt.Errorf("%q is not UTF-8", name)
			}
		}
	}
	return nil
}

// LookupOptions are options of look-ups.
type LookupOptions struct {
	Request    string `json:"request,omitempty"`     // name of the work of this request, for Release and for logs
	Lease      *bool  `json:"lease,omitempty"`       // keep what is there readable for mount.lookup_lease; nil: true
	Promote    bool   `json:"promote,omitempty"`     // begin to load hits that are not in memory
	DeadlineMS *int64 `json:"deadline_ms,omitempty"` // what would come later counts as not there; 0: no deadline; nil: the group's
}

// Exists says which blocks are there.
type Exists struct {
	// States has one byte a block: m in memory, d on the SSD, p at a peer, w pending, l late (there, but later than the
	// deadline), . miss, / a directory.
	States  string `json:"states"`
	Hits    int    `json:"hits"` // m, d and p
	Pending int    `json:"pending"`
	Late    int    `json:"late"`
	Misses  int    `json:"misses"`
	Prefix  int    `json:"prefix"` // how many leading blocks are hits
}

// Hit reports whether block i is there.
func (e *Exists) Hit(i int) bool { return strings.IndexByte("mdp", e.States[i]) >= 0 }

// Exists asks which of many blocks are there.
func (c *Client) Exists(ctx context.Context, b Blocks, o LookupOptions) (Exists, error) {
	var answer Exists
	err := b.check()
	if err == nil {
		err = c.ask(ctx, "query", struct {
			Op string `json:"op"`
			Blocks
			LookupOptions
		}{"exists", b, o}, &answer)
	}
	return answer, err
}

// Prompt is a prompt whose blocks are looked up, for a model with one or several groups of layers.
type Prompt struct {
	Spec      any      `json:"spec"`                 // the name of a spec, or a spec that encoding/json can encode
	Hashes    []string `json:"hashes"`               // of the prompt up to the end of each hash block
	Template  string   `json:"template,omitempty"`   // of the path of a block; several groups need {group}
	Ranks     int      `json:"ranks,omitempty"`      // 0: 1
	NumTokens *int     `json:"num_tokens,omitempty"` // length of the prompt; nil: that of all hashes
	Cached    int      `json:"cached,omitempty"`     // tokens at the beginning that the engine has already
	Fetch     bool     `json:"fetch,omitempty"`      // fill in GroupLoad.Fetch
}

// LongestHit says how much of a prompt need not be computed.
type LongestHit struct {
	HitTokens int         `json:"hit_tokens"`
	Capped    bool        `json:"capped"`  // all of it was there; the last token is to be computed in any case
	Pending   int         `json:"pending"` // blocks on their way, taken for absent
	Late      int         `json:"late"`    // blocks that would have come too late
	Groups    []GroupLoad `json:"groups"`  // in the order of the spec
}

// GroupLoad is what to read of one group of layers.
type GroupLoad struct {
	Name  string `json:"name"`
	Load  string `json:"load"`  // a byte for each block up to the hit: 1 read it, 0 it is not needed
	Fetch []int  `json:"fetch"` // positions in Hashes of the blocks to read beyond Cached
}

// LongestHit asks how many tokens from the beginning of a prompt need not be computed.
func (c *Client) LongestHit(ctx context.Context, p Prompt, o LookupOptions) (LongestHit, error) {
	var answer LongestHit
	err := (&Blocks{Hashes: p.Hashes, Template: p.Template}).check()
	if err == nil {
		err = c.ask(ctx, "query", struct {
			Op string `json:"op"`
			Prompt
			LookupOptions
		}{"longest_hit", p, o}, &answer)
	}
	return answer, err
}

// Release ends the leases of a request. It returns how many ended.
func (c *Client) Release(ctx context.Context, request string) (int, error) {
	var answer struct {
		Released int `json:"released"`
	}
	err := c.ask(ctx, "query", map[string]string{"op": "release", "request": request}, &answer)
	return answer.Released, err
}

// Progress is how far a prefetch is.
type Progress struct {
	Done  int   `json:"done"` // blocks
	Total int   `json:"total"`
	Bytes int64 `json:"bytes"` // loaded
}

// Prefetched is the result of a prefetch.
type Prefetched struct {
	Progress
	// Results has one byte a block: m it was in memory, l it was loaded, w a process writes it, . there is none, ! it
	// could not be loaded.
	Results  string      `json:"results"`
	InMemory int         `json:"in_memory"`
	Loaded   int         `json:"loaded"`
	Absent   int         `json:"absent"`
	Pending  int         `json:"pending"`
	Failed   int         `json:"failed"`
	Errors   []PathError `json:"errors"` // of the first 100 that failed
}

// PathError says why a block could not be loaded.
type PathError struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// Prefetch brings blocks into memory, in order. It returns when they are there. It calls progress, if not nil, now and
// then. The end of ctx cancels the loads that have not begun.
func (c *Client) Prefetch(ctx context.Context, b Blocks, progress func(Progress)) (Prefetched, error) {
	var answer Prefetched
	if err := b.check(); err != nil {
		return answer, err
	}
	request := struct {
		Blocks
		Progress bool `json:"progress,omitempty"`
	}{b, progress != nil}
	err := c.dialogue(ctx, "prefetch", request, func(line []byte) error {
		answer = Prefetched{}
		err := json.Unmarshal(line, &answer)
		if err == nil && progress != nil {
			progress(answer.Progress)
		}
		return err
	})
	return answer, err
}
