//go:build ofi && cgo

package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/rdma"
)

// Transport implements rdma.Transport. Addr has the addresses of all rails; Connect of a
// transport with another provider is ErrUnavailable. A Region is registered on all rails.
type Transport struct {
	opts  Options
	lib   Library
	rails []*rail // at least one
	table *table
	cache *cache
	grave graveyard
	rings rings
	addr  address
	text  string // of addr
	count counters
	calls sync.WaitGroup // Reads and Registers under way

	mu struct {
		sync.Mutex
		closed  bool
		peers   map[*Peer]struct{}
		regions map[*region]struct{}
	}
	once   sync.Once // of Close
	closed error     // result of Close
}

var _ rdma.Transport = (*Transport)(nil)

// counters is the atomic form of Stats.
type counters struct {
	reads, readBytes, failed, stalls atomic.Int64
	registered, hits, pinned         atomic.Int64
	railBytes                        []atomic.Int64
}

// minMajor is the version of libfabric that verbs needs. 1.x sends old bytes of regions, and loses
// an endpoint by a wrong key.
const minMajor = 2

// Open opens the library and an endpoint on each device. It checks each by reading a region of its
// own. It blocks for about 100 ms. It fails with ErrUnavailable, or if o is wrong.
func Open(o Options) (*Transport, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	l, err := load()
	if err != nil {
		return nil, fmt.Errorf("fabric: %w", err)
	}
	lib := l.Library
	if l.overridden != "" {
		o.Logger.Warn("ignoring a variable of the environment: it turns on libfabric's cache of registrations, which may serve wrong bytes",
			zap.String("was", l.overridden))
	}
	if err := checkMachine(o, lib); err != nil {
		return nil, fmt.Errorf("fabric: %w", err)
	}
	t := &Transport{opts: o, lib: lib}
	t.mu.peers = map[*Peer]struct{}{}
	t.mu.regions = map[*region]struct{}{}
	t.cache = newCache(t)
	if err := t.open(); err != nil {
		if why := checkCharDevices(charDevices); why != nil && o.Provider != TCP {
			err = fmt.Errorf("%w; maybe because of this: %w", err, why)
		}
		return nil, errors.Join(fmt.Errorf("fabric: %w", err), t.Close())
	}
	return t, nil
}

// checkMachine finds problems that the provider would report only by failing.
func checkMachine(o Options, lib Library) error {
	if o.Provider == TCP {
		return nil
	}
	major, _, _ := strings.Cut(lib.Version, ".")
	if n, err := strconv.Atoi(major); o.Provider == Verbs && (err != nil || n < minMajor) {
		return fmt.Errorf("%w: the provider verbs needs libfabric %d.0 or later, %s is %s: install a newer one and set %s to its path",
			ErrUnavailable, minMajor, lib.Path, lib.Version, libraryVar)
	}
	return checkMemlock(o.CacheBytes + memlockFloor)
}

// open opens the rails and tests them.
func (t *Transport) open() error {
	devices := t.opts.Devices
	if len(devices) == 0 {
		devices = []string{""}
	}
	t.count.railBytes = make([]atomic.Int64, len(devices))
	var err error
	if t.table, err = newTable(); err != nil {
		return err
	}
	for i, device := range devices {
		r, err := openRail(t.opts, i, device)
		if err != nil {
			return err
		}
		t.rails = append(t.rails, r)
		if r.info.provider != t.rails[0].info.provider || r.info.format != t.rails[0].info.format {
			return fmt.Errorf("%w: %s and %s have different kinds of addresses", ErrUnavailable, t.rails[0].name, r.name)
		}
	}
	t.addr = address{provider: t.rails[0].info.provider, instance: t.table.word(0).Load(), format: t.rails[0].info.format}
	for _, r := range t.rails {
		m, err := t.registerOn(r, t.table.mem)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrUnavailable, r.name, whyNoMemory("register", err))
		}
		t.table.mems = append(t.table.mems, m)
		t.addr.rails = append(t.addr.rails, railAddr{endpoint: r.addr, words: r.spotOf(t.table.mem, m)})
	}
	t.text = t.addr.String()
	if err := t.tryRails(); err != nil {
		return fmt.Errorf("%w: self test: %w", ErrUnavailable, err)
	}
	for _, r := range t.rails {
		t.opts.Logger.Info("RDMA rail open", zap.Int("rail", r.index), zap.String("device", r.name),
			zap.String("provider", r.info.provider), zap.String("libfabric", t.lib.Version),
			zap.Bool("wakes", r.serve.wakes()))
	}
	return nil
}

// Of the self test.
const (
	tryBytes = 1 << 20
	tryTime  = 10 * time.Second
)

// tryRails reads a region of this transport by each of its rails.
func (t *Transport) tryRails() error {
	src, err := memFile()
	if err != nil {
		return err
	}
	defer src.Close()
	want := make([]byte, tryBytes)
	for i := range want {
		want[i] = byte(i ^ i>>8 ^ i>>16)
	}
	if _, err := src.WriteAt(want, 0); err != nil {
		return err
	}
	region, err := t.Register(src, tryBytes)
	if err != nil {
		return err
	}
	defer region.Close()
	p, err := t.connect(t.text)
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), tryTime)
	defer cancel()
	for i, r := range t.rails {
		if err := p.try(ctx, region.Remote(), want, p.rails[i]); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// try reads a region by one rail; nil: by the rails that Read chooses.
func (p *Peer) try(ctx context.Context, remote rdma.RemoteRegion, want []byte, rail *peerRail) error {
	dst, err := memFile()
	if err != nil {
		return err
	}
	defer dst.Close()
	n := int64(len(want))
	if rail == nil {
		err = p.Read(ctx, remote, 0, n, rdma.Dest{File: dst})
	} else {
		_, err = p.read(ctx, remote, 0, n, rdma.Dest{File: dst}, []*peerRail{rail})
	}
	if err != nil {
		return err
	}
	got := make([]byte, n)
	if _, err := dst.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("other bytes were read than were written")
	}
	return nil
}

