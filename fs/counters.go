package fs

import (
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/fs/device"
)

// opCounters counts requests of the kernel by operation.
type opCounters [device.NumOps]atomic.Uint64

func (c *opCounters) add(o device.Op) { c[o].Add(1) }

// snapshot returns the operations that occurred.
func (c *opCounters) snapshot() map[string]uint64 {
	m := map[string]uint64{}
	for i := range c {
		if n := c[i].Load(); n > 0 {
			m[device.Op(i).String()] = n
		}
	}
	return m
}

// request is a request that is being answered, as far as it is timed here.
type request struct {
	times *device.Latencies // nil: the connection times it
	op    device.Op
	from  time.Time
}

// begin counts a request, and times it until end.
func (f *files) begin(op device.Op) request {
	f.ops.add(op)
	return f.time(op)
}

// time times a request until end, unless the connection does: go-fuse, which splices, does not.
func (f *files) time(op device.Op) request {
	if !f.splice {
		return request{}
	}
	return request{f.opts.Latencies, op, time.Now()}
}

func (r request) end() {
	if r.times != nil {
		r.times.Observe(r.op, time.Since(r.from))
	}
}
