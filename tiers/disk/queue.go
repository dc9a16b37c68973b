package disk

import (
	"sync"

	"github.com/kvfs/kvfs/tiers/disk/port"
)

// task is one unit of a worker's work: blocks of one job on one device, either one large block or
// several small ones.
type task struct {
	dev     *device
	job     *job
	flights []*flight // stores
	fetches []fetch   // loads
	bytes   int64     // of staging that its small blocks need
}

// queue holds the tasks of a device. Loads and stores have workers of their own, and the engine
// does reads first. So neither waits behind the other's queue.
type queue struct {
	mu struct {
		sync.Mutex
		loads, stores []*task
		all           map[*task]struct{} // not finished
		closed        bool
		failed        error // new tasks fail with it
	}
	loads, stores *sync.Cond
}

func (q *queue) init() {
	q.loads, q.stores = sync.NewCond(&q.mu.Mutex), sync.NewCond(&q.mu.Mutex)
	q.mu.all = make(map[*task]struct{})
}

// put queues a task, or returns the error that the task must fail with.
func (q *queue) put(k *task) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.failed != nil {
		return q.mu.failed
	}
	q.mu.all[k] = struct{}{}
	if k.fetches != nil {
		q.mu.loads = append(q.mu.loads, k)
		q.loads.Signal()
	} else {
		q.mu.stores = append(q.mu.stores, k)
		q.stores.Signal()
	}
	return nil
}

// begin records a task that runs without a worker. It returns false if the device is down.
func (q *queue) begin(k *task) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.failed != nil {
		return false
	}
	q.mu.all[k] = struct{}{}
	return true
}

// again queues a load that begin has recorded.
func (q *queue) again(k *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.loads = append(q.mu.loads, k)
	q.loads.Signal()
}

// nextLoad waits for a load. It returns nil after close.
func (q *queue) nextLoad() *task { return q.next(&q.mu.loads, q.loads) }

// nextStores waits for a store. It also returns the stores behind it that fit into the same staging
// buffer, so small blocks of different jobs share one write. It returns nil after close.
func (q *queue) nextStores() []*task {
	k := q.next(&q.mu.stores, q.stores)
	if k == nil {
		return nil
	}
	list, bytes := []*task{k}, k.bytes
	if bytes == 0 { // a large block
		return list
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.mu.stores) > 0 {
		k := q.mu.stores[0]
		if k.bytes == 0 || bytes+k.bytes > port.StagingBytes {
			break
		}
		bytes += k.bytes
		list = append(list, k)
		q.mu.stores[0] = nil
		q.mu.stores = q.mu.stores[1:]
	}
	return list
}

func (q *queue) next(list *[]*task, cond *sync.Cond) *task {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(*list) == 0 {
		if q.mu.closed {
			return nil
		}
		cond.Wait()
	}
	k := (*list)[0]
	(*list)[0] = nil
	*list = (*list)[1:]
	return k
}

// end forgets a task that is finished.
func (q *queue) end(k *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.mu.all, k)
}

// fail returns all unfinished tasks. Later tasks fail with err.
func (q *queue) fail(err error) []*task {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.failed == nil {
		q.mu.failed = err
	}
	list := make([]*task, 0, len(q.mu.all))
	for k := range q.mu.all {
		list = append(list, k)
	}
	return list
}

// close lets the workers end once no task is left.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.closed = true
	q.loads.Broadcast()
	q.stores.Broadcast()
}

// submit queues a task, or fails it if the device is down.
func (d *device) submit(k *task) {
	if d.startLoad(k) {
		return
	}
	if err := d.queue.put(k); err != nil {
		go k.abandon(err) // not within Store or Load: other jobs may share the outcome
	}
}

// workLoads runs loads until the queue is closed.
func (d *device) workLoads() {
	for k := d.queue.nextLoad(); k != nil; k = d.queue.nextLoad() {
		d.load(k)
		d.queue.end(k)
	}
}

// workStores runs stores until the queue is closed.
func (d *device) workStores() {
	for list := d.queue.nextStores(); list != nil; list = d.queue.nextStores() {
		var flights []*flight
		for _, k := range list {
			flights = append(flights, k.flights...)
		}
		d.store(flights)
		for _, k := range list {
			d.queue.end(k)
		}
	}
}

// failTasks fails all tasks that are queued or under way, and all later ones. It does not wait.
func (d *device) failTasks(err error) {
	for _, k := range d.queue.fail(err) {
		k.abandon(err)
	}
}

// abandon fails the blocks of a task that no worker uses at this moment. The worker of the others
// finds by itself that the device is down or the tier aborted.
func (k *task) abandon(err error) {
	t := k.dev.tier
	for i := range k.fetches {
		f := &k.fetches[i]
		k.job.abandon(f.index, k.job.failed(f.index, err))
	}
	for _, f := range k.flights {
		if !k.job.enter(f.index) {
			continue
		}
		t.mu.Lock()
		waiters := t.outLocked(f)
		t.mu.Unlock()
		f.end(k.job.failed(f.index, err), waiters)
	}
}
