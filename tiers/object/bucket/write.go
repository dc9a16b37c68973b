package bucket

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/kvfs/kvfs/tiers/block"
)

const (
	maxParts      = 10000 // of an upload, in S3
	uploadWriters = 4     // parts of one upload that are sent in parallel
)

// Put stores data under a name. Readers see the old object or the new one, never a part. Up to 1 GiB it is one request;
// above, a multipart upload, which is aborted if the call fails. The server checks a CRC-32C. data must not change during
// the call, and may be reused after it.
func (b *Bucket) Put(ctx context.Context, name string, data []byte) error {
	key, err := b.key(name)
	if err != nil {
		return err
	}
	size := int64(len(data))
	if err := admit(ctx, b.write, size); err != nil {
		return err
	}
	start := time.Now()
	err = b.call(ctx, "put "+name, b.writeTime(size), func(ctx context.Context) error {
		if size > b.multipartAbove {
			return b.multipart(ctx, key, data)
		}
		return b.repeat(ctx, func() error { return b.putOnce(ctx, key, data) })
	})
	if err == nil {
		b.puts.Observe(time.Since(start))
	}
	return err
}

func (b *Bucket) putOnce(ctx context.Context, key string, data []byte) error {
	opts := minio.PutObjectOptions{
		ContentType: "application/octet-stream", DisableContentSha256: true,
		UserMetadata: map[string]string{"X-Amz-Checksum-Crc32c": checksum(data)},
	}
	_, err := b.core.PutObject(ctx, b.opts.Bucket, key, bytes.NewReader(data), int64(len(data)), "", "", opts)
	return b.judge(err, true)
}

// checksum returns what the header x-amz-checksum-crc32c wants.
func checksum(data []byte) string {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// multipart stores data in parts.
func (b *Bucket) multipart(ctx context.Context, key string, data []byte) error {
	var id string
	err := b.repeat(ctx, func() (err error) {
		opts := minio.PutObjectOptions{UserMetadata: map[string]string{"X-Amz-Checksum-Algorithm": "CRC32C"}}
		id, err = b.core.NewMultipartUpload(ctx, b.opts.Bucket, key, opts)
		return b.judge(err, true)
	})
	if err != nil {
		return err
	}
	size := max(b.writePart, int64(len(data))/maxParts+1)
	done := make([]minio.CompletePart, (int64(len(data))+size-1)/size)
	g, parts := errgroup.WithContext(ctx)
	g.SetLimit(uploadWriters)
	for i := range done {
		g.Go(func() error {
			part := data[int64(i)*size : min(int64(i+1)*size, int64(len(data)))]
			return b.repeat(parts, func() (err error) { done[i], err = b.putPart(parts, key, id, i+1, part); return err })
		})
	}
	if err = g.Wait(); err == nil {
		err = b.repeat(ctx, func() error {
			_, err := b.core.CompleteMultipartUpload(ctx, b.opts.Bucket, key, id, done, minio.PutObjectOptions{})
			return b.judge(err, true)
		})
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) { // a process that stops does not wait for that
		b.abort(context.WithoutCancel(ctx), key, id)
	}
	return err
}

func (b *Bucket) putPart(ctx context.Context, key, id string, number int, part []byte) (minio.CompletePart, error) {
	opts := minio.PutObjectPartOptions{DisableContentSha256: true, CustomHeader: map[string][]string{"X-Amz-Checksum-Crc32c": {checksum(part)}}}
	p, err := b.core.PutObjectPart(ctx, b.opts.Bucket, key, id, number, bytes.NewReader(part), int64(len(part)), opts)
	return minio.CompletePart{PartNumber: number, ETag: p.ETag, ChecksumCRC32C: p.ChecksumCRC32C}, b.judge(err, true)
}

// abort removes an upload. If that fails too, AbortUploads does it later.
func (b *Bucket) abort(ctx context.Context, key, id string) error {
	ctx, cancel := context.WithTimeout(ctx, slower*b.opts.OpenDeadline)
	defer cancel()
	err := b.repeat(ctx, func() error {
		return b.judge(b.core.AbortMultipartUpload(ctx, b.opts.Bucket, key, id), true)
	})
	if errors.Is(err, block.ErrNotFound) {
		return nil
	}
	return err
}

// AbortUploads removes uploads below the prefix that began before a time ago and were not completed, as those of processes
// that died. It returns how many it has removed.
func (b *Bucket) AbortUploads(ctx context.Context, olderThan time.Duration) (n int, err error) {
	err = b.call(ctx, "abort uploads", slower*b.opts.OpenDeadline, func(ctx context.Context) error {
		return b.repeat(ctx, func() error {
			listed, cancel := context.WithCancel(ctx)
			defer cancel() // ends the goroutine of the library
			for u := range b.core.ListIncompleteUploads(listed, b.opts.Bucket, b.opts.Prefix, true) {
				if u.Err != nil {
					return b.judge(u.Err, false)
				}
				if time.Since(u.Initiated) < olderThan {
					continue
				}
				if err := b.abort(ctx, u.Key, u.UploadID); err != nil {
					return err
				}
				n++
			}
			return nil
		})
	})
	return n, err
}

// deleteBatch is how many objects S3 deletes in a request.
const deleteBatch = 1000

// Delete removes objects. One that is not there is no error. After an error any of them may be removed.
func (b *Bucket) Delete(ctx context.Context, names ...string) error {
	keys := make([]minio.ObjectInfo, len(names))
	for i, name := range names {
		key, err := b.key(name)
		if err != nil {
			return err
		}
		keys[i].Key = key
	}
	for batch := range slices.Chunk(keys, deleteBatch) {
		what := fmt.Sprintf("delete %d objects", len(batch))
		err := b.call(ctx, what, slower*b.opts.OpenDeadline, func(ctx context.Context) error {
			return b.repeat(ctx, func() error { return b.deleteOnce(ctx, batch) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *Bucket) deleteOnce(ctx context.Context, batch []minio.ObjectInfo) error {
	if len(batch) == 1 {
		return b.judge(b.core.RemoveObject(ctx, b.opts.Bucket, batch[0].Key, minio.RemoveObjectOptions{}), true)
	}
	results, err := b.core.RemoveObjectsWithIter(ctx, b.opts.Bucket, slices.Values(batch), minio.RemoveObjectsOptions{})
	if err != nil {
		return b.judge(err, true)
	}
	for r := range results {
		if r.Err != nil && err == nil {
			err = b.judge(r.Err, true)
		}
	}
	if err == nil {
		err = b.judge(ctx.Err(), true) // the library gives no result then
	}
	if errors.Is(err, block.ErrNotFound) {
		return nil
	}
	return err
}
