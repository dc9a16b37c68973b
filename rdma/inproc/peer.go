package inproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvfs/kvfs/rdma"
)

// chunkSize is how many bytes are moved between two checks of the contexts.
const chunkSize = 256 << 10

// Peer implements rdma.Peer and rdma.Getter.
type Peer struct {
	t      *Transport
	addr   string
	ctx    context.Context // ends with Close, or that of t
	cancel context.CancelFunc
}

// Close implements rdma.Peer.
func (p *Peer) Close() error {
	p.cancel()
	return nil
}

// call is one Get or Read.
type call struct {
	p      *Peer
	holder *Transport
	link   context.Context // ends when the link is cut
	ctx    context.Context // ends when any of the others ends
	buf    []byte
}

// begin reaches the holder. end must be called unless it fails.
func (p *Peer) begin(ctx context.Context) (c *call, end func(), err error) {
	if p.ctx.Err() != nil || !p.t.enter() {
		return nil, nil, fmt.Errorf("peer %s: %w", p.addr, rdma.ErrClosed)
	}
	holder, link, delay := p.t.net.path(p.t.addr, p.addr)
	if link.Err() != nil || holder == nil || holder != p.t && !holder.enter() {
		p.t.calls.Done()
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, nil, fmt.Errorf("peer %s: %w", p.addr, rdma.ErrUnavailable)
	}
	all, cancel := context.WithCancel(context.Background())
	stops := []func() bool{
		context.AfterFunc(ctx, cancel),
		context.AfterFunc(p.ctx, cancel),
		context.AfterFunc(link, cancel),
		context.AfterFunc(holder.ctx, cancel),
	}
	c = &call{p: p, holder: holder, link: link, ctx: all, buf: make([]byte, chunkSize)}
	end = func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
		if holder != p.t {
			holder.calls.Done()
		}
		p.t.calls.Done()
	}
	if err := c.wait(ctx, delay); err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// wait waits for the delay of the link.
func (c *call) wait(ctx context.Context, delay time.Duration) error {
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.ctx.Done():
		}
	}
	return c.broken(ctx)
}

// broken returns why the call cannot go on, or nil. It asks the contexts themselves, because c.ctx
// follows them a moment later.
func (c *call) broken(ctx context.Context) error {
	switch {
	case c.p.ctx.Err() != nil:
		return fmt.Errorf("peer %s: %w", c.p.addr, rdma.ErrClosed)
	case ctx.Err() != nil:
		return ctx.Err()
	case c.holder.ctx.Err() != nil || c.link.Err() != nil:
		return fmt.Errorf("peer %s: %w", c.p.addr, rdma.ErrUnavailable)
	}
	return nil
}

// Get implements rdma.Getter.
func (p *Peer) Get(ctx context.Context, items []*rdma.Item) error {
	answered := 0
	err := p.get(ctx, items, &answered)
	for _, item := range items[answered:] {
		item.Done(err)
	}
	return err
}

func (p *Peer) get(ctx context.Context, items []*rdma.Item, answered *int) error {
	if len(items) > rdma.MaxItems {
		return fmt.Errorf("inproc: get of %d items, %d is the limit", len(items), rdma.MaxItems)
	}
	for _, item := range items {
		if len(item.Name) > rdma.MaxName {
			return fmt.Errorf("inproc: get of a name of %d bytes, %d is the limit", len(item.Name), rdma.MaxName)
		}
	}
	c, end, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	for _, item := range items {
		itemErr, err := c.item(ctx, item)
		if err != nil {
			return err
		}
		item.Done(itemErr)
		*answered++
	}
	return nil
}

