package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	hitTokens = 16 // of a block
	hitWindow = 1024
)

// longestHits measures longest_hit for a prompt with all blocks present: with four groups of full
// attention, which must be checked to the last block, and as in real models, with one group of full
// attention and three of sliding windows.
func (q *queryBench) longestHits(ctx context.Context) error {
	if err := q.setSpecs(ctx); err != nil {
		return err
	}
	blocks := len(q.prompt)
	window := min(blocks, hitWindow/hitTokens)
	for _, c := range []struct {
		spec, title string
		load        []int // blocks of each group that are to be read
	}{
		{"full", "4 groups, full", []int{blocks, blocks, blocks, blocks}},
		{"mixed", "full, 3 windows", []int{blocks, window, window, window}},
	} {
		if err := q.longestHit(ctx, c.spec, c.title, c.load); err != nil {
			return fmt.Errorf("longest_hit of %s: %w", c.spec, err)
		}
	}
	return nil
}

// specGroup is a group as .kvfs/specs takes it.
type specGroup struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	BlockSize int    `json:"block_size"`
	Window    int    `json:"window,omitempty"`
}

// setSpecs gives the specs of the models to the daemon.
func (q *queryBench) setSpecs(ctx context.Context) (err error) {
	specs := map[string]any{}
	for _, name := range []string{"full", "mixed"} {
		var groups []specGroup
		for i := range hitGroups {
			g := specGroup{Name: hitGroup(i), Kind: "full", BlockSize: hitTokens}
			if name == "mixed" && i > 0 {
				g.Kind, g.Window = "swa", hitWindow
			}
			groups = append(groups, g)
		}
		specs[name] = map[string]any{"hash_block_size": hitTokens, "groups": groups}
	}
	request, err := json.Marshal(map[string]any{"set": specs})
	if err != nil {
		return err
	}
	talk, err := openDialogue(q.kvfs, "specs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, talk.close()) }()
	return q.pool.once(ctx, newWork(1, 1, func(*client, int) error {
		answer, err := talk.ask(request)
		if err != nil {
			return err
		}
		var a struct{ Error string }
		if err := json.Unmarshal(answer, &a); err != nil {
			return err
		}
		if a.Error != "" {
			return errors.New(a.Error)
		}
		return nil
	}))
}

// longestHit measures one spec in JSON and in binary.
func (q *queryBench) longestHit(ctx context.Context, spec, title string, load []int) (err error) {
	// One token more than the blocks: the last one must be computed in any case.
	want := len(q.prompt) * hitTokens
	text, err := json.Marshal(jsonQuery{Op: "longest_hit", Spec: spec, Hashes: q.prompt, NumTokens: want + 1})
	if err != nil {
		return err
	}
	packed, err := binaryQuery(opLongestHit, spec, q.prompt, want+1)
	if err != nil {
		return err
	}
	title = "longest_hit, " + title
	asks, err := q.open([]*asking{
		{name: title + ", JSON", requests: [][]byte{text}, check: func(a []byte) error { return checkHitJSON(a, want, load) }},
		{name: title + ", binary", requests: [][]byte{packed}, check: func(a []byte) error { return checkHitBinary(a, want, load) }},
	}, hitGroups*len(q.prompt))
	for _, a := range asks {
		defer func() { err = errors.Join(err, a.talk.close()) }()
	}
	if err != nil {
		return err
	}
	if err := q.await(ctx, asks); err != nil {
		return err
	}
	for round := range q.config.rounds {
		for i := range asks {
			if err := q.pass(ctx, asks[(round+i)%len(asks)]); err != nil {
				return err
			}
		}
	}
	for _, a := range asks {
		r := row{Topic: "query", Target: a.name, Threads: 1, Unit: "ms, median of a request", Samples: a.middle, Value: median(a.middle)}
		verdict := q.report.judge(&r, hitGoal, r.Value < hitGoal)
		q.report.add(r)
		q.report.add(row{Topic: "query", Target: a.name, Value: a.cpuPerKey(), Unit: "ns of the daemon's processor time for each block of each group"})
		q.table.add(a.name, fmt.Sprintf("%.2f ms", r.Value), spread(a.middle), fmt.Sprintf("under %d ms", hitGoal), verdict,
			fmt.Sprintf("%.2f", r.Value), fmt.Sprintf("%.0f", a.cpuPerKey()))
	}
	q.jsonRow(title, asks[0], asks[1])
	return nil
}
