package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/template"
)

// defaultBuffer is how many messages are kept for replays, as vLLM does.
const defaultBuffer = 10_000

// Options configures a Publisher.
type Options struct {
	Log  Log
	Bind string // where subscribers connect, tcp://host:port or ipc://path; empty: nowhere
	// Connect are addresses of bound subscribers, in the same form. kvfs connects to them, and
	// tries again while they are absent. Bind may be empty if there are any.
	Connect []string
	Replay  string // where subscribers ask for lost messages; empty: nowhere
	// ReplayBare leaves the topic out of repeated messages, as vLLM did before 0.26, and SGLang
	// does.
	ReplayBare bool
	Topic      string // first frame of each message
	Buffer     int    // messages kept for replays, at most 64 MiB of them. Zero means 10,000.
	Hash       string // form of block hashes: "int" (the lower 64 bits, vLLM's default), "bytes", or "text" (as in the name)
	// Encoding is the form of events: "map" (as in vLLM since June 2026; also if empty), or "array"
	// (as before, for older consumers).
	Encoding string
	// Templates say where in a path the hash and the group are; the first one that fits counts.
	// Paths that fit none are left out and counted. Empty: {group}/{hash}.
	Templates []string
	BlockSize int               // tokens of a block; 0 where it is not known
	Media     map[string]string // names of tiers in the messages; memory is CPU, disk STORAGE, peer is left out, unless given
	// Snapshot calls fn for each block of this node, with the names of its tiers. It is called at
	// the start, again when the first subscriber comes after that, and after a gap; all subscribers
	// are then told to forget everything first. It ends soon after ctx does. It may be nil.
	Snapshot func(ctx context.Context, fn func(path string, size int64, tiers []string) error) error
	// Tiers returns the names of the tiers of a renamed block, which the event does not have. If it
	// is nil, "memory" is assumed.
	Tiers func(path string) []string

	Logger *zap.Logger // nil: none
}

// mediumStorage is vLLM's name of a file or object tier since 0.27 (Medium in
// vllm/v1/kv_offload/base.py). Only this medium has a locality.
const mediumStorage = "STORAGE"

// settings is the parsed form of Options.
type settings struct {
	form      hashForm
	arrays    bool
	templates []template.Template
	media     map[string]string // by tier; without tiers that are left out
	all       []string          // the different media, in order
}

// check returns the settings of o, or all errors in it.
func (o *Options) check() (settings, error) {
	var s settings
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Log == nil {
		fail("no log: %w", block.ErrInvalid)
	}
	o.checkEndpoints(fail)
	if o.Buffer < 0 || o.Buffer > 1<<24 {
		fail("buffer %d: want 0 to %d messages: %w", o.Buffer, 1<<24, block.ErrInvalid)
	}
	if o.BlockSize < 0 {
		fail("block_size %d is negative: %w", o.BlockSize, block.ErrInvalid)
	}
	var err error
	if s.form, err = parseHashForm(o.Hash); err != nil {
		errs = append(errs, err)
	}
	switch o.Encoding {
	case "", "map":
	case "array":
		s.arrays = true
	default:
		fail("encoding %q: want map or array: %w", o.Encoding, block.ErrInvalid)
	}
	list := o.Templates
	if len(list) == 0 {
		list = []string{defaultTemplate}
	}
	for i, text := range list {
		t, err := parseTemplate(text)
		if err != nil {
			fail("templates[%d]: %w", i, err)
		}
		s.templates = append(s.templates, t)
	}
	s.media = map[string]string{"memory": "CPU", "disk": mediumStorage}
	maps.Copy(s.media, o.Media)
	maps.DeleteFunc(s.media, func(_, medium string) bool { return medium == "" })
	s.all = slices.Compact(slices.Sorted(maps.Values(s.media)))
	return s, errors.Join(errs...)
}

// checkEndpoints checks the addresses of the sockets.
func (o *Options) checkEndpoints(fail func(format string, args ...any)) {
	if o.Bind != "" || len(o.Connect) == 0 {
		if _, _, err := parseEndpoint(o.Bind); err != nil {
			fail("bind: %w", err)
		}
	}
	if len(o.Connect) > maxConnect {
		fail("connect: %d endpoints, want at most %d: %w", len(o.Connect), maxConnect, block.ErrInvalid)
	}
	for i, endpoint := range o.Connect {
		if err := checkConnect(endpoint); err != nil {
			fail("connect[%d]: %w", i, err)
		} else if slices.Contains(o.Connect[:i], endpoint) {
			fail("connect[%d]: %q is there twice: %w", i, endpoint, block.ErrInvalid)
		}
	}
	if o.Replay != "" {
		if _, _, err := parseEndpoint(o.Replay); err != nil {
			fail("replay: %w", err)
		}
	}
}
