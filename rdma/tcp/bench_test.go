package tcp

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// Flags for measuring between two network namespaces or hosts: run
//
//	tcp.test -test.run Hold -hold HOST:PORT [-congestion cubic]
//
// on one side, and on the other
//
//	tcp.test -test.run '^$' -test.bench Get -peer HOST:PORT [-congestion cubic] [-dir DIR]
var (
	holdAt     = flag.String("hold", "", "serve the benchmark's blocks at this address until interrupted")
	peerAt     = flag.String("peer", "", "benchmark against the holder at this address")
	congestion = flag.String("congestion", "", "congestion control of the benchmark's sockets")
	benchConns = flag.Int("connections", 4, "connections of the benchmark to a peer")
	benchDir   = flag.String("dir", "/dev/shm", "tmpfs for the benchmark's files")
)

// benchSource lends one of a few files of the size in the name.
type benchSource struct {
	dir string
	mu  sync.Mutex
	// files by size: several, so that the sent bytes are not in a cache.
	files map[int64][]*os.File
	next  int
}

const benchTotal = 128 << 20 // bytes of the files of a size

func (b *benchSource) Lend(_ context.Context, name []byte) (rdma.Loan, error) {
	var size int64
	if _, err := fmt.Sscan(string(name), &size); err != nil {
		return rdma.Loan{}, rdma.ErrGone
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.files[size] == nil {
		for n := int64(0); n < benchTotal; n += max(size, 1<<20) {
			f, err := os.CreateTemp(b.dir, "bench")
			if err != nil {
				return rdma.Loan{}, err
			}
			os.Remove(f.Name())
			p := make([]byte, size)
			for i := range p {
				p[i] = byte(i*7 + int(n>>16))
			}
			f.Write(p)
			b.files[size] = append(b.files[size], f)
		}
	}
	b.next++
	return rdma.Loan{File: b.files[size][b.next%len(b.files[size])], Size: size, Close: func() {}}, nil
}

func openBench(tb testing.TB, addr string) *Transport {
	tb.Helper()
	t, err := Open(Options{
		Bind: addr, Congestion: *congestion, Connections: *benchConns,
		Source: &benchSource{dir: *benchDir, files: map[int64][]*os.File{}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { t.Close() })
	return t
}

// TestHold is the other side of BenchmarkGet between namespaces.
func TestHold(t *testing.T) {
	if *holdAt == "" {
		t.Skip("no -hold")
	}
	tr := openBench(t, *holdAt)
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt, unix.SIGTERM)
	<-c
	t.Logf("%+v", tr.Stats())
}

// BenchmarkGet gets blocks into fresh tmpfs files, checksum included.
func BenchmarkGet(b *testing.B) {
	addr := *peerAt
	if addr == "" {
		addr = openBench(b, "127.0.0.1:0").Addr()
	}
	reader := openBench(b, "127.0.0.1:0")
	p, err := reader.Connect(addr)
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int64{64 << 10, 1 << 20, 4 << 20, 16 << 20} {
		for _, readers := range []int{1, 8} {
			b.Run(fmt.Sprintf("size=%dK/readers=%d", size>>10, readers), func(b *testing.B) {
				benchGet(b, p.(rdma.Getter), size, readers)
			})
		}
	}
}

func benchGet(b *testing.B, p rdma.Getter, size int64, readers int) {
	b.SetBytes(size)
	var wg sync.WaitGroup
	work := make(chan struct{}, b.N)
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	start := time.Now()
	for r := range readers {
		wg.Go(func() {
			sum := block.NewChecksum()
			for range work {
				path := filepath.Join(*benchDir, fmt.Sprintf("bench-%d-%d", os.Getpid(), r))
				f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					b.Error(err)
					return
				}
				os.Remove(path)
				sum.Reset()
				err = p.Get(b.Context(), []*rdma.Item{{
					Name:   fmt.Append(nil, size),
					Accept: func([]byte, int64) (rdma.Dest, error) { return rdma.Dest{File: f, Hash: sum}, nil },
					Done:   func(error) {},
				}})
				f.Close()
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(size)*float64(b.N)/time.Since(start).Seconds()/1e9, "GB/s")
}

// BenchmarkBare is the baseline of BenchmarkGet with one reader: a byte asks for a block, sendfile
// sends it, and it is received into a buffer.
func BenchmarkBare(b *testing.B) {
	for _, size := range []int64{64 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("size=%dK", size>>10), func(b *testing.B) { benchBare(b, size) })
	}
}

func benchBare(b *testing.B, size int64) {
	source := &benchSource{dir: *benchDir, files: map[int64][]*os.File{}}
	control := (&Transport{opts: Options{Congestion: *congestion}}).control
	lc := net.ListenConfig{Control: control}
	l, err := lc.Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() { // ends when the reader closes
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for ask := make([]byte, 1); ; {
			if _, err := io.ReadFull(c, ask); err != nil {
				return
			}
			loan, err := source.Lend(context.Background(), fmt.Append(nil, size))
			if err != nil {
				return
			}
			loan.File.Seek(0, io.SeekStart)
			if _, err := io.CopyN(c, loan.File, size); err != nil { // by sendfile
				return
			}
		}
	}()
	d := net.Dialer{Control: control}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, size)
	source.Lend(b.Context(), fmt.Append(nil, size)) // makes the files
	b.SetBytes(size)
	for b.Loop() {
		c.Write([]byte{1})
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}
