package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/rdma/tcp"
	"github.com/kvfs/kvfs/tiers/block"
)

// rdmaRole is a node with bare transports only.
const rdmaRole = "rdma"

// The ways in which it moves bytes.
const (
	tcpWay    = "tcp"
	fabricWay = "fabric"
)

// rdmaOrder is one line to a node. Exactly one field is set.
type rdmaOrder struct {
	Hold     *rdmaBlocks   `json:",omitempty"`
	Connect  *rdmaOffer    `json:",omitempty"`
	Verify   bool          `json:",omitempty"`
	Pass     *rdmaPass     `json:",omitempty"`
	Register *rdmaRegister `json:",omitempty"`
}

// rdmaBlocks makes a node hold blocks: this many of each size.
type rdmaBlocks struct{ Sizes, Counts []int }

// rdmaOffer says where the blocks are. A holder answers with it, and a reader gets it.
type rdmaOffer struct {
	TCP, Fabric string // addresses
	Sizes       []int
	Regions     [][]rdma.RemoteRegion // of each size, for the fabric
}

// rdmaPass makes a node read blocks for a while.
type rdmaPass struct {
	Way         string
	Size, Depth int // reads at a time
	Time        time.Duration
	// Bare: to the same file again and again, without a checksum. Otherwise each block goes to its
	// own file and is summed up, as in the peer tier.
	Bare bool
}

// rdmaRegister makes a node register a file and close the region this many times.
type rdmaRegister struct {
	Size, Count int
	Cached      bool // by a transport with a cache
	Same        bool // the same file each time, which was registered before
}

// rdmaAnswer is one line from a node.
type rdmaAnswer struct {
	Error  string     `json:",omitempty"`
	Offer  *rdmaOffer `json:",omitempty"`
	Rate   float64    `json:",omitempty"` // bytes a second
	Bytes  int        `json:",omitempty"` // of the pass
	Micros []float64  `json:",omitempty"` // each registration
	Shape  string     `json:",omitempty"` // the layer below the fabric
}

// rdmaNode is the state of a node.
type rdmaNode struct {
	host   string
	tcp    *tcp.Transport
	fabric *fabric.Transport
	cached *fabric.Transport // with a cache; nil: not opened yet

	files map[string]*os.File // by the name for Get
	peers map[string]rdma.Peer
	offer rdmaOffer // of the holder to which this node is connected
}

// playRDMA carries out the lines of in until it ends, and answers each.
func playRDMA(r role, in io.Reader, out io.Writer) (err error) {
	n := &rdmaNode{host: r.Path, files: map[string]*os.File{}, peers: map[string]rdma.Peer{}}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.open(); err != nil {
		return err
	}
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o rdmaOrder
		if err := from.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		a, err := n.obey(o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := to.Encode(a); err != nil {
			return err
		}
	}
}

func (n *rdmaNode) open() error {
	var err error
	n.tcp, err = tcp.Open(tcp.Options{Bind: net.JoinHostPort(n.host, "0"), Source: n})
	if err != nil {
		return err
	}
	n.fabric, err = n.openFabric(0)
	return err
}

func (n *rdmaNode) openFabric(cacheBytes int64) (*fabric.Transport, error) {
	device, err := deviceOf(n.host)
	if err != nil {
		return nil, err
	}
	return fabric.Open(fabric.Options{
		Provider: fabric.TCP, Devices: []string{device}, Host: n.host, CacheBytes: cacheBytes, CacheTime: time.Hour, KeepUnnamed: true,
	})
}

// deviceOf returns the network interface that has an address.
func deviceOf(host string) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(addrs, func(a net.Addr) bool {
			ip, _, err := net.ParseCIDR(a.String())
			return err == nil && ip.Equal(net.ParseIP(host))
		}) {
			return i.Name, nil
		}
	}
	return "", fmt.Errorf("no network interface has the address %s", host)
}

func (n *rdmaNode) close() error {
	var errs []error
	if n.tcp != nil {
		errs = append(errs, n.tcp.Close())
	}
	for _, f := range []*fabric.Transport{n.fabric, n.cached} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...) // Files end with the process.
}

