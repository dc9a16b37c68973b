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

// The ways in which a node moves bytes.
const (
	tcpWay    = "tcp"
	fabricWay = "fabric"
)

// rdmaOrder is one line to a node with bare transports only. Exactly one field is set.
type rdmaOrder struct {
	Hold    *rdmaBlocks `json:",omitempty"`
	Connect *rdmaOffer  `json:",omitempty"`
	Verify  bool        `json:",omitempty"`
	Pass    *rdmaPass   `json:",omitempty"`
}

// rdmaBlocks makes a node hold blocks: this many of each size.
type rdmaBlocks struct{ Sizes, Counts []int }

// rdmaOffer says where the blocks are. A holder answers with it, and a reader gets it.
type rdmaOffer struct {
	TCP, Fabric string // addresses
	Sizes       []int
	Regions     [][]rdma.RemoteRegion // of each size, for the fabric
}

// rdmaPass makes a node read blocks for a while, each to its own file and with a checksum, as in the peer tier.
type rdmaPass struct {
	Way         string
	Size, Depth int // reads at a time
	Time        time.Duration
}

// rdmaAnswer is one line from a node.
type rdmaAnswer struct {
	Error string     `json:",omitempty"`
	Offer *rdmaOffer `json:",omitempty"`
	Rate  float64    `json:",omitempty"` // bytes a second
	Bytes int        `json:",omitempty"` // of the pass
	Shape string     `json:",omitempty"` // the layer below the fabric
}

type rdmaNode struct {
	host   string
	tcp    *tcp.Transport
	fabric *fabric.Transport

	files map[string]*os.File // by the name for Get
	peers map[string]rdma.Peer
	offer rdmaOffer // of the holder to which this node is connected
}

// playRDMA carries out the lines of in until it ends, and answers each.
func playRDMA(r role, in io.Reader, out io.Writer) {
	n := &rdmaNode{host: r.Path, files: map[string]*os.File{}, peers: map[string]rdma.Peer{}}
	n.tcp = get(tcp.Open(tcp.Options{Bind: net.JoinHostPort(n.host, "0"), Source: n}))
	defer func() { must(n.tcp.Close()) }()
	n.fabric = get(fabric.Open(fabric.Options{
		Provider: fabric.TCP, Devices: []string{deviceOf(n.host)}, Host: n.host, CacheTime: time.Hour, KeepUnnamed: true,
	}))
	defer func() { must(n.fabric.Close()) }()
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o rdmaOrder
		err := from.Decode(&o)
		if errors.Is(err, io.EOF) {
			break // files end with the process
		}
		must(err)
		var a rdmaAnswer
		if err := try(func() { n.obey(o, &a) }); err != nil {
			a.Error = err.Error()
		}
		must(to.Encode(a))
	}
}

// deviceOf returns the network interface that has an address.
func deviceOf(host string) string {
	for _, i := range get(net.Interfaces()) {
		if slices.ContainsFunc(get(i.Addrs()), func(a net.Addr) bool {
			ip, _, err := net.ParseCIDR(a.String())
			return err == nil && ip.Equal(net.ParseIP(host))
		}) {
			return i.Name
		}
	}
	must(fmt.Errorf("no network interface has the address %s", host))
	return ""
}

func (n *rdmaNode) obey(o rdmaOrder, a *rdmaAnswer) {
	switch {
	case o.Hold != nil:
		a.Shape, a.Offer = n.fabric.Caps().Provider, n.hold(*o.Hold)
	case o.Connect != nil:
		n.offer = *o.Connect
		n.peers[tcpWay] = get(n.tcp.Connect(o.Connect.TCP))
		n.peers[fabricWay] = get(n.fabric.Connect(o.Connect.Fabric))
	case o.Verify:
		n.verify()
	case o.Pass != nil:
		a.Rate, a.Bytes = n.pass(*o.Pass)
	}
}

func rdmaName(size, i int) string { return fmt.Sprint(size, " ", i) }

func (n *rdmaNode) hold(b rdmaBlocks) *rdmaOffer {
	o := &rdmaOffer{TCP: n.tcp.Addr(), Fabric: n.fabric.Addr(), Sizes: b.Sizes}
	buf := make([]byte, slices.Max(b.Sizes))
	fillPattern(buf)
	for k, size := range b.Sizes {
		var regions []rdma.RemoteRegion
		for i := range b.Counts[k] {
			f := memoryFile()
			stampPages(buf[:size], i)
			get(f.Write(buf[:size]))
			n.files[rdmaName(size, i)] = f
			regions = append(regions, get(n.fabric.Register(f, int64(size))).Remote())
		}
		o.Regions = append(o.Regions, regions)
	}
	return o
}

func memoryFile() *os.File {
	return os.NewFile(uintptr(get(unix.MemfdCreate("bench", unix.MFD_CLOEXEC))), "bench")
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

// fetch reads a block to f.
func (n *rdmaNode) fetch(way string, k, i int, f *os.File, sum hash.Hash64) {
	dst := rdma.Dest{File: f, Hash: sum}
	size := n.offer.Sizes[k]
	if way == fabricWay {
		must(n.peers[way].Read(context.Background(), n.offer.Regions[k][i], 0, int64(size), dst))
		return
	}
	var result error
	item := &rdma.Item{
		Name:   []byte(rdmaName(size, i)),
		Accept: func([]byte, int64) (rdma.Dest, error) { return dst, nil },
		Done:   func(err error) { result = err },
	}
	must(n.peers[way].(rdma.Getter).Get(context.Background(), []*rdma.Item{item}))
	must(result)
}

// verify reads all blocks in each way and compares every byte.
func (n *rdmaNode) verify() {
	largest := slices.Max(n.offer.Sizes)
	pattern, got := make([]byte, largest), make([]byte, largest)
	fillPattern(pattern)
	for way := range n.peers {
		for k, size := range n.offer.Sizes {
			for i := range n.offer.Regions[k] {
				f, sum, want := memoryFile(), block.NewChecksum(), block.NewChecksum()
				n.fetch(way, k, i, f, sum)
				get(f.ReadAt(got[:size], 0))
				f.Close() // memory: nothing is lost
				verifyPages(got[:size], pattern, i)
				want.Write(got[:size]) // a hash accepts everything
				if sum.Sum64() != want.Sum64() {
					must(fmt.Errorf("%s, block %d of %s: checksum %x, want %x", way, i, sizeText(size), sum.Sum64(), want.Sum64()))
				}
			}
		}
	}
}

// pass reads blocks of a size.
func (n *rdmaNode) pass(p rdmaPass) (perSec float64, bytes int) {
	k := slices.Index(n.offer.Sizes, p.Size)
	if k < 0 {
		must(fmt.Errorf("no blocks of %s", sizeText(p.Size)))
	}
	count := len(n.offer.Regions[k])
	blocks, errs := make([]int, p.Depth), make([]error, p.Depth)
	var wg sync.WaitGroup
	begin := time.Now()
	for d := range p.Depth {
		wg.Go(func() {
			errs[d] = try(func() {
				for i := d * count / p.Depth; blocks[d] == 0 || time.Since(begin) < p.Time; i++ {
					f := memoryFile()
					n.fetch(p.Way, k, i%count, f, block.NewChecksum())
					must(f.Close())
					blocks[d]++
				}
			})
		})
	}
	wg.Wait()
	elapsed := time.Since(begin).Seconds()
	must(errors.Join(errs...))
	for _, b := range blocks {
		bytes += b * p.Size
	}
	return float64(bytes) / elapsed, bytes
}
