package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// objectTopics are about the tier on object storage.
func objectTopics() []string { return []string{"object"} }

const (
	objectReaders = 8 // threads
	objectUploads = 4 // requests of the client at a time; kvfs has as many uploads
	clientName    = "S3 client"

	// The goals, as shares of the client's figure, but for the first byte, which is a multiple of its time.
	objectLoadGoal   = 0.9
	objectStoreGoal  = 0.9
	objectPackGoal   = 20
	objectFirstGoal  = 1.3
	objectHotGoal    = 0.95
	indexBytesGoal   = 32 // of memory a block
	indexSecondsGoal = 5  // for a million blocks
)

// objectBench has an S3 server, and clients for the mounts.
type objectBench struct {
	*bench
	s3      *s3Server
	readers *pool
	writer  *pool // of the hot reads
	total   int   // bytes of the blocks to load
	table   *table
}

// measureObject measures the tier on object storage. If one part fails, the others are still measured.
func (b *bench) measureObject(ctx context.Context) (err error) {
	if !b.config.wants(objectTopics()...) || !slices.Contains(b.config.targets, kvfsName) || ctx.Err() != nil {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("object: %w", err)
		}
	}()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), objectReaders+2)))
	o := &objectBench{bench: b}
	if o.total, err = b.objectBytes(); err != nil {
		return err
	}
	if o.s3, err = b.startS3(ctx); err != nil {
		b.report.skip("object", "no S3 server: "+err.Error())
		return nil
	}
	defer func() { err = errors.Join(err, o.s3.stop()) }()
	if o.readers, err = newPool(objectReaders, 16*mib); err != nil {
		return err
	}
	defer o.readers.close() // Unmapping own memory does not fail.
	if o.writer, err = newPool(1, cascadeBlockBytes); err != nil {
		return err
	}
	defer o.writer.close()
	o.table = b.report.table("object", "Object storage, beside an S3 client",
		fmt.Sprintf("(versitygw on this machine shares its processors; objects in %s; loads: blocks that only the bucket has, in random "+
			"order, the client reads the same ranges into memory, parts of %s; stores: until the bucket has all, the client has %d PUT at a "+
			"time; first byte: the client reads the whole block)", b.config.shmDir, sizeText(s3PartBytes), objectUploads),
		"what", "block", "threads", "unit", "kvfs", "min-max", "other", "", "kvfs to it", "goal", "")
	var errs []error
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{{"large blocks", o.large}, {"packed blocks", o.packed}, {"stores", o.stores}, {"hot reads", o.hot}, {"index", o.index}} {
		if ctx.Err() != nil {
			break
		}
		b.say("object: %s", step.name)
		if err := step.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step.name, err))
		}
	}
	return errors.Join(errs...)
}

// objectBytes returns how many bytes of blocks to load: half of -disk-bytes, less if memory, in which the objects are,
// too, has no room.
func (b *bench) objectBytes() (int, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(b.shmDir, &st); err != nil {
		return 0, err
	}
	want := max(b.config.diskBytes/2, 32*mib)
	free, available := int(st.Bavail)*int(st.Bsize), memInfo("MemAvailable")
	got := fitBytes(want, free, available, 6, 9)
	if got < 32*mib {
		return 0, fmt.Errorf("%d MiB of %s and %d MiB of memory are free: too little", free/mib, b.config.shmDir, available/mib)
	}
	return got, nil
}