// item gets one block. itemErr concerns that block alone.
func (c *call) item(ctx context.Context, item *rdma.Item) (itemErr, err error) {
	if err := c.broken(ctx); err != nil {
		return nil, err
	}
	c.holder.mu.Lock()
	source := c.holder.mu.source
	c.holder.mu.Unlock()
	if source == nil {
		return rdma.ErrBusy, nil
	}
	loan, lendErr := source.Lend(c.ctx, append([]byte{}, item.Name...))
	if lendErr == nil && loan.Close != nil {
		defer loan.Close()
	}
	if err := c.broken(ctx); err != nil {
		return nil, err
	}
	switch {
	case errors.Is(lendErr, rdma.ErrGone):
		return rdma.ErrGone, nil
	case errors.Is(lendErr, rdma.ErrLater):
		return rdma.ErrLater, nil
	case errors.Is(lendErr, rdma.ErrBusy):
		return rdma.ErrBusy, nil
	case lendErr != nil, len(loan.Header) > rdma.MaxHeader, loan.Size < 0, loan.File == nil:
		return fmt.Errorf("%w: the holder failed to read the block", rdma.ErrUnavailable), nil
	}
	dst, err := item.Accept(loan.Header, loan.Size)
	if err != nil {
		return err, nil
	}
	return c.move(ctx, loan.File, 0, loan.Size, dst, c.ctx)
}

// move copies n bytes at off of src to dst, as long as held lasts. An error in writing is itemErr.
func (c *call) move(ctx context.Context, src *os.File, off, n int64, dst rdma.Dest, held context.Context) (itemErr, err error) {
	var corrupt, truncate bool
	middle := n / 2
	if n > 0 {
		corrupt, truncate = c.p.t.net.faults(c.p.t.addr, c.p.addr)
	}
	for done := int64(0); done < n; {
		c.flow(held)
		if err := c.broken(ctx); err != nil {
			return nil, err
		}
		if held.Err() != nil {
			return nil, fmt.Errorf("peer %s: %w: region closed", c.p.addr, rdma.ErrUnavailable)
		}
		if truncate && done >= middle {
			return nil, fmt.Errorf("peer %s: %w: %d bytes of %d", c.p.addr, rdma.ErrProtocol, done, n)
		}
		b := c.buf[:min(n-done, chunkSize)]
		if truncate {
			b = b[:min(int64(len(b)), middle-done)]
		}
		if _, err := src.ReadAt(b, off+done); err != nil {
			return nil, fmt.Errorf("peer %s: %w: %w", c.p.addr, rdma.ErrUnavailable, err)
		}
		if at := middle - done; corrupt && at >= 0 && at < int64(len(b)) {
			b[at] ^= 1
		}
		if dst.Hash != nil {
			dst.Hash.Write(b)
		}
		if _, err := dst.File.WriteAt(b, dst.Off+done); err != nil {
			return fmt.Errorf("inproc: write the received bytes: %w", err), nil
		}
		done += int64(len(b))
	}
	return nil, c.broken(ctx)
}

// flow waits while the link is stalled, but no longer than the call and held last.
func (c *call) flow(held context.Context) {
	still := c.p.t.net.stalled(c.p.t.addr, c.p.addr)
	if still == nil {
		return
	}
	select {
	case <-still:
	case <-held.Done():
	case <-c.ctx.Done():
	}
}

// Read implements rdma.Peer.
func (p *Peer) Read(ctx context.Context, r rdma.RemoteRegion, off, n int64, dst rdma.Dest) error {
	if off < 0 || n < 0 || off+n < 0 || off+n > r.Size {
		return fmt.Errorf("inproc: read of %d bytes at %d of a region of %d", n, off, r.Size)
	}
	c, end, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	reg := c.holder.lookup(r.Key)
	if reg == nil {
		return fmt.Errorf("peer %s: %w", p.addr, rdma.ErrGone)
	}
	defer reg.reads.Done()
	if off+n > reg.size {
		return fmt.Errorf("peer %s: %w: read of %d bytes at %d of a region of %d", p.addr, rdma.ErrProtocol, n, off, reg.size)
	}
	itemErr, err := c.move(ctx, reg.file, off, n, dst, reg.ctx)
	return errors.Join(itemErr, err)
}
