package disk

import (
	"github.com/kvfs/kvfs/directio"
)

// startBytes is how many bytes of small blocks a task without a worker may load. To verify and copy
// more would keep the goroutine that reaps the device from its work, unless all that it has to do is idleBytes at most.
const (
	startBytes = 256 << 10
	idleBytes  = 2 << 20
)

// startLoad loads the small blocks of a task without a worker. The goroutine that reaps the device
// verifies them and copies them out, which spares two wake-ups for each. If that fails, a worker
// begins anew. startLoad returns false if the task is too large for it, or would have to wait.
func (d *device) startLoad(k *task) bool {
	st, ok := d.port.Engine.(directio.Starter)
	if !ok || k.fetches == nil || k.fetches[0].dest.size >= largeBytes {
		return false
	}
	var need int64
	for i := range k.fetches {
		need += k.fetches[i].bytes()
	}
	if begun := d.starting.Add(need); need <= startBytes || begun <= idleBytes {
		if buf := d.staging.TryAcquire(need); buf != nil {
			if d.queue.begin(k) {
				d.startReads(st, k, need, buf)
				return true
			}
			buf.Release()
		}
	}
	d.starting.Add(-need)
	return false
}

// startReads starts the reads of startLoad, which need so many bytes of buf.
func (d *device) startReads(st directio.Starter, k *task, need int64, buf *directio.Buffer) {
	d.workers.Add(1) // the job is not complete, so nothing waits for the workers yet
	ops, opOf := stagedReads(k.fetches, buf.Bytes())
	start := st.Start
	if k.job.spare {
		start = st.Run
	}
	start(ops, func() {
		d.started(k, ops, opOf, buf)
		d.starting.Add(-need)
	})
}

// started completes the reads of startLoad.
func (d *device) started(k *task, ops []directio.Op, opOf []int, buf *directio.Buffer) {
	defer d.workers.Done()
	mem := buf.Bytes()
	for i := range k.fetches {
		f := &k.fetches[i]
		piece := mem[:f.bytes()]
		mem = mem[f.bytes():]
		if ops[opOf[i]].Err == nil && f.verify(piece) == nil {
			continue
		}
		buf.Release()
		d.queue.again(k)
		return
	}
	mem = buf.Bytes()
	for i := range k.fetches {
		f := &k.fetches[i]
		d.writeOut(f, mem[:f.bytes()], nil)
		mem = mem[f.bytes():]
	}
	buf.Release()
	d.queue.end(k)
}

// stagedReads returns the reads of small blocks into mem, and for each block the index of its read.
// The blocks come in ascending order. One read covers adjacent blocks. A slot may be longer than
// its block, so only blocks that fill their slots are adjacent.
func stagedReads(fetches []fetch, mem []byte) (ops []directio.Op, opOf []int) {
	opOf = make([]int, len(fetches))
	for i := range fetches {
		f, last := &fetches[i], len(ops)-1
		n := f.bytes()
		if last >= 0 && ops[last].File == f.at.File && ops[last].Off+int64(len(ops[last].Mem)) == f.at.Data {
			ops[last].Mem = ops[last].Mem[:len(ops[last].Mem)+int(n)]
		} else {
			ops = append(ops, directio.Op{Kind: directio.Read, File: f.at.File, Mem: mem[:n], Off: f.at.Data})
		}
		opOf[i] = len(ops) - 1
		mem = mem[n:]
	}
	return ops, opOf
}