// mount starts a kvfs whose object tier is below a prefix, and returns when the bucket was listed.
func (o *objectBench) mount(ctx context.Context, name, prefix string, memoryBytes int, keys ...string) (*tierMount, error) {
	m := &tierMount{bench: o.bench, tierName: "object", target: target{name: kvfsName}}
	var err error
	m.server, err = o.kvfs(name, mebibytes(memoryBytes), "--object", o.s3.flag(prefix, keys...))
	if err != nil {
		return nil, err
	}
	m.dir = m.server.mount
	if err = o.start(ctx, m.server); err == nil {
		_, err = m.listed(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// blockMount is a mount for count blocks of a size and as many that wait for the bucket. end stops it and removes the objects.
func (o *objectBench) blockMount(ctx context.Context, prefix string, bytes int) (m *tierMount, end func() error, err error) {
	m, err = o.mount(ctx, "kvfs-object", prefix, bytes*5/4+256*mib, fmt.Sprintf("cascade_queue=%dMiB", mebibytes(bytes)+64))
	return m, func() error { return errors.Join(m.close(), o.s3.clear(prefix)) }, err
}

// coldObjects are blocks that are in the bucket.
type coldObjects struct {
	*objectBench
	m           *tierMount
	set         *blockSet
	extents     []extent // of the blocks, by index
	size, count int
}

// large measures loads of blocks that are an object each.
func (o *objectBench) large(ctx context.Context) error {
	return o.loads(ctx, 16*mib, false, func(s *coldObjects) error {
		for _, threads := range []int{1, objectReaders} {
			if err := s.compare(ctx, threads); err != nil {
				return err
			}
		}
		return nil
	})
}

// packed measures loads of blocks that share objects.
func (o *objectBench) packed(ctx context.Context) error {
	return o.loads(ctx, mib, true, func(s *coldObjects) error {
		for _, threads := range []int{1, objectReaders} {
			if err := s.compare(ctx, threads); err != nil {
				return err
			}
		}
		return s.firstByte(ctx)
	})
}

// loads stores blocks and calls f when the bucket has them. shared says whether they must share objects.
func (o *objectBench) loads(ctx context.Context, size int, shared bool, f func(*coldObjects) error) (err error) {
	s := &coldObjects{objectBench: o, size: size, count: o.total / size}
	prefix := fmt.Sprintf("loads%d", size)
	m, end, err := o.blockMount(ctx, prefix, o.total)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	s.m = m
	if s.set, err = newBlockSet(&m.target, "cold", size, 0, s.count); err != nil {
		return err
	}
	base, err := m.tier()
	if err != nil {
		return err
	}
	if err := o.readers.once(ctx, newWork(1, s.count, s.set.store)); err != nil {
		return err
	}
	if err := m.drained(ctx, base, s.count, nil); err != nil {
		return err
	}
	all, objects, err := o.s3.extents(ctx, prefix)
	if err != nil {
		return err
	}
	if shared != (objects < s.count) {
		return fmt.Errorf("%d blocks of %s are in %d objects", s.count, sizeText(size), objects)
	}
	for i := range s.count {
		e, ok := all["cold/"+blockName(i)]
		if !ok || e.bytes != int64(size) {
			return fmt.Errorf("block %d of %d is not in the bucket", i, s.count)
		}
		s.extents = append(s.extents, e)
	}
	return f(s)
}

// order is another one in each round, and the same for all sides.
func (s *coldObjects) order(round int) []int {
	return rand.New(rand.NewPCG(uint64(round), uint64(s.size))).Perm(s.count)
}

// cold runs f when memory has no block, and fails if the blocks did not come from the bucket.
func (s *coldObjects) cold(ctx context.Context, f func() error) error {
	if err := errors.Join(s.m.settle(ctx), s.m.empty(ctx), s.m.settle(ctx)); err != nil {
		return err
	}
	before, err := s.m.tier()
	if err == nil {
		err = f()
	}
	if err != nil {
		return err
	}
	after, err := s.m.tier()
	if err != nil {
		return err
	}
	if promoted := int(after.Promoted - before.Promoted); promoted < s.count-s.count/50 { // a few may have been busy
		return fmt.Errorf("only %d of %d blocks read came from the bucket", promoted, s.count)
	}
	return s.m.settle(ctx)
}

// get reads block i into a buffer with the client.
func (s *coldObjects) get(ctx context.Context, i int, buf []byte) error {
	e := s.extents[i]
	if err := s.s3.get(ctx, e.key, e.offset, buf); err != nil {
		return err
	}
	return checkMarks(buf, i)
}

// compare measures reads of whole blocks on some threads.
func (s *coldObjects) compare(ctx context.Context, threads int) error {
	rate := func(elapsed time.Duration) float64 { return float64(s.count*s.size) / 1e9 / elapsed.Seconds() }
	var times []time.Duration // with one thread
	figures, err := s.warmRotate(ctx, []contender{
		{kvfsName, func(ctx context.Context, round int) (rated float64, err error) {
			err = s.cold(ctx, func() error {
				w := sequence(threads, s.order(round), s.set.readVerified)
				w.times = newTimes(threads)
				result, err := s.readers.run(ctx, w, time.Hour)
				rated = rate(result.elapsed)
				times = append(times, w.times...)
				return err
			})
			return rated, err
		}},
		{clientName, func(ctx context.Context, round int) (float64, error) {
			elapsed, err := s.parallel(ctx, threads, s.order(round), s.size, s.get)
			return rate(elapsed), err
		}},
	})
	if err != nil {
		return err
	}
	s.row("load", s.size, threads, "GB/s", figures, kvfsName, clientName, objectLoadGoal)
	if threads == 1 {
		s.report.add(tailsOf(times).rows(row{Topic: "object", Target: kvfsName, BlockBytes: s.size, Threads: 1}, "us")...)
	}
	return nil
}

// firstByte measures how long one reader waits.
func (s *coldObjects) firstByte(ctx context.Context) error {
	figures, err := s.warmRotate(ctx, []contender{
		{kvfsName, func(ctx context.Context, round int) (float64, error) {
			var waits []float64
			err := s.cold(ctx, func() error {
				_, err := s.readers.run(ctx, sequence(1, s.order(round), func(c *client, i int) error {
					begin := time.Now()
					err := c.read(s.set.final.at(i), 1)
					waits = append(waits, time.Since(begin).Seconds()*1e3)
					return err
				}), time.Hour)
				return err
			})
			return median(waits), err
		}},
		{clientName, func(ctx context.Context, round int) (float64, error) {
			var waits []float64
			_, err := s.parallel(ctx, 1, s.order(round), s.size, func(ctx context.Context, i int, buf []byte) error {
				begin := time.Now()
				err := s.get(ctx, i, buf)
				waits = append(waits, time.Since(begin).Seconds()*1e3)
				return err
			})
			return median(waits), err
		}},
	})
	if err != nil {
		return err
	}
	s.row("first byte, p50", s.size, 1, "ms", figures, kvfsName, clientName, objectFirstGoal)
	return nil
}

// parallel calls f for each index of order, on some goroutines with a warm buffer each, and returns how long that took.
func (o *objectBench) parallel(ctx context.Context, threads int, order []int, size int, f func(ctx context.Context, i int, buf []byte) error) (time.Duration, error) {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	begin := time.Now()
	for t := range threads {
		buf := o.readers.clients[t].buf[:size]
		g.Go(func() error {
			for n := next.Add(1); n <= int64(len(order)); n = next.Add(1) {
				if err := f(ctx, order[n-1], buf); err != nil {
					return fmt.Errorf("block %d: %w", order[n-1], err)
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return time.Since(begin), err
}

// warmRotate is rotate after one untimed pass of each side.
func (o *objectBench) warmRotate(ctx context.Context, contenders []contender) (series, error) {
	for _, c := range contenders {
		if _, err := c.pass(ctx, o.config.rounds); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return o.rotate(ctx, contenders)
}

// row compares one side with the other. The figure is to be small if the unit is a time.
func (o *objectBench) row(what string, size, threads int, unit string, figures series, name, other string, goal float64) {
	r := row{Topic: "object", Target: name, BlockBytes: size, Threads: threads, Unit: unit + ", " + what, Value: median(figures[name]), Samples: figures[name]}
	base := r
	base.Target, base.Value, base.Samples = other, median(figures[other]), figures[other]
	ratio := r.Value / base.Value
	r.RatioTo = map[string]float64{other: ratio}
	met, sign := ratio >= goal, ">="
	if unit == "ms" {
		met, sign = ratio <= goal, "<="
	}
	verdict := o.report.judge(&r, goal, met)
	o.report.add(r)
	o.report.add(base)
	o.table.add(what, sizeText(size), fmt.Sprint(threads), unit, fmt.Sprintf("%.2f", r.Value), spread(r.Samples),
		fmt.Sprintf("%.2f", base.Value), other, fmt.Sprintf("%.2f", ratio), fmt.Sprintf("%s %g", sign, goal), verdict)
}
