package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pythonLook is what an engine does without .kvfs/query. It checks all names twice, then the
// existing ones, which the kernel certainly remembers.
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
looks = [look(names), look(names)]
looks.append(look([n for n in names if os.path.exists(n)]))
json.dump(looks, sys.stdout)
`

// redisExists is the contender that asks Redis for the names of a set at once.
const redisExists = "Redis, EXISTS of all"

// look is one pass over names.
type look struct {
	Seconds      float64
	Names, Found int
}

// looks are the passes over the names of a set, in order.
func looks() []string {
	return []string{"names new to the kernel", "the same names again", "again, those that exist only"}
}

// exists measures exists, and programs that ask for one name after another.
func (q *queryBench) exists(ctx context.Context) (err error) {
	asks, err := q.existsAskings()
	for _, a := range asks {
		defer func() { err = errors.Join(err, a.talk.close()) }()
	}
	if err != nil {
		return err
	}
	if err := q.await(ctx, asks); err != nil {
		return err
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		q.say("no os.path.exists: %v", err)
	}
	one := series{} // keys a second of asking for one name at a time
	single := func(name string, set int, run func(context.Context, []string) ([]look, error)) func(context.Context, int) error {
		return func(ctx context.Context, round int) error {
			passes, err := run(ctx, q.sets[2*round+set])
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for i, l := range passes {
				title := name + ", " + looks()[i]
				one[title] = append(one[title], float64(l.Names)/l.Seconds)
			}
			return q.kvfs.settle(ctx)
		}
	}
	contenders := []func(context.Context, int) error{
		func(ctx context.Context, _ int) error { return q.pass(ctx, asks[0]) },
		func(ctx context.Context, _ int) error { return q.pass(ctx, asks[1]) },
		single("access(2)", 0, q.access),
	}
	if python != "" {
		contenders = append(contenders, single("os.path.exists", 1,
			func(ctx context.Context, set []string) ([]look, error) { return q.python(ctx, python, set) }))
	}
	redis, requests, err := q.redisExists(ctx, queryNames(0, len(q.sets)*q.names/2), q.sets)
	if err != nil {
		q.say("no Redis: %v", err)
	} else {
		defer func() { err = errors.Join(err, redis.stop()) }()
		contenders = append(contenders, func(ctx context.Context, _ int) error {
			rate, err := q.redisPass(ctx, redis, requests)
			one[redisExists] = append(one[redisExists], rate)
			return err
		})
	}
	for round := range q.config.rounds {
		for i := range contenders {
			if err := contenders[(round+i)%len(contenders)](ctx, round); err != nil {
				return err
			}
		}
	}
	q.existsRows(asks, one, python != "")
	return nil
}

// existsAskings are the requests in JSON and in binary.
func (q *queryBench) existsAskings() ([]*asking, error) {
	const different = 10 // requests, so that their data are not in the processor's cache
	asks := []*asking{{name: "exists, JSON"}, {name: "exists, binary"}}
	for _, set := range q.sets[:min(different, len(q.sets))] {
		text, err := json.Marshal(jsonQuery{Op: "exists", Group: queryGroup, Hashes: set})
		if err != nil {
			return nil, err
		}
		packed, err := binaryQuery(opExists, queryGroup, set, 0)
		if err != nil {
			return nil, err
		}
		asks[0].requests = append(asks[0].requests, text)
		asks[1].requests = append(asks[1].requests, packed)
	}
	asks[0].check = func(answer []byte) error { return checkExistsJSON(answer, q.names, q.names/2) }
	asks[1].check = func(answer []byte) error { return checkExistsBinary(answer, q.names, q.names/2) }
	return q.open(asks, q.names)
}

// open gives each its descriptor. The caller must close the result also after an error.
func (q *queryBench) open(asks []*asking, keys int) ([]*asking, error) {
	for i, a := range asks {
		var err error
		if a.talk, err = openDialogue(q.kvfs, "query"); err != nil {
			return asks[:i], err
		}
		a.keys = keys
	}
	return asks, nil
}

func (q *queryBench) files(set []string) paths {
	return newPaths(len(set), func(i int) string { return q.path(queryGroup, set[i]) })
}

// python looks with os.path.exists.
func (q *queryBench) python(ctx context.Context, python string, set []string) ([]look, error) {
	var in strings.Builder
	for _, name := range set {
		fmt.Fprintln(&in, q.path(queryGroup, name))
	}
	cmd := exec.CommandContext(ctx, python, "-c", pythonLook)
	cmd.Stdin, cmd.Env = strings.NewReader(in.String()), plainEnv()
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, complaint.Bytes())
	}
	var passes []look
	if err := json.Unmarshal(out, &passes); err != nil {
		return nil, err
	}
	return passes, q.checkLooks(passes)
}

// access looks with the bare system call.
func (q *queryBench) access(ctx context.Context, set []string) ([]look, error) {
	files := q.files(set)
	var there []int
	var passes []look
	once := func(order []int) look {
		l := look{Names: len(order)}
		begin := time.Now()
		for _, i := range order {
			_, _, errno := unix.RawSyscall(unix.SYS_FACCESSAT, atCwd, uintptr(unsafe.Pointer(files.at(i))), unix.F_OK)
			if errno == 0 {
				l.Found++
			}
		}
		l.Seconds = time.Since(begin).Seconds()
		return l
	}
	all := make([]int, len(set))
	for i := range all {
		all[i] = i
	}
	err := q.pool.once(ctx, newWork(1, 1, func(*client, int) error {
		passes = append(passes, once(all), once(all))
		for _, i := range all {
			if once([]int{i}).Found == 1 {
				there = append(there, i)
			}
		}
		passes = append(passes, once(there))
		return nil
	}))
	if err != nil {
		return nil, err
	}
	return passes, q.checkLooks(passes)
}

func (q *queryBench) checkLooks(passes []look) error {
	if len(passes) != len(looks()) {
		return fmt.Errorf("%d passes, want %d", len(passes), len(looks()))
	}
	for i, l := range passes {
		if l.Found != q.names/2 {
			return fmt.Errorf("%s: found %d, want %d", looks()[i], l.Found, q.names/2)
		}
	}
	return nil
}

// redisPass asks Redis for a while, and returns keys a second.
func (q *queryBench) redisPass(ctx context.Context, redis *rival, requests [][]byte) (float64, error) {
	result, err := q.pool.run(ctx, newWork(1, len(requests), func(c *client, i int) error {
		n, err := redis.conns[c].count(requests[i])
		if err == nil && n != q.names/2 {
			err = fmt.Errorf("%d names in Redis, want %d", n, q.names/2)
		}
		return err
	}), q.config.passTime)
	return result.perSec * float64(q.names), err
}

// existsRows reports the rates, the ratios to os.path.exists, and the cost of JSON.
func (q *queryBench) existsRows(asks []*asking, one series, python bool) {
	rate := func(name string, samples []float64, goal float64, more ...string) {
		r := row{Topic: "query", Target: name, Threads: 1, Value: median(samples), Unit: "keys/s", Samples: samples}
		verdict := []string{"", ""}
		if goal > 0 {
			verdict = []string{fmt.Sprintf("%.0f M/s", goal/1e6), q.report.judge(&r, goal, r.Value >= goal)}
		}
		q.report.add(r)
		q.table.add(append([]string{name, fmt.Sprintf("%.2f M keys/s", r.Value/1e6), spread(millions(samples)), verdict[0], verdict[1]}, more...)...)
	}
	for i, goal := range []float64{existsJSONGoal, existsBinaryGoal} {
		a := asks[i]
		rate(a.name, a.perSec, goal, fmt.Sprintf("%.2f", median(a.middle)), fmt.Sprintf("%.0f", a.cpuPerKey()))
		q.report.add(row{Topic: "query", Target: a.name, Value: median(a.middle), Unit: "ms, median of a request", Samples: a.middle})
		q.report.add(row{Topic: "query", Target: a.name, Value: a.cpuPerKey(), Unit: "ns of the daemon's processor time for each key"})
	}
	for _, name := range []string{"os.path.exists", "access(2)"} {
		if name == "os.path.exists" && !python {
			q.table.add(name, "no python3", "", "", "", "", "")
			continue
		}
		for _, l := range looks() {
			rate(name+", "+l, one[name+", "+l], 0, "", "")
		}
	}
	if len(one[redisExists]) > 0 {
		rate(redisExists, one[redisExists], 0, "", "")
	}
	for _, a := range asks {
		for i, l := range looks() {
			if python {
				q.ratioRow(a, "os.path.exists, "+l, one, statGoal, i < 2)
			}
		}
		if len(one[redisExists]) > 0 {
			q.ratioRow(a, redisExists, one, redisGoal, a == asks[1])
		}
	}
	q.jsonRow("exists", asks[0], asks[1])
}

// ratioRow compares keys a second.
func (q *queryBench) ratioRow(a *asking, other string, one series, goal float64, judged bool) {
	r := row{Topic: "query", Target: a.name, Value: median(a.perSec) / median(one[other]), Unit: "times " + other}
	verdict := []string{"", ""}
	if judged {
		verdict = []string{fmt.Sprintf("%g times", goal), q.report.judge(&r, goal, r.Value >= goal)}
	}
	q.report.add(r)
	q.table.add(a.name+" : "+other, fmt.Sprintf("%.1f times", r.Value), "", verdict[0], verdict[1], "", "")
}

// jsonRow reports the share of time that JSON takes.
func (q *queryBench) jsonRow(what string, text, packed *asking) {
	share := 100 * (1 - median(text.perSec)/median(packed.perSec))
	q.report.add(row{Topic: "query", Target: what, Value: share, Unit: "% of the time in JSON that the binary form does not take"})
	q.table.add(what+": what JSON costs", fmt.Sprintf("%.0f %% of its time", share), "", "", "", "", "")
}

// millions turns keys a second into millions of them.
func millions(perSec []float64) []float64 {
	out := make([]float64, len(perSec))
	for i, v := range perSec {
		out[i] = v / 1e6
	}
	return out
}
