package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

const (
	indexPackBlocks = 1000 // in each object, as of blocks of 64 KiB
	indexBlockBytes = 16
	indexGroup      = "index"
)

// objectDetail is the part of the detail of the tier that the bench reads.
type objectDetail struct {
	Listed     bool  `json:"listed"`
	IndexBytes int64 `json:"index_bytes"`
}

// listed waits until the tier knows what the bucket had when it was mounted.
func (m *tierMount) listed(ctx context.Context) (*objectDetail, error) {
	for begin := time.Now(); ; {
		s, err := readStatus(&m.target)
		if err != nil {
			return nil, err
		}
		for i := range s.Secondaries {
			t := &s.Secondaries[i]
			if t.Name != m.tierName {
				continue
			}
			d := &objectDetail{}
			if err := json.Unmarshal(t.Detail, d); err != nil || d.Listed {
				return d, err
			}
			if time.Since(begin) > startLimit {
				return nil, fmt.Errorf("the bucket is not listed after %v: the tier is %s: %s", startLimit, t.State, t.Reason)
			}
		}
		if err := pause(ctx, timedPollEvery); err != nil {
			return nil, err
		}
	}
}

// index measures a mount of a bucket with many blocks: how long it takes to know them, and in how much memory.
func (o *objectBench) index(ctx context.Context) (err error) {
	count := o.config.recover
	defer func() { err = errors.Join(err, o.s3.clear(indexGroup)) }()
	if err := o.fillIndex(ctx, count); err != nil {
		return err
	}
	var seconds, memory []float64
	for range min(recoveryPasses, o.config.rounds) {
		took, bytes, err := o.indexStart(ctx, count)
		if err != nil {
			return err
		}
		seconds, memory = append(seconds, took), append(memory, float64(bytes)/float64(count))
	}
	scale := 1e6 / float64(count)
	for _, f := range []struct {
		what, unit string
		samples    []float64
		value      float64 // for the goal
		goal       float64
	}{
		{fmt.Sprintf("start until %d blocks are known", count), "s", seconds, median(seconds) * scale, indexSecondsGoal},
		{fmt.Sprintf("index of %d blocks", count), "bytes a block", memory, median(memory), indexBytesGoal},
	} {
		r := row{Topic: "object", Target: kvfsName, Unit: f.unit + ", " + f.what, Value: median(f.samples), Samples: f.samples}
		goal := fmt.Sprintf("<= %g", f.goal)
		if f.unit == "s" {
			goal += " a million"
		}
		verdict := o.report.judge(&r, f.goal, f.value <= f.goal)
		o.report.add(r)
		o.table.add(f.what, "", "", f.unit, fmt.Sprintf("%.2f", r.Value), spread(f.samples), "", "", "", goal, verdict)
	}
	return nil
}

// fillIndex stores packs of tiny blocks.
func (o *objectBench) fillIndex(ctx context.Context, count int) error {
	now, data := time.Now().UnixNano(), make([]byte, indexBlockBytes)
	sum := block.Sum(data)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(objectUploads)
	for first := 0; first < count && ctx.Err() == nil; first += indexPackBlocks {
		g.Go(func() error {
			b := pack.NewBuilder(make([]byte, 0, indexPackBlocks*kib))
			for i := first; i < min(first+indexPackBlocks, count); i++ {
				a := &driver.Attrs{Seq: uint64(now) + uint64(i), Mode: 0o644, Mtime: now, Dirs: []driver.DirAttrs{{Mode: 0o755}}}
				if err := b.Add(indexGroup+"/"+blockName(i), a, data, sum); err != nil {
					return err
				}
			}
			name, bytes := b.Finish(now+int64(first), 1)
			return o.s3.put(ctx, indexGroup+"/"+name.String(), bytes)
		})
	}
	return g.Wait()
}

// indexStart returns the seconds from the start of a daemon until it knows all blocks, and the bytes of its index.
func (o *objectBench) indexStart(ctx context.Context, count int) (seconds float64, bytes int64, err error) {
	begin := time.Now()
	m, err := o.mount(ctx, "kvfs-object", indexGroup, 256*mib)
	seconds = time.Since(begin).Seconds()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	detail, err := m.listed(ctx)
	if err != nil {
		return 0, 0, err
	}
	s, err := m.tier()
	if err == nil && s.Blocks != int64(count) {
		err = fmt.Errorf("the tier knows %d of %d blocks", s.Blocks, count)
	}
	return seconds, detail.IndexBytes, err
}