// memFile returns a file in memory that has no name.
func memFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("kvfs-fabric", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "memfd"), nil
}

// newKey proposes a key for a registration; providers that choose keys ignore it.
func (t *Transport) newKey(r *rail) uint64 { return randomWord() & r.info.keyMask }

// registerOn lets peers read p by one rail.
func (t *Transport) registerOn(r *rail, p []byte) (memory, error) {
	for try := 0; ; try++ {
		m, err := r.domain.register(p, true, t.newKey(r))
		if err == nil {
			t.count.registered.Add(1)
			return m, nil
		}
		if !errors.Is(err, codeNoKey) || try == 8 { // the key is in use
			return memory{}, err
		}
	}
}

// unmapRegion unmaps memory that peers could read.
func (t *Transport) unmapRegion(p []byte) error {
	if t.opts.Provider == TCP {
		return t.grave.bury(p)
	}
	return unmap(p)
}

func (t *Transport) logClose(what string, err error) {
	t.opts.Logger.Error("cannot end a registration", zap.String("of", what), zap.Error(err))
}

// proto is Caps.Proto.
func proto(provider string) string { return "ofi/" + provider }

// Caps implements rdma.Transport.
func (t *Transport) Caps() rdma.Caps {
	c := rdma.Caps{
		Proto: proto(t.addr.provider), OneSided: true,
		Provider:   "libfabric " + t.lib.Version + " " + t.addr.provider,
		MaxMessage: messageLimit,
	}
	for _, r := range t.rails {
		c.Rails = append(c.Rails, r.name)
		c.MaxMessage = min(c.MaxMessage, r.info.maxMessage)
	}
	return c
}

// Addr implements rdma.Transport.
func (t *Transport) Addr() string { return t.text }

// Connect implements rdma.Transport. The Peer is a *Peer.
func (t *Transport) Connect(addr string) (rdma.Peer, error) {
	p, err := t.connect(addr)
	if err != nil {
		return nil, fmt.Errorf("fabric: connect: %w", err)
	}
	return p, nil
}

func (t *Transport) connect(addr string) (*Peer, error) {
	a, err := parseAddress(addr)
	if err != nil {
		return nil, err
	}
	if a.provider != t.addr.provider {
		return nil, fmt.Errorf("%w: the peer has the provider %s, this node %s", ErrUnavailable, a.provider, t.addr.provider)
	}
	if a.format != t.addr.format {
		return nil, fmt.Errorf("%w: the peer has another kind of addresses: IPv4 and IPv6?", ErrUnavailable)
	}
	for i, r := range a.rails {
		own := t.addr.rails[0].endpoint
		if len(r.endpoint) != len(own) || !bytes.Equal(r.endpoint[:2], own[:2]) {
			return nil, fmt.Errorf("address of rail %d of %d bytes does not look like one of %s", i, len(r.endpoint), t.addr.provider)
		}
	}
	p := newPeer(t, a)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return nil, rdma.ErrClosed
	}
	t.mu.peers[p] = struct{}{}
	return p, nil
}

// enter counts a call, so that Close can wait for it.
func (t *Transport) enter() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return rdma.ErrClosed
	}
	t.calls.Add(1)
	return nil
}

// Forget ends the cache's registrations of a file with these numbers before it returns: its pages
// are then free. Open regions of the file stay.
func (t *Transport) Forget(dev, ino uint64) { t.cache.forget(fileID{dev, ino}) }

// Stats returns the counts of the transport.
func (t *Transport) Stats() Stats {
	t.mu.Lock()
	peers, regions := len(t.mu.peers), len(t.mu.regions)
	t.mu.Unlock()
	c := &t.count
	s := Stats{
		Peers: int64(peers), Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), Failed: c.failed.Load(),
		Stalls: c.stalls.Load(), Registered: c.registered.Load(), CacheHits: c.hits.Load(),
		Regions: int64(regions), PinnedBytes: c.pinned.Load(), CachedBytes: t.cache.cachedBytes(),
	}
	for i := range c.railBytes {
		s.RailBytes = append(s.RailBytes, c.railBytes[i].Load())
	}
	return s
}

// Close implements rdma.Transport.
func (t *Transport) Close() error {
	t.once.Do(func() { t.closed = t.close() })
	return t.closed
}

func (t *Transport) close() error {
	t.mu.Lock()
	t.mu.closed = true
	var peers []*Peer
	for p := range t.mu.peers {
		peers = append(peers, p)
	}
	t.mu.Unlock()
	for _, p := range peers {
		p.Close()
	}
	t.calls.Wait()

	t.mu.Lock()
	var regions []*region
	for r := range t.mu.regions {
		regions = append(regions, r)
	}
	t.mu.Unlock()
	for _, r := range regions {
		r.Close()
	}
	var errs []error
	for _, r := range t.rails {
		errs = append(errs, r.closeServing())
	}
	t.cache.close()
	if t.table != nil {
		errs = append(errs, t.table.close())
	}
	for _, r := range t.rails {
		errs = append(errs, r.close())
	}
	t.grave.clear()
	t.rings.close()
	return errors.Join(errs...)
}
