package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvfs/kvfs/tests/s3test"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestObjects stores, reads, lists and removes objects of a real server, over HTTP and HTTPS.
func TestObjects(t *testing.T) {
	for _, tls := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", tls), func(t *testing.T) {
			t.Parallel()
			s := s3test.Start(t, s3test.Options{TLS: tls})
			opts := options(s, s.URL)
			opts.PartSize = minPartSize
			b := open(t, opts)
			must(t, b.Probe(t.Context()))
			testReads(t, b)
			testNames(t, s, b)
			if n := b.Stats(); n.Retries != 0 || n.Failures != 0 || n.Breaker != "closed" || n.Requests.Get == 0 || n.BytesRead == 0 || n.GetP95 == 0 || n.PutP95 == 0 {
				t.Errorf("stats %+v", n)
			}
		})
	}
}

func testReads(t *testing.T, b *Bucket) {
	ctx, data := t.Context(), random(1, 1<<20+12345)
	put(t, b, "group/block", data)
	want(t, b, "group/block", 0, data)
	want(t, b, "group/block", 777, data[777:1777])
	want(t, b, "group/block", int64(len(data))-1, data[len(data)-1:])
	want(t, b, "group/block", 5, nil)
	want(t, b, "group/block", 1, data[1:])
	r, err := b.Open(ctx, "group/block", 3, 1<<20)
	must(t, err)
	read, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(read, data[3:3+1<<20]) {
		t.Fatalf("the reader gave %d bytes, %v", len(read), err)
	}
	r.Close()
	if r, err = b.Open(ctx, "group/block", 3, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("an empty range: %d bytes, %v", n, err)
	}
	r.Close()
	put(t, b, "group/block", data[:10])
	want(t, b, "group/block", 0, data[:10])
	put(t, b, "empty", nil)
	for _, c := range []struct {
		name           string
		offset, length int64
		want           error
	}{
		{"missing", 0, 1, block.ErrNotFound},
		{"group", 0, 1, block.ErrNotFound},
		{"group/block", 0, 11, block.ErrInvalid},
		{"group/block", 9, 2, block.ErrInvalid},
		{"group/block", 10, 1, block.ErrInvalid},
		{"group/block", -1, 1, block.ErrInvalid},
		{"empty", 0, 1, block.ErrInvalid},
		{"", 0, 1, block.ErrInvalid},
		{"a/../b", 0, 1, block.ErrInvalid},
		{"a//b", 0, 1, block.ErrInvalid},
		{"a\nb", 0, 1, block.ErrInvalid},
		{strings.Repeat("x", maxKey), 0, 1, block.ErrNameTooLong},
	} {
		if err := b.Get(ctx, c.name, c.offset, make([]byte, c.length)); !errors.Is(err, c.want) {
			t.Errorf("get %.20q: %v, want %v", c.name, err, c.want)
		}
		if r, err := b.Open(ctx, c.name, c.offset, c.length); !errors.Is(err, c.want) {
			t.Errorf("open %.20q: %v, %v, want %v", c.name, r, err, c.want)
		}
	}
}

