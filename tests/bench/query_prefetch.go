package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

const (
	prefetchName   = "prefetch"
	prefetchAndOne = "prefetch, then 1 reader"
)

// prefetchBench are blocks of the disk tier that are brought into memory.
type prefetchBench struct {
	*coldSets
	names []string
	talk  *dialogue
}

// prefetch measures how fast .kvfs/prefetch brings blocks into memory, beside opening and reading
// them.
func (d *diskBench) prefetch(ctx context.Context) (err error) {
	const size = mib
	total, note, err := d.fit(d.config.diskBytes, 4, 2.5, diskSlack)
	if err != nil {
		return err
	}
	count := max(1, total/size)
	d.say("prefetch: %d blocks of %s", count, sizeText(size))
	m, err := d.mount(ctx, "kvfs-disk", total*5/4+256*mib, 2*total+diskSlack, total*5/4+64*mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	p := &prefetchBench{coldSets: &coldSets{diskBench: d, kvfs: m, size: size, count: count}}
	if err := p.storeAll(ctx); err != nil {
		return err
	}
	if p.talk, err = openDialogue(&m.target, "prefetch"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.talk.close()) }()
	read := func(threads int) contender {
		return contender{readersTitle(threads), func(ctx context.Context, round int) (float64, error) {
			return p.timed(ctx, func(order []int) error { return p.readAll(ctx, threads, order) }, round)
		}}
	}
	perSec, err := d.rotate(ctx, []contender{
		{prefetchName, func(ctx context.Context, round int) (float64, error) {
			return p.timed(ctx, func(order []int) error { return p.ask(ctx, order) }, round)
		}},
		{prefetchAndOne, func(ctx context.Context, round int) (float64, error) {
			return p.timed(ctx, func(order []int) error {
				return errors.Join(p.ask(ctx, order), p.readAll(ctx, 1, order))
			}, round)
		}},
		read(1), read(coldReaders),
	})
	if err != nil {
		return err
	}
	p.rows(perSec, note)
	return nil
}

func readersTitle(threads int) string {
	if threads == 1 {
		return "cold reads, 1 reader"
	}
	return fmt.Sprintf("cold reads, %d readers", threads)
}

// storeAll writes the blocks and waits until the disk tier has them.
func (p *prefetchBench) storeAll(ctx context.Context) error {
	var err error
	if p.inKVFS, err = newBlockSet(&p.kvfs.target, "cold", p.size, 0, p.count); err != nil {
		return err
	}
	for i := range p.count {
		p.names = append(p.names, blockName(i))
	}
	base, err := p.kvfs.tier()
	if err != nil {
		return err
	}
	copy(p.writer.clients[0].buf, p.pattern) // Without marks of other sizes.
	err = p.writer.once(ctx, newWork(1, p.count, func(c *client, i int) error {
		stampPages(c.buf[:p.size], i)
		return c.store(p.inKVFS.temp.at(i), p.inKVFS.final.at(i), p.size)
	}))
	if err != nil {
		return err
	}
	return p.kvfs.drained(ctx, base, p.count, nil)
}

// timed evicts all blocks, then times bring, which loads them in random order. It returns bytes a
// second.
func (p *prefetchBench) timed(ctx context.Context, bring func(order []int) error, round int) (float64, error) {
	order := rand.New(rand.NewPCG(uint64(round), uint64(p.size))).Perm(p.count)
	return p.promoting(ctx, func() (float64, error) {
		if err := errors.Join(p.dropPageCache(), pretouch(p.count*p.size*5/4+256*mib)); err != nil {
			return 0, err
		}
		begin := time.Now()
		if err := bring(order); err != nil {
			return 0, err
		}
		elapsed := time.Since(begin)
		// A block counts when it is there, so this is outside of the time.
		return float64(p.count*p.size) / elapsed.Seconds(), p.kvfs.settle(ctx)
	})
}

// ask asks .kvfs/prefetch for all blocks.
func (p *prefetchBench) ask(ctx context.Context, order []int) error {
	hashes := make([]string, len(order))
	for at, i := range order {
		hashes[at] = p.names[i]
	}
	request, err := json.Marshal(map[string]any{"group": "cold", "hashes": hashes})
	if err != nil {
		return err
	}
	return p.writer.once(ctx, newWork(1, 1, func(*client, int) error {
		answer, err := p.talk.ask(request)
		if err != nil {
			return err
		}
		return checkPrefetch(answer, len(order))
	}))
}

// checkPrefetch fails unless all blocks were loaded.
func checkPrefetch(answer []byte, blocks int) error {
	answer = bytes.TrimSpace(answer)
	var a struct {
		Error   string
		Results string
		Loaded  int
		Errors  []struct{ Path, Error string }
	}
	if err := json.Unmarshal(answer[bytes.LastIndexByte(answer, '\n')+1:], &a); err != nil {
		return err
	}
	switch {
	case a.Error != "":
		return errors.New(a.Error)
	case len(a.Errors) > 0:
		return fmt.Errorf("%s: %s", a.Errors[0].Path, a.Errors[0].Error)
	case len(a.Results) != blocks || strings.Count(a.Results, ".") > 0:
		return fmt.Errorf("%d results, %d absent, want %d blocks", len(a.Results), strings.Count(a.Results, "."), blocks)
	// One in a hundred may have been busy when its memory was to be freed.
	case a.Loaded < blocks-blocks/100:
		return fmt.Errorf("only %d of %d blocks were loaded: they were not cold", a.Loaded, blocks)
	}
	return nil
}

// readAll reads all blocks, checking their first pages.
func (p *prefetchBench) readAll(ctx context.Context, threads int, order []int) error {
	_, err := p.readers.run(ctx, sequence(threads, order, p.inKVFS.readMarked), time.Hour)
	return err
}

func (p *prefetchBench) rows(perSec series, note string) {
	table := p.report.table(prefetchName, fmt.Sprintf("Prefetch of %d blocks of %s from the SSD", p.count, sizeText(p.size)),
		"(one request, in random order, memory tier empty and page cache dropped; beside reads of the same blocks in the same order"+note+")",
		"how", "GB/s", "min-max", "to 1 reader", fmt.Sprintf("to %d readers", coldReaders))
	for _, name := range []string{prefetchName, prefetchAndOne, readersTitle(1), readersTitle(coldReaders)} {
		r := row{Topic: prefetchName, Target: name, BlockBytes: p.size, Unit: "GB/s", Samples: gigabytes(perSec[name])}
		r.Value = median(r.Samples)
		toOne := p.versus(&r, perSec, readersTitle(1), 0)[0]
		toAll := p.versus(&r, perSec, readersTitle(coldReaders), 0)[0]
		p.report.add(r)
		table.add(name, fmt.Sprintf("%.2f", r.Value), spread(r.Samples), toOne, toAll)
	}
}
