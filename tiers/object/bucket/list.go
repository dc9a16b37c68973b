package bucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/kvfs/kvfs/tiers/block"
)

// pageSize is how many objects S3 lists in a request.
const pageSize = 1000

// List calls fn for each object below the prefix whose name is greater than after, in the order of the names, which is that
// of their bytes. size is in bytes; modified is the time of the Put by the clock of the server. fn runs on the goroutine of
// the caller, outside every deadline; its error ends the listing and is returned. An object that is stored or removed
// meanwhile may be missing or not.
func (b *Bucket) List(ctx context.Context, after string, fn func(name string, size int64, modified time.Time) error) error {
	for {
		var page []minio.ObjectInfo
		err := b.call(ctx, "list", slower*b.opts.OpenDeadline, func(ctx context.Context) error {
			return b.repeat(ctx, func() (err error) { page, err = b.page(ctx, after, pageSize); return err })
		})
		if err != nil {
			return err
		}
		for _, o := range page {
			after = strings.TrimPrefix(o.Key, b.opts.Prefix)
			if err := fn(after, o.Size, o.LastModified); err != nil {
				return err
			}
		}
		if len(page) < pageSize {
			return nil
		}
	}
}

// page lists up to n objects after a name.
func (b *Bucket) page(ctx context.Context, after string, n int) ([]minio.ObjectInfo, error) {
	owner := false
	opts := minio.ListObjectsOptions{Prefix: b.opts.Prefix, Recursive: true, MaxKeys: n, FetchOwner: &owner}
	if after != "" {
		opts.StartAfter = b.opts.Prefix + after
	}
	page := make([]minio.ObjectInfo, 0, n)
	for o := range b.core.ListObjectsIter(ctx, b.opts.Bucket, opts) {
		if o.Err != nil {
			return nil, b.judge(o.Err, false)
		}
		if page = append(page, o); len(page) == n {
			break // the next one would be another request
		}
	}
	return page, nil
}

// probeName is the object of Probe: the same for all, so that processes that die, or lose the store, leave one at most.
const probeName = ".probe"

// Probe asks the server for a name below the prefix, and stores and removes an empty object ".probe" there, whatever the
// breaker thinks. It asks and stores once. The error says what is wrong:
//
//	block.ErrNotFound     the bucket is missing
//	block.ErrInvalid      the credentials, the certificate or a clock is wrong
//	block.ErrReadOnly     objects can be read, not stored
//	block.ErrUnavailable  the endpoint cannot be reached, or does not do it
func (b *Bucket) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, slower*b.opts.OpenDeadline)
	defer cancel()
	if b.opts.Credentials != "imds" {
		v, err := b.core.GetCreds()
		if err != nil || v.AccessKeyID == "" {
			return fmt.Errorf("probe: no credentials in %s: %w", b.opts.Credentials, block.ErrInvalid)
		}
	}
	_, err := b.page(ctx, "", 1)
	if code(err) == minio.NoSuchBucket {
		return fmt.Errorf("probe: bucket %s does not exist: %w", b.opts.Bucket, block.ErrNotFound)
	}
	key := b.opts.Prefix + probeName
	if err == nil {
		err = b.putOnce(ctx, key, nil)
	}
	if err == nil {
		err = b.repeat(ctx, func() error { return b.deleteOnce(ctx, []minio.ObjectInfo{{Key: key}}) })
	}
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return fmt.Errorf("probe: %w", err)
}
