package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	queryGroup = "exists"
	hitGroups  = 4
	hitTokens  = 16 // of a block
	hitWindow  = 1024
)

// queryBench is a mount with blocks to query.
type queryBench struct {
	*job
	kvfs   *target
	names  int // in a request; half of them exist
	sets   [][]string
	prompt []string // hashes of the prompt of longest_hit; all groups have them
	table  *table
}

// query measures the answers of .kvfs/query, beside system calls with the same answers.
func (j *job) query() {
	q := &queryBench{job: j, names: 10_000}
	blocks, prompt := 100_000, 4000
	if j.config.quick {
		q.names, blocks, prompt = 400, 2000, 100
	}
	q.makeSets(max(blocks, j.rounds*q.names/2)) // each round needs names that the kernel has not seen
	q.prompt = queryNames(0, prompt)
	total := len(q.sets)*q.names/2 + hitGroups*prompt
	need := total*heapBlockBytes*5/4 + 256*mib
	if available := memInfo("MemAvailable"); need > available/3*2 {
		must(fmt.Errorf("%d MiB of memory are free, want %d: too little", available/mib, need/mib*3/2))
	}
	q.kvfs = j.mount(mountOptions{name: "kvfs-query", memory: need})
	q.store(queryGroup, queryNames(0, len(q.sets)*q.names/2))
	for i := range hitGroups {
		q.store(hitGroup(i), q.prompt)
	}
	// The next daemon adopts the blocks, and the kernel knows no names of its mount.
	q.kvfs.server.crash()
	must(q.kvfs.server.start(j.ctx))
	q.table = j.table(fmt.Sprintf("Queries over %d blocks of %s", total, sizeText(heapBlockBytes)),
		"(1 thread, one descriptor kept open; a request is ready before the clock runs, its answer is decoded; "+
			"names have 64 hexadecimal digits; processor time of the daemon)",
		"what", "value", "min-max", "goal", "p50 ms", "daemon ns/key")
	q.exists()
	q.longestHits()
}

// makeSets makes sets of names; half of them, mixed, are those of blocks.
func (q *queryBench) makeSets(blocks int) {
	half := q.names / 2
	const absent = 1 << 32
	for first := 0; first+half <= blocks; first += half {
		set := append(queryNames(first, half), queryNames(absent+first, half)...)
		r := rand.New(rand.NewPCG(uint64(first), 1))
		r.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
		q.sets = append(q.sets, set)
	}
}

// queryNames returns names as an engine gives them to native blocks.
func queryNames(first, count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = hashName(first + i)
	}
	return out
}

func hitGroup(i int) string { return fmt.Sprintf("layers%d", i) }

func (q *queryBench) files(group string, names []string) paths {
	return newPaths(len(names), func(i int) string { return q.kvfs.dir + "/" + group + "/" + names[i] })
}

func (q *queryBench) store(group string, names []string) {
	q.say("query: store %d blocks in %s", len(names), group)
	must(os.Mkdir(q.kvfs.dir+"/"+group, 0o755))
	files := q.files(group, names)
	q.once(2, len(names), func(c *client, i int) {
		c.stamp(i, heapBlockBytes)
		c.create(files.at(i), heapBlockBytes)
	})
}

// asking is one kind of request, repeated on one descriptor.
type asking struct {
	name     string
	keys     int // of one request
	requests [][]byte
	check    func(answer []byte) // also decodes it
	talk     *dialogue

	work   *work
	took   samples // seconds of each request of a pass
	middle samples // median of milliseconds, one figure a round
	cpu    samples // ns of the daemon for each key, one figure a round
}

// side prepares requests: when the answers are right, since adoption may go on when the mount is ready.
func (q *queryBench) side(a *asking) side {
	a.talk = q.dialogue(q.kvfs, "query")
	a.work = newWork(1, len(a.requests), func(_ *client, i int) {
		begin := time.Now()
		a.check(a.talk.ask(a.requests[i]))
		a.took = append(a.took, time.Since(begin).Seconds())
	})
	var err error
	if awaitErr := try(func() {
		q.await("right answers", func() bool { err = try(func() { q.whole(a.work) }); return err == nil })
	}); awaitErr != nil {
		must(errors.Join(awaitErr, err))
	}
	return side{a.name, func(int) float64 {
		a.took = nil
		before := q.kvfs.server.cpuTime()
		result := q.pass(a.work, q.passTime)
		q.settle(q.kvfs)
		used := q.kvfs.server.cpuTime() - before
		a.middle = append(a.middle, 1000*median(a.took))
		a.cpu = append(a.cpu, float64(used.Nanoseconds())/float64(result.ops*a.keys))
		return result.perSec * float64(a.keys)
	}}
}

// pythonLook is what an engine does without .kvfs/query. It checks all names twice.
const pythonLook = `
import json, os.path, sys, time
def look(names):
    exists = os.path.exists
    found = 0
    begin = time.perf_counter()
    for name in names:
        if exists(name):
            found += 1
    return {"seconds": time.perf_counter() - begin, "names": len(names), "found": found}
names = sys.stdin.read().split()
json.dump([look(names), look(names)], sys.stdout)
`

const osPathExists = "os.path.exists"

type look struct {
	Seconds      float64
	Names, Found int
}

// looks are the passes over the names of a set, in order.
func looks() []string {
	return []string{"names new to the kernel", "the same names again"}
}