// testNames shows that the order of a listing is that of bytes, and that it and a removal keep to the prefix.
func testNames(t *testing.T, s *s3test.Server, b *Bucket) {
	must(t, b.Delete(t.Context(), "group/block", "empty"))
	odd := []string{"!", "a b", "a%20b", "a+b", "a&b=c?d#e", "a/b/c", "a-b", "a'\"<>", "ü/日本語", "Z", "~"}
	slices.Sort(odd)
	for i, name := range odd {
		put(t, b, name, random(uint64(i), 100+i))
	}
	for _, foreign := range []string{"kvx/foreign", "k", "zz/foreign"} {
		if _, err := s.Client().PutObject(t.Context(), s3test.Bucket, foreign, strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, b, ""); !slices.Equal(got, odd) {
		t.Errorf("listed %q, want %q", got, odd)
	}
	if got := names(t, b, odd[4]); !slices.Equal(got, odd[5:]) {
		t.Errorf("listed %q after %q", got, odd[4])
	}
	for i, name := range odd {
		want(t, b, name, 0, random(uint64(i), 100+i))
	}
	stop := errors.New("stop")
	err := b.List(t.Context(), "", func(name string, size int64, modified time.Time) error {
		if name != odd[0] || size != 100 || time.Since(modified).Abs() > time.Hour {
			t.Errorf("listed %q of %d bytes, %v", name, size, modified)
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Errorf("list: %v", err)
	}
	must(t, b.Delete(t.Context(), append(odd, "missing")...))
	must(t, b.Delete(t.Context(), "missing"))
	if got := names(t, b, ""); len(got) != 0 {
		t.Errorf("left over: %q", got)
	}
	if got := s.Get("kvx/foreign"); string(got) != "x" {
		t.Errorf("foreign: %q", got)
	}
}

// TestPages lists and removes more objects than S3 takes in a request.
func TestPages(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	b := open(t, options(s, s.URL))
	put(t, b, "00000", nil)
	const n = 2*pageSize + 1
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%05d", i)
		s.Put("kv/"+all[i], nil)
	}
	if got := names(t, b, ""); !slices.Equal(got, all) {
		t.Errorf("listed %d of %d", len(got), n)
	}
	must(t, b.Delete(t.Context(), all...))
	if got := names(t, b, ""); len(got) != 0 {
		t.Errorf("%d left over", len(got))
	}
}

// TestMultipart stores an object in parts, and removes uploads that were not completed, only below the prefix.
func TestMultipart(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	b := open(t, options(s, s.URL))
	b.multipartAbove, b.writePart = 8<<20, 5<<20 // S3 takes no smaller part
	data := random(3, 12<<20)
	put(t, b, "large", data)
	want(t, b, "large", 0, data)

	ctx, c := t.Context(), s.Client()
	for _, key := range []string{"kv/orphan", "other/orphan"} {
		if _, err := c.NewMultipartUpload(ctx, s3test.Bucket, key, minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := b.AbortUploads(ctx, time.Hour); n != 0 || err != nil {
		t.Errorf("young uploads: %d aborted, %v", n, err)
	}
	if n, err := b.AbortUploads(ctx, -time.Hour); n != 1 || err != nil {
		t.Errorf("%d aborted, %v, want 1", n, err)
	}
	left, err := c.ListMultipartUploads(ctx, s3test.Bucket, "", "", "", "", 10)
	if err != nil || len(left.Uploads) != 1 || left.Uploads[0].Key != "other/orphan" {
		t.Errorf("left over: %+v, %v", left.Uploads, err)
	}
}

// TestProbe shows one clear error for each thing that may be wrong.
func TestProbe(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{TLS: true})
	plain := s3test.Start(t, s3test.Options{})
	p := s3test.NewProxy(t, plain)
	p.First(1000, s3test.Fault{Status: 403, Code: minio.RequestTimeTooSkewed})
	other, _, _ := s3test.NewCA(t, t.TempDir())
	wrong := filepath.Join(t.TempDir(), "credentials")
	must(t, os.WriteFile(wrong, []byte("[default]\naws_access_key_id = "+s3test.AccessKey+"\naws_secret_access_key = wrong-secret\n"), 0o600))
	for _, c := range []struct {
		name   string
		change func(*Options)
		kind   error
		text   string
	}{
		{"right", func(*Options) {}, nil, ""},
		{"insecure", func(o *Options) { o.CAFile, o.Insecure = "", true }, nil, ""},
		{"no bucket", func(o *Options) { o.Bucket = "missing" }, block.ErrNotFound, "probe: bucket missing does not exist: block not found"},
		{"secret", func(o *Options) { o.Credentials = "file:" + wrong }, block.ErrInvalid, "are wrong or have expired"},
		{"no file", func(o *Options) { o.Credentials = "file:/nonexistent" }, block.ErrInvalid, "no credentials in file:/nonexistent"},
		{"clock", func(o *Options) { o.Endpoint = p.URL }, block.ErrInvalid, "the clock of this machine or of the server is wrong"},
		{"no CA", func(o *Options) { o.CAFile = "" }, block.ErrInvalid, "the certificate of " + s.URL},
		{"wrong CA", func(o *Options) { o.CAFile = other }, block.ErrInvalid, "the certificate of " + s.URL},
		{"nobody there", func(o *Options) { o.Endpoint = "http://127.0.0.1:1" }, block.ErrUnavailable, "cannot be reached"},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := options(s, s.URL)
			c.change(&opts)
			err := open(t, opts).Probe(t.Context())
			if !errors.Is(err, c.kind) || c.text != "" && !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("got %v, want %v: %q", err, c.kind, c.text)
			}
		})
	}
	s.Kill()
	s.Run(true)
	b := open(t, options(s, s.URL))
	if err := b.Probe(t.Context()); !errors.Is(err, block.ErrReadOnly) {
		t.Errorf("read-only: %v", err)
	}
	for _, err := range []error{b.Put(t.Context(), "x", []byte("x")), b.Delete(t.Context(), "x"), b.Delete(t.Context(), "x", "y")} {
		if !errors.Is(err, block.ErrReadOnly) {
			t.Errorf("read-only: %v", err)
		}
	}
	if n := b.Stats(); n.Failures != 0 {
		t.Errorf("a refusal counts as a failure: %+v", n)
	}
}

