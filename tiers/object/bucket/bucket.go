package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/latency"
)

const (
	slower    = 5        // times OpenDeadline for all but reads
	readRate  = 16 << 20 // bytes/s at least
	writeRate = 1 << 20
	burst     = 1 << 20 // of the limits, in bytes

	minBackoff = 25 * time.Millisecond // besides up to 200 ms in the library
	maxBackoff = time.Second

	maxKey = 1024 // bytes of a name in a bucket

	minProbe = 500 * time.Millisecond // between two probes of a server that does not answer
	maxProbe = 30 * time.Second
)

// Bucket is the part of a bucket below a prefix. Its methods may be called in parallel. They return within the deadline
// of Options.OpenDeadline, or when ctx ends, with one of these kinds:
//
//	block.ErrNotFound     there is no such object
//	block.ErrUnavailable  the server did not do it, however often it was asked, or has not answered for some time
//	block.ErrReadOnly     the credentials do not allow the change
//	block.ErrInvalid      the name, the range, the credentials or the certificate are wrong
//	block.ErrClosed       after Close
//
// After some calls in a row that ended as block.ErrUnavailable all fail so at once, until the server answers a probe of
// the background.
type Bucket struct {
	opts    Options
	core    *minio.Core
	wire    *wire
	breaker *breaker.Breaker
	read    *rate.Limiter // nil: no limit
	write   *rate.Limiter
	buffers sync.Pool // of *[copyBytes]byte

	multipartAbove int64 // bytes
	writePart      int64 // bytes

	end     context.CancelFunc // of what runs in the background
	ended   <-chan struct{}
	running sync.WaitGroup // that, and requests whose answer nobody awaits any more

	retries  atomic.Uint64
	failures atomic.Uint64
	won      atomic.Uint64     // second requests that answered first
	gets     latency.Histogram // until the first byte of an answer
	puts     latency.Histogram // of whole calls

	mu struct {
		sync.Mutex
		unanswered span           // of the last read that no answer ended; none after mostTries probes
		tries      int            // probes that have repeated it
		recent     latency.Counts // of reads, since the last change of p95
		p95        time.Duration  // 0: not known yet
		asked      uint64         // for ranges
		hedges     uint64         // second requests
	}
}

// span is a range of an object; the zero value is none.
type span struct {
	key            string
	offset, length int64
}

// CheckName fails for a name that no bucket of S3 can have.
func CheckName(name string) error { return s3utils.CheckValidBucketNameStrict(name) }

// New returns a bucket, without asking the server. Close it.
func New(opts Options) (*Bucket, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	base, err := opts.transport()
	if err != nil {
		return nil, err
	}
	w := &wire{base: base, deadline: opts.OpenDeadline}
	core, err := opts.client(w)
	if err != nil {
		return nil, fmt.Errorf("endpoint or bucket: %v: %w", err, block.ErrInvalid)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &Bucket{
		opts: opts, core: core, wire: w, breaker: breaker.New(minProbe, maxProbe), end: cancel, ended: ctx.Done(),
		read: limiter(opts.ReadBytesPerSecond), write: limiter(opts.WriteBytesPerSecond),
		multipartAbove: 1 << 30, writePart: 64 << 20, buffers: sync.Pool{New: func() any { return new([copyBytes]byte) }},
	}
	b.running.Go(func() { b.breaker.Run(ctx, b.answers) }) // ends with Close
	return b, nil
}

func limiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), burst)
}

// Close ends what runs in the background, and closes the connections. No other call may be under way. It may be called
// twice.
func (b *Bucket) Close() error {
	b.end()
	b.running.Wait()
	b.wire.base.CloseIdleConnections()
	return nil
}

// String says where the objects are. It keeps the credentials, which the library holds, out of every log.
func (b *Bucket) String() string {
	return fmt.Sprintf("s3://%s/%s at %s", b.opts.Bucket, b.opts.Prefix, b.opts.Endpoint)
}

// GoString is String.
func (b *Bucket) GoString() string { return b.String() }

// MarshalText is String, for JSON.
func (b *Bucket) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

const (
	mostProbed = 1 << 20 // bytes of a read that a probe repeats
	mostTries  = 3       // probes that repeat a read: it may be the object that is at fault
)

// answers probes the server for the breaker. A refusal is an answer, too. Some probes repeat the read that no answer ended,
// as there are networks that stop long answers alone.
func (b *Bucket) answers(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, b.opts.OpenDeadline)
	defer cancel()
	if _, err := b.page(short, "", 1); again(err) {
		return err
	}
	if err := b.readAgain(ctx); again(err) && code(err) == "" {
		return err
	}
	b.opts.Logger.Info("the object store answers again", zap.Stringer("bucket", b))
	return nil
}

