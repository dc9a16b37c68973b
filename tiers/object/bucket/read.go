package bucket

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/kvfs/kvfs/tiers/block"
)

// copyBytes is how much Copy reads before it writes: little enough to stay in a processor's cache.
const copyBytes = 256 << 10

// Get reads len(dst) bytes of an object from an offset into dst, in parallel parts of Options.PartSize. After an error dst
// has any content. An object that has fewer bytes is block.ErrInvalid. Nothing is asked for an empty dst. The parts of an
// object that is overwritten meanwhile may be of both versions.
func (b *Bucket) Get(ctx context.Context, name string, offset int64, dst []byte) error {
	return b.parts(ctx, name, offset, int64(len(dst)), func(r *Reader, at int64) error {
		_, err := io.ReadFull(r, dst[at:at+r.left])
		return err
	})
}

// Copy is Get into a writer, which gets each byte once, as soon as it comes. Offsets of w are from the beginning of the
// range. Calls for different parts come in parallel. An error of w ends the call.
func (b *Bucket) Copy(ctx context.Context, name string, offset, length int64, w io.WriterAt) error {
	return b.parts(ctx, name, offset, length, func(r *Reader, at int64) error {
		if _, err := r.Read(nil); err != nil { // take memory only when bytes come
			return err
		}
		p := b.buffers.Get().(*[copyBytes]byte)
		defer b.buffers.Put(p)
		for r.left > 0 {
			n, err := io.ReadFull(r, p[:min(r.left, copyBytes)])
			if err != nil {
				return err
			}
			if _, err := w.WriteAt(p[:n], at); err != nil {
				return &failure{what: err.Error(), kind: block.ErrInvalid}
			}
			at += int64(n)
		}
		return nil
	})
}

// parts calls read for each part of a range, in parallel, with the distance of the part from the beginning of the range.
func (b *Bucket) parts(ctx context.Context, name string, offset, length int64, read func(r *Reader, at int64) error) error {
	key, err := b.checkRange(name, offset, length)
	if err != nil || length == 0 {
		return err
	}
	if err := admit(ctx, b.read, length); err != nil {
		return err
	}
	err = b.call(ctx, "get "+name, b.readTime(length), func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(b.opts.Connections)
		for at := int64(0); at < length; at += b.opts.PartSize {
			r := &Reader{b: b, ctx: ctx, cancel: func() {}, key: key, offset: offset + at, left: min(b.opts.PartSize, length-at)}
			g.Go(func() error {
				defer r.Close()
				return read(r, at)
			})
		}
		return g.Wait()
	})
	return b.noteUnanswered(span{key, offset, length}, err)
}

// checkRange returns the name of an object in the bucket, if the call makes sense.
func (b *Bucket) checkRange(name string, offset, length int64) (string, error) {
	if offset < 0 || length < 0 || offset+length < 0 {
		return "", fmt.Errorf("get %s: %d bytes from %d: %w", name, length, offset, block.ErrInvalid)
	}
	return b.key(name)
}

// Open returns a reader of exactly length bytes of an object from an offset. Its Read fails rather than end early. The
// deadline is that of a read of length bytes, and covers the time until Close, too. Close the reader.
func (b *Bucket) Open(ctx context.Context, name string, offset, length int64) (*Reader, error) {
	key, err := b.checkRange(name, offset, length)
	if err != nil {
		return nil, err
	}
	if err := admit(ctx, b.read, length); err != nil {
		return nil, err
	}
	if err := b.usable(); err != nil {
		return nil, fmt.Errorf("get %s: %w", name, err)
	}
	limited, cancel := context.WithTimeout(ctx, b.readTime(length))
	r := &Reader{b: b, ctx: limited, cancel: cancel, key: key, offset: offset, left: length}
	r.report = func(err error) error {
		return b.noteUnanswered(span{key, offset, length}, b.report(ctx, "get "+name, err))
	}
	if length > 0 {
		_, err = r.Read(nil)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return r, nil
}

// Reader reads a range of an object. When an answer ends early or stalls, it asks for the rest of the same version of the
// object. It is not for parallel use.
type Reader struct {
	b      *Bucket
	ctx    context.Context // of the call, as an http.Request has it
	cancel context.CancelFunc
	report func(error) error // says how the call of Open ended; nil for a part

	key    string
	offset int64 // of the next byte
	left   int64
	etag   string // of the version; empty before the first answer
	body   io.ReadCloser
	tries  int // since the last byte
	last   error
	err    error // of every further Read
}

// Read implements io.Reader. It returns io.EOF only after the last byte of the range.
func (r *Reader) Read(p []byte) (int, error) {
	if r.left == 0 && r.err == nil {
		r.err = io.EOF
		if r.report != nil {
			r.report(nil)
		}
	}
	for r.err == nil {
		n, err := r.once(p[:min(int64(len(p)), r.left)])
		if n > 0 || err == nil {
			return n, nil
		}
		if r.body = nil; again(err) {
			if r.ctx.Err() == nil {
				r.last = err // that of a request which the deadline has cut says less
			}
			if r.tries++; r.b.pause(r.ctx, r.tries-1) {
				continue
			}
			err = cmp.Or(r.last, err)
		}
		if r.err = err; r.report != nil {
			r.err = r.report(err)
		}
	}
	return 0, r.err
}

// once reads from the current answer, or from a new one if there is none. After an error there is none.
func (r *Reader) once(p []byte) (int, error) {
	if r.body == nil {
		if err := r.ask(); err != nil {
			return 0, err
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.body.Read(p)
	r.offset, r.left = r.offset+int64(n), r.left-int64(n)
	if n > 0 {
		r.tries = 0
		return n, nil
	}
	if err == nil {
		return 0, nil
	}
	r.body.Close()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return 0, r.b.judge(err, false)
}

// ask requests what is left.
func (r *Reader) ask() error {
	var opts minio.GetObjectOptions
	err := opts.SetRange(r.offset, r.offset+r.left-1)
	if err == nil && r.etag != "" {
		err = opts.SetMatchETag(r.etag)
	}
	if err != nil {
		return &failure{what: err.Error(), kind: block.ErrInvalid}
	}
	a := r.b.first(r.ctx, r.key, opts)
	if a.err != nil {
		return a.err
	}
	r.body, r.etag = a.body, a.info.ETag
	short := a.info.Size < r.left
	if !short && (r.offset == 0 || strings.HasPrefix(a.contentRange, fmt.Sprintf("bytes %d-", r.offset))) {
		return nil
	}
	r.body.Close()
	r.body = nil
	if short {
		return &failure{what: fmt.Sprintf("the object has %d of the %d bytes from %d", a.info.Size, r.left, r.offset), kind: block.ErrInvalid}
	}
	return &failure{what: "the server does not read from an offset", kind: block.ErrInvalid}
}

// Close ends the request. It returns nil.
func (r *Reader) Close() error {
	if r.body != nil {
		r.body.Close()
		r.body = nil
	}
	r.cancel()
	if r.err == nil {
		r.err = block.ErrClosed
	}
	return nil
}
