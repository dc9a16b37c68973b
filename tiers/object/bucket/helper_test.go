package bucket

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// patient is the deadline of tests that do not wait for it: a slow machine must keep it.
const patient = 20 * time.Second

// options returns those for the bucket of a server that is reached at a URL.
func options(s *s3test.Server, url string) Options {
	return Options{
		Endpoint: url, Bucket: s3test.Bucket, Prefix: "kv", Region: "us-east-1", Credentials: "file:" + s.Credentials,
		PathStyle: true, CAFile: s.CAFile, OpenDeadline: patient,
	}
}

// open returns a bucket that is closed with the test.
func open(t *testing.T, opts Options) *Bucket {
	t.Helper()
	b, err := New(opts)
	must(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// random returns n bytes that depend on seed.
func random(seed uint64, n int) []byte {
	p := make([]byte, n)
	var state [32]byte
	state[0], state[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(state).Read(p)
	return p
}

func put(t *testing.T, b *Bucket, name string, data []byte) {
	t.Helper()
	must(t, b.Put(t.Context(), name, data))
}

// want fails the test unless an object has these bytes from an offset.
func want(t *testing.T, b *Bucket, name string, offset int64, data []byte) {
	t.Helper()
	got := make([]byte, len(data))
	must(t, b.Get(t.Context(), name, offset, got))
	if !bytes.Equal(got, data) {
		t.Fatalf("%s has other bytes", name)
	}
	w := &once{p: make([]byte, len(data)), times: make([]byte, len(data))}
	must(t, b.Copy(t.Context(), name, offset, int64(len(data)), w))
	if !bytes.Equal(w.p, data) || bytes.Count(w.times, []byte{1}) != len(data) {
		t.Fatalf("%s was copied with other bytes, or not once", name)
	}
}

// once is an io.WriterAt into memory, which counts how often each byte is written.
type once struct {
	mu       sync.Mutex
	p, times []byte
}

func (w *once) WriteAt(p []byte, offset int64) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range p {
		w.times[offset+int64(i)]++
	}
	return copy(w.p[offset:], p), nil
}

// names lists the bucket after a name.
func names(t *testing.T, b *Bucket, after string) (names []string) {
	t.Helper()
	err := b.List(t.Context(), after, func(name string, _ int64, _ time.Time) error {
		names = append(names, name)
		return nil
	})
	must(t, err)
	return names
}
