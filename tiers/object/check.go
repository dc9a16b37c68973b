package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// probeName is the object that Bucket.Probe stores and removes.
const probeName = ".probe"

// checkers is how many objects Check reads at a time.
const checkers = 8

// CheckOptions says what Check does.
type CheckOptions struct {
	Data   bool // read every block, not only the indexes
	Repair bool // delete objects that are damaged, with all their blocks

	// Progress, if set, is called after each object with the bytes that are done, by one goroutine at a time.
	Progress func(done, total int64)
}

// listed is an object in a listing.
type listed struct {
	name pack.Name
	size int64
}

// check is one run of Check.
type check struct {
	CheckOptions
	bucket Bucket
	total  int64 // bytes

	mu struct {
		sync.Mutex
		report Report
		done   int64 // bytes
	}
}

// Check reads all objects of kvfs in a bucket, some at a time, and reports what is wrong with them. Nodes may use the
// bucket meanwhile: objects that they delete are passed over, those that they write may be. Objects that are not of
// kvfs and those of a later version are left alone.
//
// It takes 32 bytes of memory for each object, and for each of eight that it reads at a time 8 MiB and the index.
//
// After an error the report has what was found so far. Check fails if the bucket cannot be listed, if it has no object
// of kvfs, if objects could not be read, or with the error of ctx.
func Check(ctx context.Context, b Bucket, o CheckOptions) (*Report, error) {
	c := &check{CheckOptions: o, bucket: b}
	c.mu.report.DataChecked = o.Data
	list, err := c.list(ctx)
	r := &c.mu.report
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("no objects of kvfs there, %d others: %w", r.Foreign, block.ErrNotFound)
	}
	if err != nil {
		return r, err
	}
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(checkers)
	for _, o := range list {
		if within.Err() != nil {
			break
		}
		g.Go(func() error { return c.object(within, o) })
	}
	err = cmp.Or(g.Wait(), ctx.Err())
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Object, b.Object) })
	if err == nil && r.Unread > 0 {
		err = fmt.Errorf("%d objects were not checked", r.Unread)
	}
	return r, err
}

// list returns the objects of kvfs, and reports the others.
func (c *check) list(ctx context.Context) (list []listed, err error) {
	r := &c.mu.report
	err = c.bucket.List(ctx, "", func(name string, size int64, _ time.Time) error {
		n, ok := pack.ParseName(name)
		if name == probeName {
			c.probe(ctx)
			return nil
		}
		if !ok {
			if r.Foreign++; r.Foreign <= maxForeign {
				r.add(Finding{Object: name, What: "not an object of kvfs"})
			}
			return nil
		}
		list = append(list, listed{n, size})
		c.total += size
		return nil
	})
	return list, err
}

// probe removes the object that Probe leaves behind when its process is killed, or reports it.
func (c *check) probe(ctx context.Context) {
	f := Finding{Object: probeName, What: "left by a process that was killed"}
	if c.Repair {
		err := c.bucket.Delete(ctx, probeName)
		if f.Repaired = err == nil; err != nil {
			f.What = err.Error()
		}
	}
	c.mu.report.add(f)
}

// object checks one object and reports it. It fails if there is no use in going on.
func (c *check) object(ctx context.Context, o listed) error {
	v, err := c.read(ctx, o)
	if v.damaged { // perhaps only on the way here
		v, err = c.read(ctx, o)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, block.ErrNotFound): // deleted since the listing
		v = verdict{gone: true}
	case err != nil && !c.bucket.Available():
		return err
	case err != nil:
		v.add(Finding{Object: v.name, What: err.Error()})
		v.unread = true
	}
	if v.damaged && !v.unread && c.Repair {
		if err := c.bucket.Delete(ctx, v.name); err != nil {
			v.add(Finding{Object: v.name, What: err.Error()})
		} else {
			v.deleted()
		}
	}
	c.report(o, &v)
	return nil
}

// read reads one object. Its error is not about damage.
func (c *check) read(ctx context.Context, o listed) (v verdict, err error) {
	v.name = o.name.String()
	switch {
	case o.name.Index == 0:
		err = c.tombs(ctx, o, &v)
	case c.Data:
		err = pack.Verify(ranges{ctx, c.bucket, v.name}, o.name, o.size, v.block)
	default:
		var tail []byte
		if tail, err = tailOf(ctx, c.bucket, o.name, o.size); err == nil {
			err = pack.ReadIndex(o.name, tail, func(e *pack.Entry) bool { return v.block(e, nil) })
		}
	}
	if errors.Is(err, block.ErrCorrupt) {
		v.damage("", err)
		return v, nil
	}
	return v, err
}

// tombs reads tombstones.
func (c *check) tombs(ctx context.Context, o listed, v *verdict) error {
	if o.size > tombBytes {
		return fmt.Errorf("tombstones of %d bytes, no node reads more than %d: %w", o.size, int64(tombBytes), block.ErrCorrupt)
	}
	p := make([]byte, o.size)
	if err := c.bucket.Get(ctx, v.name, 0, p); err != nil {
		return err
	}
	list, err := pack.DecodeTombs(o.name, p)
	v.removals = int64(len(list))
	return err
}

// report adds what was found in an object to the report.
func (c *check) report(o listed, v *verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.mu.report
	if !v.gone {
		r.Objects++
		r.Bytes += o.size
	}
	r.Blocks += v.blocks
	r.BlockBytes += v.bytes
	r.Removals += v.removals
	if v.damaged {
		r.Damaged++
	}
	if v.repaired {
		r.Repaired++
	}
	if v.unread {
		r.Unread++
	}
	r.add(v.list...)
	r.Omitted += v.omitted
	if c.mu.done += o.size; c.Progress != nil {
		c.Progress(c.mu.done, c.total)
	}
}

// verdict is what was found in one object.
type verdict struct {
	name                    string
	blocks, bytes, removals int64 // that are good
	list                    []Finding
	omitted                 int64
	damaged, repaired       bool
	unread, gone            bool
}

// block counts a block, with what is wrong with it. It asks for more.
func (v *verdict) block(e *pack.Entry, err error) bool {
	if err != nil {
		v.damage(e.Path, err)
		return true
	}
	v.blocks++
	v.bytes += e.Size
	return true
}

// damage adds what is wrong with a block, or without a path with the object. What a later version wrote is no damage.
func (v *verdict) damage(path string, err error) {
	_, later := errors.AsType[*pack.VersionError](err)
	v.damaged = v.damaged || !later
	v.unread = v.unread || later
	v.add(Finding{Object: v.name, Path: path, What: err.Error(), Damage: !later})
}

// add keeps a finding if there is room.
func (v *verdict) add(f Finding) {
	if len(v.list) == maxFindings {
		v.omitted++
		return
	}
	v.list = append(v.list, f)
}

// deleted notes that the object was deleted.
func (v *verdict) deleted() {
	v.repaired = true
	for i := range v.list {
		v.list[i].Repaired = v.list[i].Damage
	}
}

// ranges reads an object.
type ranges struct {
	ctx    context.Context // of the check of this object
	bucket Bucket
	name   string
}

// ReadAt implements io.ReaderAt, within the object.
func (r ranges) ReadAt(p []byte, offset int64) (int, error) {
	if err := r.bucket.Get(r.ctx, r.name, offset, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