func (n *rdmaNode) obey(o rdmaOrder) (a rdmaAnswer, err error) {
	switch {
	case o.Hold != nil:
		a.Shape = n.fabric.Caps().Provider
		a.Offer, err = n.hold(*o.Hold)
	case o.Connect != nil:
		err = n.connect(*o.Connect)
	case o.Verify:
		err = n.verify()
	case o.Pass != nil:
		a.Rate, a.Bytes, err = n.pass(*o.Pass)
	case o.Register != nil:
		a.Micros, err = n.register(*o.Register)
	default:
		err = errors.New("empty order")
	}
	return a, err
}

func rdmaName(size, i int) string { return fmt.Sprint(size, " ", i) }

// hold makes blocks and offers them.
func (n *rdmaNode) hold(b rdmaBlocks) (*rdmaOffer, error) {
	o := &rdmaOffer{TCP: n.tcp.Addr(), Fabric: n.fabric.Addr(), Sizes: b.Sizes}
	buf := make([]byte, slices.Max(b.Sizes))
	fillPattern(buf)
	for k, size := range b.Sizes {
		var regions []rdma.RemoteRegion
		for i := range b.Counts[k] {
			f, err := memoryFile()
			if err != nil {
				return nil, err
			}
			stampPages(buf[:size], i)
			if _, err := f.Write(buf[:size]); err != nil {
				return nil, err
			}
			r, err := n.fabric.Register(f, int64(size))
			if err != nil {
				return nil, err
			}
			n.files[rdmaName(size, i)] = f
			regions = append(regions, r.Remote())
		}
		o.Regions = append(o.Regions, regions)
	}
	return o, nil
}

// memoryFile makes a private file in memory.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "bench"), nil
}

// Lend implements rdma.Source.
func (n *rdmaNode) Lend(_ context.Context, name []byte) (rdma.Loan, error) {
	f := n.files[string(name)] // all were made before any connection
	size, err := strconv.Atoi(string(name[:max(0, slices.Index(name, ' '))]))
	if f == nil || err != nil {
		return rdma.Loan{}, rdma.ErrGone
	}
	return rdma.Loan{File: f, Size: int64(size)}, nil
}

func (n *rdmaNode) connect(o rdmaOffer) error {
	n.offer = o
	for way, open := range map[string]func() (rdma.Peer, error){
		tcpWay:    func() (rdma.Peer, error) { return n.tcp.Connect(o.TCP) },
		fabricWay: func() (rdma.Peer, error) { return n.fabric.Connect(o.Fabric) },
	} {
		p, err := open()
		if err != nil {
			return err
		}
		n.peers[way] = p
	}
	return nil
}

// fetch reads a block to f.
func (n *rdmaNode) fetch(way string, k, i int, f *os.File, sum hash.Hash64) error {
	dst := rdma.Dest{File: f, Hash: sum}
	size := n.offer.Sizes[k]
	if way == fabricWay {
		return n.peers[way].Read(context.Background(), n.offer.Regions[k][i], 0, int64(size), dst)
	}
	var result error
	item := &rdma.Item{
		Name:   []byte(rdmaName(size, i)),
		Accept: func([]byte, int64) (rdma.Dest, error) { return dst, nil },
		Done:   func(err error) { result = err },
	}
	err := n.peers[way].(rdma.Getter).Get(context.Background(), []*rdma.Item{item})
	return errors.Join(err, result)
}

// verify reads all blocks in each way and compares every byte.
func (n *rdmaNode) verify() error {
	largest := slices.Max(n.offer.Sizes)
	pattern, got := make([]byte, largest), make([]byte, largest)
	fillPattern(pattern)
	for way := range n.peers {
		for k, size := range n.offer.Sizes {
			for i := range n.offer.Regions[k] {
				f, err := memoryFile()
				if err != nil {
					return err
				}
				sum := block.NewChecksum()
				err = n.fetch(way, k, i, f, sum)
				if err == nil {
					_, err = f.ReadAt(got[:size], 0)
				}
				if err == nil {
					err = verifyPages(got[:size], pattern, i)
				}
				want := block.NewChecksum()
				want.Write(got[:size]) // a hash accepts everything
				if err == nil && sum.Sum64() != want.Sum64() {
					err = fmt.Errorf("checksum %x, want %x", sum.Sum64(), want.Sum64())
				}
				f.Close() // memory: nothing is lost
				if err != nil {
					return fmt.Errorf("%s, block %d of %s: %w", way, i, sizeText(size), err)
				}
			}
		}
	}
	return nil
}