// TestMissingBucket shows that the lack of a bucket is no miss.
func TestMissingBucket(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	opts := options(s, s.URL)
	opts.Bucket, opts.OpenDeadline = "missing", 300*time.Millisecond
	if err := open(t, opts).Get(t.Context(), "x", 0, make([]byte, 1)); !errors.Is(err, block.ErrUnavailable) || errors.Is(err, block.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// TestEnvironment takes the credentials from there.
func TestEnvironment(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	opts := options(s, s.URL)
	opts.Credentials = ""
	must(t, open(t, opts).Probe(t.Context()))
}

// TestSecrets shows that no text that a Bucket or its Options make has the credentials in it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	p := s3test.NewProxy(t, s)
	core, logs := observer.New(zap.DebugLevel)
	opts := options(s, p.URL)
	opts.Logger, opts.OpenDeadline = zap.New(core), 300*time.Millisecond
	b := open(t, opts)
	texts := make([]string, 0, 32)
	add := func(v any) {
		text, err := json.Marshal(v)
		texts = append(texts, fmt.Sprintf("%v %+v %#v %s %v", v, v, v, text, err))
	}
	for _, f := range []s3test.Fault{{Status: 403, Code: "AccessDenied"}, {Status: 403, Code: "SignatureDoesNotMatch"}, {Reset: true}, {Status: 503, Code: "SlowDown"}, {Stall: true}} {
		p.First(1000, f)
		add(b.Get(t.Context(), "x", 0, make([]byte, 1)))
		add(b.Probe(t.Context()))
	}
	bad := opts
	bad.Endpoint = "https://" + s3test.AccessKey + ":" + s3test.SecretKey + "@host"
	add(bad.Validate())
	add(opts)
	add(b)
	add(b.Stats())
	for _, e := range logs.All() {
		add(e.Message)
		add(e.ContextMap())
	}
	for _, text := range texts {
		if strings.Contains(text, s3test.SecretKey) || strings.Contains(text, s3test.AccessKey) {
			t.Errorf("has a secret: %s", text)
		}
	}
	if logs.Len() == 0 {
		t.Error("nothing logged")
	}
}

// TestValidate shows that all violations are named at once.
func TestValidate(t *testing.T) {
	good := Options{Endpoint: "host:9000", Bucket: "b"}
	must(t, good.Validate())
	bad := Options{
		Endpoint: "ftp://x", Prefix: "/a", Credentials: "secret", PartSize: 1, Connections: -1,
		ReadBytesPerSecond: 1, WriteBytesPerSecond: -1, OpenDeadline: time.Hour,
	}
	err := bad.Validate()
	for _, word := range []string{"endpoint", "bucket", "prefix", "credentials", "part_size", "connections", "read_bytes", "write_bytes", "open_deadline"} {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("%v does not name %s", err, word)
		}
	}
	if b, err := New(bad); b != nil || !errors.Is(err, block.ErrInvalid) {
		t.Errorf("New: %v", err)
	}
	for _, endpoint := range []string{"", "http://u:p@h", "http://h/path", "http://h?q=1"} {
		o := good
		o.Endpoint = endpoint
		if !errors.Is(o.Validate(), block.ErrInvalid) {
			t.Errorf("endpoint %q is valid", endpoint)
		}
	}
}

// TestLimits shows that traffic keeps its limits. Only the lower bound of the time is sure.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t, s3test.Options{})
	opts := options(s, s.URL)
	opts.ReadBytesPerSecond, opts.WriteBytesPerSecond = 8<<20, 8<<20
	b := open(t, opts)
	data := random(4, 3<<20)
	begin := time.Now()
	put(t, b, "x", data)
	want(t, b, "x", 0, data)
	if d := time.Since(begin); d < 400*time.Millisecond { // 2 x 2 MiB besides the burst take 500 ms
		t.Errorf("took %v", d)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Put(ctx, "y", make([]byte, 64<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestClose shows that a closed bucket says so.
func TestClose(t *testing.T) {
	t.Parallel()
	b := open(t, Options{Endpoint: "http://127.0.0.1:1", Bucket: "bbb"})
	b.Close()
	if err := b.Get(t.Context(), "x", 0, make([]byte, 1)); !errors.Is(err, block.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
