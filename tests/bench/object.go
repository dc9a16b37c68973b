package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

const (
	objectReaders = 8 // threads
	objectUploads = 4 // requests of the client at a time; kvfs has as many uploads
	packGoal      = 20
	clientName    = "S3 client"

	s3Bucket, s3Key, s3Secret = "kvfs-bench", "AKIAKVFSBENCH", "of-a-server-on-loopback"
	// s3PartBytes is part_size, which the client's reads have, too.
	s3PartBytes = 8 * mib
)

// s3Server is the S3 server of tests/s3, with one bucket in a directory in memory, and a client of it that knows
// nothing of kvfs.
type s3Server struct {
	dir, address string
	client       *minio.Core
}

func (j *job) startS3() *s3Server {
	root := strings.TrimSpace(string(get(exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output())))
	program, module := filepath.Join(j.dirIn(j.workDir), "s3"), filepath.Join(root, "tests", "s3")
	build := []string{"flock", module, "go", "build", "-C", module, "-o", program} // flock: one compiles, others wait
	if j.config.quick {
		build = append(build, "-gcflags=github.com/...=-N -l -dwarf=false") // as tests/s3test: less to compile
	}
	j.command(append(build, ".")...)
	free := get(net.Listen("tcp", "127.0.0.1:0")) // the server takes no port 0
	s := &s3Server{dir: j.dirIn(j.config.shmDir), address: free.Addr().String()}
	must(free.Close())
	text := "[default]\naws_access_key_id = " + s3Key + "\naws_secret_access_key = " + s3Secret + "\n"
	must(errors.Join(os.Mkdir(s.path("buckets"), 0o700), os.Mkdir(s.path("side"), 0o700), os.WriteFile(s.path("credentials"), []byte(text), 0o600)))
	args := []string{"-listen", s.address, "-dir", s.path("buckets")}
	if unix.Setxattr(s.path("buckets"), "user.kvfs", []byte("1"), 0) != nil { // a tmpfs has them since Linux 6.6
		args = append(args, "-sidecar", s.path("side"))
	}
	log := &tail{}
	cmd := exec.Command(program, args...)
	cmd.Env = append(plainEnv(), "AWS_ACCESS_KEY_ID="+s3Key, "AWS_SECRET_ACCESS_KEY="+s3Secret)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	must(cmd.Start())
	j.later(func() {
		cmd.Process.Kill() // what it has is removed
		cmd.Wait()
	})
	transport := get(minio.DefaultTransport(false))
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 64, 64 // as kvfs has
	transport.WriteBufferSize = 64 * kib
	s.client = get(minio.NewCore(s.address, &minio.Options{Creds: credentials.NewStaticV4(s3Key, s3Secret, ""), Region: "us-east-1",
		BucketLookup: minio.BucketLookupPath, Transport: transport}))
	j.await("the S3 server answers", func() bool {
		answer, err := http.Get("http://" + s.address)
		return err == nil && answer.Body.Close() == nil
	})
	must(s.client.MakeBucket(j.ctx, s3Bucket, minio.MakeBucketOptions{}))
	return s
}

func (s *s3Server) path(name ...string) string {
	return filepath.Join(append([]string{s.dir}, name...)...)
}

// clear removes the objects below a prefix, past the server, which keeps nothing about them.
func (s *s3Server) clear(prefix string) error {
	return errors.Join(os.RemoveAll(s.path("buckets", s3Bucket, prefix)), os.RemoveAll(s.path("side", s3Bucket, prefix)))
}

// get reads a range in parallel parts, as kvfs does.
func (s *s3Server) get(ctx context.Context, key string, offset int64, dst []byte) error {
	g, ctx := errgroup.WithContext(ctx)
	for part := range slices.Chunk(dst, s3PartBytes) {
		from := offset
		offset += int64(len(part))
		g.Go(func() error {
			var opts minio.GetObjectOptions
			if err := opts.SetRange(from, from+int64(len(part))-1); err != nil {
				return err
			}
			body, _, _, err := s.client.GetObject(ctx, s3Bucket, key, opts)
			if err != nil {
				return err
			}
			_, err = io.ReadFull(body, part)
			return errors.Join(err, body.Close())
		})
	}
	return g.Wait()
}