// pass reads blocks of a size.
func (n *rdmaNode) pass(p rdmaPass) (perSec float64, bytes int, err error) {
	k := slices.Index(n.offer.Sizes, p.Size)
	if k < 0 {
		return 0, 0, fmt.Errorf("no blocks of %s", sizeText(p.Size))
	}
	count := len(n.offer.Regions[k])
	blocks := make([]int, p.Depth)
	errs := make([]error, p.Depth)
	var wg sync.WaitGroup
	begin := time.Now()
	for d := range p.Depth {
		wg.Go(func() {
			own, err := memoryFile()
			if err != nil {
				errs[d] = err
				return
			}
			defer own.Close()
			for i := d * count / p.Depth; errs[d] == nil && (blocks[d] == 0 || time.Since(begin) < p.Time); i++ {
				if p.Bare {
					errs[d] = n.fetch(p.Way, k, i%count, own, nil)
				} else {
					errs[d] = n.fetchAsBlock(p.Way, k, i%count)
				}
				blocks[d]++
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begin).Seconds()
	for _, b := range blocks {
		bytes += b * p.Size
	}
	return float64(bytes) / elapsed, bytes, errors.Join(errs...)
}

// fetchAsBlock reads to a new file, with the checksum.
func (n *rdmaNode) fetchAsBlock(way string, k, i int) error {
	f, err := memoryFile()
	if err != nil {
		return err
	}
	return errors.Join(n.fetch(way, k, i, f, block.NewChecksum()), f.Close())
}

// register returns the time of each registration with its close, in microseconds.
func (n *rdmaNode) register(r rdmaRegister) ([]float64, error) {
	t := n.fabric
	if r.Cached {
		if n.cached == nil {
			var err error
			if n.cached, err = n.openFabric(2 * gib); err != nil {
				return nil, err
			}
		}
		t = n.cached
	}
	var f *os.File
	defer func() { n.discard(f) }()
	var micros []float64
	hits := t.Stats().CacheHits
	for len(micros) < r.Count {
		if f == nil || !r.Same {
			n.discard(f)
			var err error
			if f, err = filledFile(r.Size); err != nil {
				return nil, err
			}
			if r.Same { // The first time is not timed.
				if _, err := registerOnce(t, f, r.Size); err != nil {
					return nil, err
				}
				hits = t.Stats().CacheHits
			}
		}
		us, err := registerOnce(t, f, r.Size)
		if err != nil {
			return nil, err
		}
		micros = append(micros, us)
	}
	want := int64(0)
	if r.Cached && r.Same {
		want = int64(r.Count)
	}
	if got := t.Stats().CacheHits - hits; got != want {
		return nil, fmt.Errorf("%d hits of the cache, want %d", got, want)
	}
	return micros, nil
}

// discard frees the pages of f.
func (n *rdmaNode) discard(f *os.File) {
	if f == nil {
		return
	}
	var st unix.Stat_t
	if n.cached != nil && unix.Fstat(int(f.Fd()), &st) == nil {
		n.cached.Forget(st.Dev, st.Ino)
	}
	f.Close() // memory: nothing is lost
}

// filledFile makes a file with allocated pages.
func filledFile(size int) (*os.File, error) {
	f, err := memoryFile()
	if err != nil {
		return nil, err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size)); err != nil {
		return nil, errors.Join(os.NewSyscallError("fallocate", err), f.Close())
	}
	return f, nil
}

func registerOnce(t *fabric.Transport, f *os.File, size int) (micros float64, err error) {
	begin := time.Now()
	r, err := t.Register(f, int64(size))
	if err == nil {
		err = r.Close()
	}
	return float64(time.Since(begin).Nanoseconds()) / 1e3, err
}
