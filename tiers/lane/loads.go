package lane

import (
	"os"
	"slices"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Load is one block to be brought up. It belongs to its Lane from QueueLoadLocked until For is told; the fields
// are not changed meanwhile, but Ahead by HastenLocked.
type Load struct {
	Key     block.Key
	Size    int64          // bytes
	Sum     block.Checksum // that it has to have; not Valid: the one that the tier has recorded
	Seq     uint64         // as Transfer.Attrs says
	File    *os.File       // the destination
	Request string         // loads of one job have the same
	Ahead   bool           // asked for ahead of use: nobody waits for it in an open
	Copy    bool           // it is no read, and does not count as one in a Batch
	Spare   bool           // who asks for it has nothing else to do: see driver.Job
	For     Loader
}

// Loader is told what became of a Load: by one of these calls, once, without a lock.
type Loader interface {
	// Loaded has the tier's answer.
	Loaded(o *driver.Outcome)
	// Again: the removals and updates are done which AgainLocked waited for, so the tier may be asked again.
	Again()
	// Closed: the Lane was closed before the tier was asked.
	Closed()
}

// Batch is what a load job came to.
type Batch struct {
	Tier    string
	Request string // that it was loaded for; may be empty
	Keys    int    // reads
	Success int    // of them, those that were loaded
	Bytes   int64  // that were loaded
	Took    time.Duration
	Groups  map[block.GroupID]int // reads of each group
}

// add counts a load.
func (b *Batch) add(ld *Load, loaded bool) {
	if loaded {
		b.Bytes += ld.Size
	}
	if ld.Copy {
		return
	}
	b.Keys++
	b.Groups[ld.Key.Group]++
	if loaded {
		b.Success++
	}
}

// QueueLoadLocked puts a load behind what was asked for before, but one that somebody waits for in an open goes
// before those that are wanted ahead of use. Ask or Flush begins it.
func (l *Lane) QueueLoadLocked(ld *Load) {
	at := len(l.pending)
	for !ld.Ahead && at > 0 && l.pending[at-1].Ahead {
		at--
	}
	l.pending = slices.Insert(l.pending, at, ld)
	l.pendingBytes += ld.Size
}

// HastenLocked follows that somebody waits in an open for what was wanted ahead of use.
func (l *Lane) HastenLocked(ld *Load) {
	if !ld.Ahead {
		return
	}
	ld.Ahead = false
	if i := slices.Index(l.pending, ld); i >= 0 {
		l.pending = slices.Delete(l.pending, i, i+1)
		l.pendingBytes -= ld.Size
		l.QueueLoadLocked(ld)
	}
}

// AgainLocked has the Loader called when the removals and updates that are queued have been done: the tier may
// have the block under another name until then.
func (l *Lane) AgainLocked(ld *Load) {
	l.again = append(l.again, ld)
	l.wakeUp()
}

// KeyedLocked reports whether removals or updates are queued.
func (l *Lane) KeyedLocked() bool { return l.keyed.len() > 0 }

// Ask begins the loads that are queued, or waits for more of them, for Options.Window.
func (l *Lane) Ask() {
	l.o.Lock.Lock()
	full := len(l.pending) >= l.o.BatchKeys || l.pendingBytes >= l.o.BatchBytes || l.o.Window == 0
	l.o.Lock.Unlock()
	if full {
		l.Flush()
	} else {
		time.AfterFunc(l.o.Window, l.Flush)
	}
}

// Flush gives the queued loads to the tier, in jobs of one request
// each, limited in keys and bytes. Jobs beyond a limit follow when others have ended.
func (l *Lane) Flush() {
	for {
		l.o.Lock.Lock()
		job, batch := l.takeLoadsLocked()
		l.o.Lock.Unlock()
		if len(batch) == 0 {
			return
		}
		l.beginLoads(job, batch)
	}
}

func (l *Lane) beginLoads(j *LoadJob, batch []*Load) {
	job := &driver.Job{ID: j.ID, Request: j.Request, Promotion: j.Promotion, Blocks: make([]driver.Transfer, len(batch))}
	for i, ld := range batch {
		job.Blocks[i] = driver.Transfer{Key: ld.Key, Size: ld.Size, Sum: ld.Sum, File: ld.File, Attrs: driver.Attrs{Seq: ld.Seq}}
	}
	job.Spare = len(batch) == 1 && batch[0].Spare
	job.Done = l.answered(job, func(r *driver.Result) { l.loaded(j, batch, r) })
	l.o.Tier.Load(job)
}

// takeLoadsLocked takes the loads of the next job from the queue.
func (l *Lane) takeLoadsLocked() (*LoadJob, []*Load) {
	if len(l.pending) == 0 || l.loading >= maxLoadJobs || l.stopped {
		return nil, nil
	}
	batch, rest, bytes := l.cutLoadsLocked()
	l.pending = rest
	l.pendingBytes -= bytes
	l.stats.Batches++
	j := &LoadJob{
		ID: l.o.NextJob(), Request: batch[0].Request, Tier: l.o.Name, Promotion: !batch[0].Ahead,
		Keys: len(batch), Bytes: bytes, Started: l.o.Now(),
	}
	if l.loading == 0 {
		l.busySince = j.Started
	}
	l.loading++
	l.loadingBytes += j.Bytes
	l.jobs[j.ID] = j
	return j, batch
}

// cutLoadsLocked cuts the queue into the next job, of some bytes, and the rest (B13 to B18).
func (l *Lane) cutLoadsLocked() (batch, rest []*Load, bytes int64) {
	keys := map[block.Key]struct{}{}
	for i, ld := range l.pending {
		_, twice := keys[ld.Key] // the name went to another block meanwhile
		if len(batch) > 0 && (twice || ld.Request != batch[0].Request || ld.Ahead != batch[0].Ahead) {
			rest = append(rest, ld)
			continue
		}
		if len(batch) >= l.o.BatchKeys || len(batch) > 0 && bytes+ld.Size > l.o.BatchBytes {
			return batch, append(rest, l.pending[i:]...), bytes
		}
		keys[ld.Key] = struct{}{}
		batch = append(batch, ld)
		bytes += ld.Size
	}
	return batch, rest, bytes
}

// loaded follows the end of a load job.
func (l *Lane) loaded(j *LoadJob, batch []*Load, r *driver.Result) {
	b := &Batch{Tier: l.o.Name, Request: j.Request, Took: l.o.Now().Sub(j.Started), Groups: map[block.GroupID]int{}}
	for i, ld := range batch {
		o := &r.Outcomes[i]
		b.add(ld, o.Status == driver.Loaded)
		ld.For.Loaded(o) // which may queue it again
	}
	l.o.Lock.Lock()
	delete(l.jobs, j.ID)
	l.loading--
	l.loadingBytes -= j.Bytes
	l.stats.Loads.Observe(b.Took)
	l.predict.Ended(j.Started, l.o.Now(), b.Bytes)
	l.o.Lock.Unlock()
	l.o.Owner.Loaded(b)
	l.Flush()
}
