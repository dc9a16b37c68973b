package object

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
)

// store is a bucket in memory, which several tiers may share. broken, if set, is asked before each request.
type store struct {
	mu      sync.Mutex
	objects map[string][]byte
	puts    int
	gets    int
	broken  func(op, name string) error
	held    func(op, name string) // if set, is called before each Put and Get, and may block
	away    bool
	flip    bool // Get flips a bit of the last byte
}

func newStore() *store { return &store{objects: map[string][]byte{}} }

// open returns a Bucket for one tier.
func (s *store) open() Bucket { return view{s} }

// change calls fn with the lock held.
func (s *store) change(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

// names lists the objects with a suffix, in order.
func (s *store) names(suffix string) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasSuffix(name, suffix) {
			list = append(list, name)
		}
	}
	return list
}

// hold blocks a request for as long as held does.
func (s *store) hold(op, name string) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		held(op, name)
	}
}

// begin counts a request and returns what it fails with.
func (s *store) begin(ctx context.Context, op, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.broken != nil {
		return s.broken(op, name)
	}
	return nil
}

// view is a store as one tier has it.
type view struct{ *store }

var _ Bucket = view{}

func (v view) Put(ctx context.Context, name string, data []byte) error {
	v.hold("put", name)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.puts++
	if err := v.begin(ctx, "put", name); err != nil {
		return err
	}
	v.objects[name] = slices.Clone(data)
	return nil
}

func (v view) Get(ctx context.Context, name string, offset int64, p []byte) error {
	v.hold("get", name)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gets++
	if err := v.begin(ctx, "get", name); err != nil {
		return err
	}
	data, has := v.objects[name]
	switch {
	case !has:
		return block.ErrNotFound
	case offset+int64(len(p)) > int64(len(data)):
		return block.ErrUnavailable // a store sends less, which the client finds
	}
	copy(p, data[offset:])
	if v.flip && len(p) > 0 {
		p[len(p)-1] ^= 1
	}
	return nil
}

// Copy writes the second half first.
func (v view) Copy(ctx context.Context, name string, offset, length int64, w io.WriterAt) error {
	p := make([]byte, length)
	err := v.Get(ctx, name, offset, p)
	for _, at := range []int64{length / 2, 0} {
		if err == nil {
			_, err = w.WriteAt(p[at:], at)
		}
		p = p[:at]
	}
	return err
}

func (v view) List(ctx context.Context, after string, fn func(string, int64, time.Time) error) error {
	for _, name := range v.names("") {
		v.mu.Lock()
		err, size := v.begin(ctx, "list", name), int64(len(v.objects[name]))
		v.mu.Unlock()
		if err == nil && name > after {
			err = fn(name, size, time.Time{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v view) Delete(ctx context.Context, names ...string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range names {
		if err := v.begin(ctx, "delete", name); err != nil {
			return err
		}
		delete(v.objects, name)
	}
	return nil
}

func (v view) Probe(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.begin(ctx, "put", "probe")
}

func (v view) AbortUploads(context.Context, time.Duration) (int, error) { return 0, nil }

func (v view) Available() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.away
}

func (v view) Stats() any   { return nil }
func (v view) Close() error { return nil }