// readAgain repeats the last read that no answer ended, if there is one.
func (b *Bucket) readAgain(ctx context.Context) error {
	b.mu.Lock()
	last := b.mu.unanswered
	if b.mu.tries++; b.mu.tries == mostTries {
		b.mu.unanswered = span{}
	}
	b.mu.Unlock()
	if last.key == "" {
		return nil
	}
	n := min(last.length, mostProbed)
	ctx, cancel := context.WithTimeout(ctx, b.readTime(n))
	r := &Reader{b: b, ctx: ctx, cancel: cancel, key: last.key, offset: last.offset, left: n}
	defer r.Close()
	_, err := io.Copy(io.Discard, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && b.mu.unanswered == last {
		b.mu.unanswered = span{}
	}
	return err
}

// admit waits until a limit lets n bytes through.
func admit(ctx context.Context, l *rate.Limiter, n int64) error {
	for ; l != nil && n > 0; n -= burst {
		if err := l.WaitN(ctx, int(min(n, burst))); err != nil {
			return cmp.Or(ctx.Err(), context.DeadlineExceeded) // the limiter looks ahead
		}
	}
	return nil
}

// readTime and writeTime return the deadlines of calls that transfer n bytes.
func (b *Bucket) readTime(n int64) time.Duration {
	return b.opts.OpenDeadline + time.Duration(n)*time.Second/readRate
}

func (b *Bucket) writeTime(n int64) time.Duration {
	return slower*b.opts.OpenDeadline + time.Duration(n/writeRate)*time.Second
}

// call runs f until the deadline, if the server may be asked, and says how it ended: to the breaker, and in the error.
func (b *Bucket) call(ctx context.Context, what string, limit time.Duration, f func(context.Context) error) error {
	if err := b.usable(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return b.report(ctx, what, f(limited))
}

// noteUnanswered notes a read that ended with err, if no answer ended it. The next probes repeat the last such read. It returns err.
func (b *Bucket) noteUnanswered(s span, err error) error {
	if again(err) && code(err) == "" {
		b.mu.Lock()
		b.mu.unanswered, b.mu.tries = s, 0
		b.mu.Unlock()
	}
	return err
}

// Available reports whether calls go through: the breaker is closed.
func (b *Bucket) Available() bool { return b.breaker.Closed() }

// usable returns why no request is made now.
func (b *Bucket) usable() error {
	select {
	case <-b.ended:
		return block.ErrClosed
	default:
	}
	if !b.breaker.Closed() {
		return fmt.Errorf("%s does not answer; it is probed: %w", b.opts.Endpoint, block.ErrUnavailable)
	}
	return nil
}

// report counts how a call of the caller's ctx ended, and returns its error.
func (b *Bucket) report(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		b.breaker.OK()
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", what, ctx.Err())
	case !again(err):
		b.breaker.OK() // it has answered
	default:
		b.failures.Add(1)
		if b.breaker.Failed() {
			b.opts.Logger.Warn("the object store does not answer", zap.Stringer("bucket", b), zap.Error(err))
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// repeat calls f until it succeeds, its error is final or ctx ends.
func (b *Bucket) repeat(ctx context.Context, f func() error) error {
	var last error
	for n := 0; ; n++ {
		err := f()
		switch {
		case !again(err):
			return err
		case ctx.Err() == nil:
			last = err
		}
		if !b.pause(ctx, n) {
			return cmp.Or(last, err) // that of the request which ctx has cut says less
		}
	}
}

// pause waits before the n-th repetition, from 0. It returns false if ctx ended.
func (b *Bucket) pause(ctx context.Context, n int) bool {
	t := time.NewTimer(breaker.Jitter(min(minBackoff<<min(n, 10), maxBackoff)))
	defer t.Stop()
	select {
	case <-t.C:
		b.retries.Add(1)
		return true
	case <-ctx.Done():
		return false
	}
}

// key returns the name of an object in the bucket.
func (b *Bucket) key(name string) (string, error) {
	if err := checkPath(name); err != nil {
		return "", fmt.Errorf("object %q: %v: %w", name, err, block.ErrInvalid)
	}
	if n := len(b.opts.Prefix) + len(name); n > maxKey {
		return "", fmt.Errorf("object %q: %d bytes with the prefix, want at most %d: %w", name, n, maxKey, block.ErrNameTooLong)
	}
	return b.opts.Prefix + name, nil
}
