package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// engineLoad is how an engine asks for the blocks of one request: one thread looks all of them up, then readers read them.
type engineLoad struct {
	engine          string
	size            int
	blocks, readers int
}

// engineLoads are those of docs/engines: vLLM's tier reads the blocks of a job one after another, SGLang looks up and reads
// pages in batches of 128, LMCache's native backend has four workers, llm-d's has a pool.
func engineLoads() []engineLoad {
	return []engineLoad{
		{"vLLM", 2 * mib, 64, 1}, {"SGLang", 256 * kib, 128, 1}, {"LMCache", 4 * mib, 32, 4}, {"llm-d", mib, 64, coldReaders},
	}
}

// promotionSettings are the values of promotion.on.
func promotionSettings() []string { return []string{"open", "lookup"} }

// lookFirst measures, for engines that look up before they read, a promotion at the open and one at the look-up.
func (d *diskBench) lookFirst(ctx context.Context) error {
	if os.Getuid() != 0 {
		d.report.skip("lookfirst", "only root can drop the names that the kernel keeps")
		return nil
	}
	t := d.report.table("lookfirst", "Blocks of the SSD that are looked up before they are read",
		"(one thread looks all names up, as soon as it has done so the readers read; GB/s of both together; memory tier, page cache and the kernel's names empty)",
		"as", "block", "blocks", "readers", "promotion.on: open, GB/s", "min-max", "lookup, GB/s", "min-max", "to open")
	for _, e := range engineLoads() {
		if e.size > len(d.pattern) {
			continue
		}
		d.say("lookfirst: %s, %d blocks of %s", e.engine, e.blocks, sizeText(e.size))
		if err := d.engineLoad(ctx, t, e); err != nil {
			return fmt.Errorf("%s: %w", e.engine, err)
		}
	}
	return nil
}

// engineLoad measures one engine's way with both settings.
func (d *diskBench) engineLoad(ctx context.Context, t *table, e engineLoad) (err error) {
	total := e.blocks * e.size
	var contenders []contender
	for _, on := range promotionSettings() {
		var m *tierMount
		m, err = d.mount(ctx, "kvfs-"+on, total*5/4+256*mib, 2*total+diskSlack, total*5/4+64*mib, "--promotion-on", on)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.close()) }()
		p := &prefetchBench{coldSets: &coldSets{diskBench: d, kvfs: m, size: e.size, count: e.blocks, part: e.blocks}}
		if err = p.storeAll(ctx); err != nil {
			return err
		}
		contenders = append(contenders, contender{on, func(ctx context.Context, round int) (float64, error) {
			if err := dropNames(); err != nil {
				return 0, err
			}
			return p.timed(ctx, func(order []int) error { return p.lookAndRead(ctx, e.readers, order) }, round)
		}})
	}
	perSec, err := d.rotate(ctx, contenders)
	if err != nil {
		return err
	}
	cells := []string{e.engine, sizeText(e.size), fmt.Sprint(e.blocks), fmt.Sprint(e.readers)}
	for _, on := range promotionSettings() {
		r := row{Topic: "lookfirst", Target: on, BlockBytes: e.size, Threads: e.readers, Unit: "GB/s", Samples: gigabytes(perSec[on])}
		r.Value = median(r.Samples)
		cells = append(cells, fmt.Sprintf("%.2f", r.Value), spread(r.Samples))
		if on != promotionSettings()[0] {
			cells = append(cells, d.versus(&r, perSec, promotionSettings()[0], 0)[0])
		}
		d.report.add(r)
	}
	t.add(cells...)
	return nil
}

// lookAndRead looks all blocks up, then reads them.
func (p *prefetchBench) lookAndRead(ctx context.Context, readers int, order []int) error {
	_, err := p.readers.run(ctx, sequence(1, order, p.inKVFS.stat), time.Hour)
	return errors.Join(err, p.readAll(ctx, readers, order))
}

// dropNames drops the names and inodes that the kernel keeps.
func dropNames() error { return os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0) }