// exists measures exists, and programs that ask for one name after another.
func (q *queryBench) exists() {
	const different = 10 // requests, so that their data are not in the processor's cache
	text, packed := &asking{name: "exists, JSON", keys: q.names}, &asking{name: "exists, binary", keys: q.names}
	for _, set := range q.sets[:min(different, len(q.sets))] {
		text.requests = append(text.requests, get(json.Marshal(jsonQuery{Op: "exists", Group: queryGroup, Hashes: set})))
		packed.requests = append(packed.requests, binaryQuery(opExists, queryGroup, set, 0))
	}
	text.check = func(answer []byte) { checkExistsJSON(answer, q.names, q.names/2) }
	packed.check = func(answer []byte) { checkExistsBinary(answer, q.names, q.names/2) }
	one := series{} // keys a second of asking for one name at a time
	python := side{osPathExists, func(round int) float64 {
		for i, l := range q.python(q.sets[round]) {
			if l.Found != q.names/2 {
				must(fmt.Errorf("%s: found %d, want %d", looks()[i], l.Found, q.names/2))
			}
			title := osPathExists + ", " + looks()[i]
			one[title] = append(one[title], float64(l.Names)/l.Seconds)
		}
		q.settle(q.kvfs)
		return 0
	}}
	figs := q.rotate(0, q.rounds, []side{q.side(text), q.side(packed), python})
	maps.Copy(figs, one)
	q.existsRows(figs, text, packed)
}

func (q *queryBench) python(set []string) (passes []look) {
	var in strings.Builder
	for _, name := range set {
		fmt.Fprintf(&in, "%s/%s/%s\n", q.kvfs.dir, queryGroup, name)
	}
	cmd := exec.CommandContext(q.ctx, "python3", "-c", pythonLook)
	cmd.Stdin, cmd.Env, cmd.Stderr = strings.NewReader(in.String()), plainEnv(), os.Stderr
	must(json.Unmarshal(get(cmd.Output()), &passes))
	return passes
}

// existsRows reports keys a second, the ratios, and the cost of JSON.
func (q *queryBench) existsRows(figs series, text, packed *asking) {
	row := func(name string, goal float64, more ...any) {
		millions, verdict := figs[name].times(1e-6), ""
		if goal > 0 {
			verdict = q.verdict(fmt.Sprintf("%.0f M/s", goal), median(millions) >= goal)
		}
		q.table.row(append([]any{name, fmt.Sprintf("%.2f M keys/s", median(millions)), millions.spread(), verdict}, more...)...)
	}
	row(text.name, 2, text.middle, fmt.Sprintf("%.0f", median(text.cpu)))
	row(packed.name, 8, packed.middle, fmt.Sprintf("%.0f", median(packed.cpu)))
	var others []string
	for _, l := range looks() {
		row(osPathExists+", "+l, 0)
		others = append(others, osPathExists+", "+l)
	}
	for _, a := range []*asking{text, packed} {
		for _, other := range others {
			ratio := figs.over(a.name, other)
			q.table.row(a.name+" : "+other, fmt.Sprintf("%.1f times", ratio), "", q.verdict("20 times", ratio >= 20))
		}
	}
	q.jsonRow("exists", figs, text, packed)
}

func (q *queryBench) jsonRow(what string, figs series, text, packed *asking) {
	q.table.row(what+": what JSON costs", fmt.Sprintf("%.0f %% of its time", 100*(1-figs.over(text.name, packed.name))))
}

// longestHits measures longest_hit for a prompt with all blocks present, in JSON and in binary: with four groups of
// full attention, which must be checked to the last block, and as in real models, with one group of full attention and
// three of sliding windows.
func (q *queryBench) longestHits() {
	q.setSpecs()
	blocks := len(q.prompt)
	window := min(blocks, hitWindow/hitTokens)
	for _, c := range []struct {
		spec, title string
		load        []int // blocks of each group that are to be read
	}{
		{"full", "longest_hit, 4 groups, full", []int{blocks, blocks, blocks, blocks}},
		{"mixed", "longest_hit, full, 3 windows", []int{blocks, window, window, window}},
	} {
		// One token more than the blocks: the last one must be computed in any case.
		want := blocks * hitTokens
		text := &asking{name: c.title + ", JSON", keys: hitGroups * blocks, check: func(a []byte) { checkHitJSON(a, want, c.load) }}
		text.requests = [][]byte{get(json.Marshal(jsonQuery{Op: "longest_hit", Spec: c.spec, Hashes: q.prompt, NumTokens: want + 1}))}
		packed := &asking{name: c.title + ", binary", keys: hitGroups * blocks, check: func(a []byte) { checkHitBinary(a, want, c.load) }}
		packed.requests = [][]byte{binaryQuery(opLongestHit, c.spec, q.prompt, want+1)}
		figs := q.rotate(0, q.rounds, []side{q.side(text), q.side(packed)})
		for _, a := range []*asking{text, packed} {
			ms := median(a.middle)
			q.table.row(a.name, fmt.Sprintf("%.2f ms", ms), a.middle.spread(), q.verdict("under 2 ms", ms < 2), ms, fmt.Sprintf("%.0f", median(a.cpu)))
		}
		q.jsonRow(c.title, figs, text, packed)
	}
}

// setSpecs gives the specs of the models to the daemon.
func (q *queryBench) setSpecs() {
	specs := map[string]any{}
	for _, name := range []string{"full", "mixed"} {
		var groups []map[string]any
		for i := range hitGroups {
			g := map[string]any{"name": hitGroup(i), "kind": "full", "block_size": hitTokens}
			if name == "mixed" && i > 0 {
				g["kind"], g["window"] = "swa", hitWindow
			}
			groups = append(groups, g)
		}
		specs[name] = map[string]any{"hash_block_size": hitTokens, "groups": groups}
	}
	decodeJSON(q.askOnce(q.dialogue(q.kvfs, "specs"), get(json.Marshal(map[string]any{"set": specs}))))
}