// put stores an object with one request and the kind of checksum that kvfs sends.
func (s *s3Server) put(ctx context.Context, key string, data []byte) error {
	sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
	_, err := s.client.PutObject(ctx, s3Bucket, key, bytes.NewReader(data), int64(len(data)), "", "", minio.PutObjectOptions{
		DisableContentSha256: true, UserMetadata: map[string]string{"X-Amz-Checksum-Crc32c": base64.StdEncoding.EncodeToString(sum)}})
	return err
}

// extent is where the data of a block is in the bucket.
type extent struct {
	key           string
	offset, bytes int64
}

// extents reads the index of each object below a prefix and returns the blocks, by path, and the number of objects.
func (s *s3Server) extents(ctx context.Context, prefix string) (out map[string]extent, objects int) {
	out = map[string]extent{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing
	for o := range s.client.Client.ListObjects(ctx, s3Bucket, minio.ListObjectsOptions{Prefix: prefix + "/", Recursive: true}) {
		must(o.Err)
		name, ok := pack.ParseName(strings.TrimPrefix(o.Key, prefix+"/"))
		if !ok || name.Index == 0 {
			continue
		}
		tail := make([]byte, get(name.TailBytes(o.Size)))
		must(s.get(ctx, o.Key, name.Index, tail))
		must(pack.ReadIndex(name, tail, func(e *pack.Entry) bool {
			out[strings.Clone(e.Path)] = extent{o.Key, e.DataOffset(), e.Size}
			return true
		}))
		objects++
	}
	return out, objects
}

type objectBench struct {
	*job
	s3    *s3Server
	total int // bytes of the blocks to load
	table *table
}

// object measures the tier on object storage. If one part fails, the others are still measured.
func (j *job) object() {
	var st unix.Statfs_t
	must(unix.Statfs(j.config.shmDir, &st))
	free, available := int(st.Bavail)*int(st.Bsize), memInfo("MemAvailable")
	// Half of the blocks of the disk's topics, less if memory, in which the objects are, too, has no room.
	o := &objectBench{job: j, total: fitBytes(max(j.config.diskBytes/2, 32*mib), free, available, 6, 9)}
	if o.total < 32*mib {
		must(fmt.Errorf("%d MiB of %s and %d MiB of memory are free: too little", free/mib, j.config.shmDir, available/mib))
	}
	if err := try(func() { o.s3 = j.startS3() }); err != nil {
		j.skip("no S3 server: " + err.Error())
	}
	o.table = j.table("Object storage, beside an S3 client",
		fmt.Sprintf("(versitygw on this machine shares its processors; objects in %s; loads: blocks that only the bucket has, in random "+
			"order, the client reads the same ranges into memory, parts of %s; stores: until the bucket has all, the client has %d PUT at a "+
			"time)", j.config.shmDir, sizeText(s3PartBytes), objectUploads),
		"what", "block", "threads", "unit", "kvfs", "min-max", "other", "kvfs to it", "goal")
	var errs []error
	for _, part := range []func(*objectBench){
		func(o *objectBench) { o.loads(16*mib, false) }, func(o *objectBench) { o.loads(mib, true) },
		func(o *objectBench) { o.stores(16*mib, max(objectUploads, o.total/2/(16*mib))) }, func(o *objectBench) { o.stores(64*kib, o.total/2/(64*kib)) },
		(*objectBench).hot, (*objectBench).index,
	} {
		errs = append(errs, try(func() {
			j.scope(func(j *job) {
				of := *o
				of.job = j
				part(&of)
			})
		}))
	}
	must(errors.Join(errs...))
}

// mount starts a kvfs whose object tier is below a prefix until the end of the job, waits until the bucket was listed,
// and removes the objects at the end.
func (o *objectBench) mount(prefix string, memoryBytes int, keys ...string) *target {
	flag := append([]string{"url=s3://" + s3Bucket + "/" + prefix, "endpoint=http://" + o.s3.address, "credentials=file",
		"credentials_file=" + o.s3.path("credentials"), fmt.Sprintf("part_size=%dMiB", s3PartBytes/mib), "open_deadline=30s"}, keys...)
	t := o.job.mount(mountOptions{name: "kvfs-object", memory: memoryBytes, flags: []string{"--object", strings.Join(flag, ",")}})
	t.tier = "object"
	for begin := time.Now(); t.told("listed") != "true"; o.pause(timedPollEvery) {
		if time.Since(begin) > startLimit {
			must(fmt.Errorf("the bucket is not listed after %v", startLimit))
		}
	}
	return t
}

// blockMount is a mount for blocks, as many of which may wait for the bucket.
func (o *objectBench) blockMount(prefix string, bytes int) *target {
	o.later(func() { must(o.s3.clear(prefix)) })
	return o.mount(prefix, bytes*5/4+256*mib, fmt.Sprintf("cascade_queue=%dMiB", mebibytes(bytes)+64))
}

// compare adds a row: one side with the other. A time is to be small.
func (o *objectBench) compare(what string, size, threads int, unit string, figs series, name, other string, goal float64) {
	ratio, verdict := figs.over(name, other), ""
	if unit == "ms" {
		verdict = o.atMostText(goal, ratio, "<= %g")
	} else {
		verdict = o.verdict(fmt.Sprintf(">= %g", goal), ratio >= goal)
	}
	o.table.row(what, sizeText(size), threads, unit, figs[name], figs[name].spread(), fmt.Sprintf("%.2f, %s", median(figs[other]), other), ratio, verdict)
}

// parallel calls f for each index of order, on some goroutines with a warm buffer each, and returns how long that took.
func (o *objectBench) parallel(threads int, order []int, size int, f func(ctx context.Context, i int, buf []byte) error) time.Duration {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(o.ctx)
	begin := time.Now()
	for t := range threads {
		buf := o.pool.clients[t].buf[:size]
		g.Go(func() error {
			for n := next.Add(1); n <= int64(len(order)); n = next.Add(1) {
				if err := f(ctx, order[n-1], buf); err != nil {
					return fmt.Errorf("block %d: %w", order[n-1], err)
				}
			}
			return nil
		})
	}
	must(g.Wait())
	return time.Since(begin)
}

// loads measures loads of blocks that only the bucket has. shared says whether they must share objects.
func (o *objectBench) loads(size int, shared bool) {
	o.say("object: loads of %s", sizeText(size))
	count, prefix := o.total/size, fmt.Sprintf("loads%d", size)
	t := o.blockMount(prefix, o.total)
	set := newBlockSet(t, "cold", size, 0, count)
	base := t.lower()
	o.once(1, count, set.store)
	o.drained(t, base, count, nil)
	all, objects := o.s3.extents(o.ctx, prefix)
	if shared != (objects < count) {
		must(fmt.Errorf("%d blocks of %s are in %d objects", count, sizeText(size), objects))
	}
	fetch := func(ctx context.Context, i int, buf []byte) error {
		e := all["cold/"+blockName(i)]
		if e.bytes != int64(size) {
			return errors.New("it is not in the bucket")
		}
		return errors.Join(o.s3.get(ctx, e.key, e.offset, buf), try(func() { checkMarks(buf, i) }))
	}
	cold := func(f func()) { (&coldBlocks{o.job, t, set}).promoting(count, f) }
	for _, threads := range []int{1, objectReaders} {
		var times []time.Duration // with one thread
		figs := o.rotate(1, o.rounds, []side{
			{kvfsName, func(round int) (speed float64) {
				w := sequence(threads, shuffled(set, round), set.readVerified)
				w.times = newTimes(threads)
				cold(func() { speed = gbs(count*size, o.pass(w, time.Hour).elapsed) })
				times = append(times, w.times...)
				return speed
			}},
			{clientName, func(round int) float64 {
				return gbs(count*size, o.parallel(threads, shuffled(set, round), size, fetch))
			}},
		})
		o.compare("load", size, threads, "GB/s", figs, kvfsName, clientName, 0.9)
		if threads == 1 {
			o.point("latency", "bucket", size, tailsOf(times).p50)
		}
	}
}

// stores compares a write to the mount until the bucket has all with a PUT for each block.
func (o *objectBench) stores(size, count int) {
	o.say("object: stores of %s", sizeText(size))
	prefix := fmt.Sprintf("stores%d", size)
	other := prefix + "-client"
	t := o.blockMount(prefix, count*size)
	unit, rate, goal := "GB/s", func(d time.Duration) float64 { return gbs(count*size, d) }, 0.9
	if size < mib {
		unit, rate, goal = "blocks/s", func(d time.Duration) float64 { return float64(count) / d.Seconds() }, packGoal
	}
	order := make([]int, count)
	for i := range order {
		order[i] = i
	}
	passes := 0
	figs := o.rotate(1, o.rounds, []side{
		{kvfsName, func(int) float64 {
			passes++ // new names, so that nothing is replaced
			set := newBlockSet(t, fmt.Sprintf("pass%d", passes), size, 0, count)
			base := t.lower()
			begin, end := time.Now(), time.Time{}
			o.once(objectUploads, count, set.store)
			o.drained(t, base, count, func(at time.Time, _ *lane.Stats) { end = at })
			o.empty(t)
			return rate(end.Sub(begin))
		}},
		{clientName, func(int) float64 {
			elapsed := o.parallel(objectUploads, order, size, func(ctx context.Context, i int, buf []byte) error {
				return o.s3.put(ctx, fmt.Sprintf("%s/%d", other, i), buf)
			})
			must(o.s3.clear(other))
			return rate(elapsed)
		}},
	})
	o.compare("store", size, objectUploads, unit, figs, kvfsName, clientName, goal)
	if goal == packGoal {
		// The client stores one block with a PUT, and a store that is far away answers a client no faster than that.
		_, objects := o.s3.extents(o.ctx, prefix)
		each := float64(count*passes) / float64(objects)
		o.table.row("store, blocks a request", sizeText(size), objectUploads, "", fmt.Sprintf("%.0f", each), "", "1, "+clientName,
			fmt.Sprintf("%.0f", each), o.verdict(fmt.Sprintf(">= %d", packGoal), each >= packGoal))
	}
}

// hot measures reads of blocks in memory while a writer keeps the object tier busy, as topic hotcascade does with the
// disk tier.
func (o *objectBench) hot() {
	const size, state = 4 * mib, "and its stores to the bucket"
	o.say("object: hot reads")
	blocks := max(4, o.total/cascadeBlockBytes)
	ring := blocks * cascadeBlockBytes
	memory := (ring+size*o.config.count(size))*5/4 + 256*mib
	plain := o.job.mount(mountOptions{name: "kvfs-plain", memory: memory})
	o.later(func() { must(o.s3.clear("hot")) })
	// Replaced blocks leave the bucket with each refresh, so that it stays small.
	tier := o.mount("hot", memory, fmt.Sprintf("cascade_queue=%dMiB", mebibytes(max(ring/3, 64*mib))), "refresh=2s")
	figs := o.cascade(tier, plain, blocks).states(size)
	figs[state] = figs[cascadeState]
	o.compare("hot read, a writer "+state, size, 1, "GB/s", figs, state, writerState, 0.95)
}

// index measures a mount of a bucket with many blocks: how long it takes to know them, and in how much memory.
func (o *objectBench) index() {
	const prefix, packBlocks = "index", 1000 // in each object, as of blocks of 64 KiB
	o.say("object: index")
	count := o.config.recover
	o.later(func() { must(o.s3.clear(prefix)) })
	now, data := time.Now().UnixNano(), make([]byte, 16)
	sum := block.Sum(data)
	g, ctx := errgroup.WithContext(o.ctx)
	g.SetLimit(objectUploads)
	for first := 0; first < count && ctx.Err() == nil; first += packBlocks {
		g.Go(func() error {
			b := pack.NewBuilder(make([]byte, 0, packBlocks*kib))
			for i := first; i < min(first+packBlocks, count); i++ {
				a := &driver.Attrs{Seq: uint64(now) + uint64(i), Mode: 0o644, Mtime: now, Dirs: []driver.DirAttrs{{Mode: 0o755}}}
				if err := b.Add(prefix+"/"+blockName(i), a, data, sum); err != nil {
					return err
				}
			}
			name, bytes := b.Finish(now+int64(first), 1)
			return o.s3.put(ctx, prefix+"/"+name.String(), bytes)
		})
	}
	must(g.Wait())
	var seconds, memory samples
	for range min(startPasses, o.rounds) {
		o.scope(func(j *job) {
			of := *o
			of.job = j
			begin := time.Now()
			t := of.mount(prefix, 256*mib)
			seconds = append(seconds, time.Since(begin).Seconds())
			if n := t.lower().Blocks; n != int64(count) {
				must(fmt.Errorf("the tier knows %d of %d blocks", n, count))
			}
			memory = append(memory, get(strconv.ParseFloat(t.told("index_bytes"), 64))/float64(count))
		})
	}
	o.table.row(fmt.Sprintf("start until %d blocks are known", count), "", "", "s", seconds, seconds.spread(), "", "",
		o.verdict("<= 5 a million", median(seconds)*1e6/float64(count) <= 5))
	o.table.row(fmt.Sprintf("index of %d blocks", count), "", "", "bytes a block", memory, memory.spread(), "", "", o.atMostText(32, median(memory), "<= %g"))
}
