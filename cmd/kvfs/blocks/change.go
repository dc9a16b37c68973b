package blocks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/query"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/outcome"
)

type prefetchRequest struct {
	client.BlockRequest
	Progress bool `json:"progress"`
}

// prefetchAnswer is one line of the answer: the progress, or at the end, with Results, everything.
type prefetchAnswer struct {
	Results  string             `json:"results"`
	Done     int64              `json:"done"`
	Total    int64              `json:"total"`
	Bytes    int64              `json:"bytes"`
	InMemory int64              `json:"in_memory"`
	Loaded   int64              `json:"loaded"`
	Absent   int64              `json:"absent"`
	Pending  int64              `json:"pending"`
	Failed   int64              `json:"failed"`
	Errors   []client.PathError `json:"errors"`
}

// Prefetch are the options of kvfs prefetch.
type Prefetch struct {
	JSON  bool // the answer is printed as JSON
	Quiet bool // no progress is shown
	Some  bool // it is no failure that blocks are absent, unless all are
}

// Run loads blocks into memory, waits for that, and prints the result. It fails if some are
// absent or could not be loaded, or when ctx ends: it then prints what was done.
func (o *Prefetch) Run(ctx context.Context, s Streams, c *client.Controls, d *client.Dialogue, blocks *client.Blocks) error {
	p := &prefetch{c: c, d: d, blocks: blocks, some: o.Some, bar: show.NewBar(s.Err, !o.Quiet && show.IsTerminal(s.Err))}
	err := p.run(ctx)
	p.bar.Clear()
	interrupted := errors.Is(err, context.Canceled)
	if err != nil && !interrupted {
		return fmt.Errorf("prefetch in %s: %w", blocks.Mount, err)
	}
	if o.JSON || !interrupted {
		if err := p.print(s.Out, o.JSON); err != nil {
			return err
		}
	}
	wrong := p.failed.Err("%d of %s: not there, or could not be loaded", p.failed.Total, show.Blocks(p.sum.Total))
	if o.Some && p.sum.Total > 0 && p.sum.Absent == p.sum.Total {
		wrong = fmt.Errorf("%s has none of these blocks in any tier", blocks.Mount)
	}
	if interrupted {
		// The daemon says ten times a second how far it is.
		return errors.Join(fmt.Errorf("interrupted: at least %d of %s are done, and %s loaded",
			p.sum.Done, show.Blocks(p.sum.Total), show.Bytes(p.sum.Bytes)), wrong)
	}
	return wrong
}

type prefetch struct {
	c      *client.Controls
	d      *client.Dialogue
	blocks *client.Blocks
	some   bool // as in Prefetch
	bar    *show.Bar

	sum     prefetchAnswer // of the requests that are answered
	results []byte         // for each name
	dirs    []int          // positions of names that are directories
	failed  client.Failures
}

// run asks for all names, then for the blocks below names of directories.
func (p *prefetch) run(ctx context.Context) error {
	names := p.blocks.Asked()
	p.results = []byte(strings.Repeat("?", len(names)))
	p.sum.Total = int64(len(names))
	if err := p.ask(ctx, p.blocks, p.named); err != nil {
		return err
	}
	below, err := p.blocks.Below(ctx, p.c, p.dirs, p.unlisted)
	if err != nil {
		return err
	}
	p.sum.Total += int64(len(below.Names))
	return p.ask(ctx, below, p.counted)
}

// ask prefetches blocks, in as many requests as it takes. each gets the answers, with the position of their first block.
func (p *prefetch) ask(ctx context.Context, blocks *client.Blocks, each func(names []string, first int, a *prefetchAnswer)) error {
	first := 0
	for rest := blocks.Asked(); len(rest) > 0; {
		var batch []string
		batch, rest = client.CutBatch(rest)
		now := blocks.Names[first : first+len(batch)]
		var a prefetchAnswer
		q := blocks.Request(batch)
		err := p.d.Ask(ctx, prefetchRequest{q, true}, func(line []byte) error {
			a = prefetchAnswer{}
			if err := json.Unmarshal(line, &a); err != nil {
				return err
			}
			p.bar.Show(p.sum.Done+a.Done, p.sum.Total, p.sum.Bytes+a.Bytes)
			return nil
		})
		p.sum.Bytes += a.Bytes
		if err != nil {
			p.sum.Done += a.Done // as far as it is known
			return client.Blame(err, now)
		}
		if len(a.Results) != len(batch) {
			return fmt.Errorf("answer of the daemon: results of %d blocks, %d were asked for", len(a.Results), len(batch))
		}
		for i := range a.Errors {
			if name, err := query.Unescape(a.Errors[i].Path); q.Escaped && err == nil {
				a.Errors[i].Path = name
			}
		}
		p.sum.Done += int64(len(batch))
		each(now, first, &a)
		first += len(batch)
	}
	return nil
}

// named adds the results of the given names. A name without a block may be a directory.
func (p *prefetch) named(names []string, first int, a *prefetchAnswer) {
	copy(p.results[first:], a.Results)
	for i := range names {
		if a.Results[i] == '.' && p.blocks.IsDir(first+i) {
			p.results[first+i] = '/'
			p.dirs = append(p.dirs, first+i)
			p.sum.Total--
			p.sum.Done--
			a.Absent--
		}
	}
	a.Results = string(p.results[first : first+len(names)])
	p.counted(names, first, a)
}

// counted adds up the results of blocks, and keeps the first failures.
func (p *prefetch) counted(names []string, _ int, a *prefetchAnswer) {
	p.sum.InMemory += a.InMemory
	p.sum.Loaded += a.Loaded
	p.sum.Absent += a.Absent
	p.sum.Pending += a.Pending
	p.sum.Failed += a.Failed
	for _, e := range a.Errors {
		p.failed.Add(e.Path, e.Error)
	}
	p.failed.Total += max(a.Failed-int64(len(a.Errors)), 0) // failures without a reason from the daemon
	for i, name := range names {
		if a.Results[i] == '.' && !p.some {
			p.failed.Add(name, "there is no such block")
		}
	}
	p.keep(a.Errors...)
}

// maxPrefetchErrors bounds the errors in the answer, like that of the daemon.
const maxPrefetchErrors = 100

// keep adds to the errors of the answer, while there is room.
func (p *prefetch) keep(errs ...client.PathError) {
	room := maxPrefetchErrors - len(p.sum.Errors)
	p.sum.Errors = append(p.sum.Errors, errs[:min(room, len(errs))]...)
}

func (p *prefetch) unlisted(name string, err error) {
	p.sum.Total++
	p.sum.Done++
	p.sum.Failed++
	p.keep(client.PathError{Path: name, Error: err.Error()})
	p.failed.Add(name, err.Error())
}

// PrintNone returns the function that writes the answer for no blocks, or nil if there is nothing to write.
func (o *Prefetch) PrintNone() func(io.Writer) error {
	if !o.JSON {
		return nil
	}
	return func(w io.Writer) error { return (&prefetch{blocks: &client.Blocks{}}).print(w, true) }
}

func (p *prefetch) print(w io.Writer, asJSON bool) error {
	s := &p.sum
	if asJSON {
		s.Results = string(p.results)
		if s.Errors == nil {
			s.Errors = []client.PathError{}
		}
		for i := 0; p.blocks.Shared.Escaped && i < len(s.Errors); i++ {
			s.Errors[i].Path = query.Escape(s.Errors[i].Path)
		}
		return show.JSON(w, s)
	}
	_, err := fmt.Fprintf(w, "loaded %s (%s) in %v%s\n", show.Blocks(s.Loaded), show.Bytes(s.Bytes), p.bar.Took().Round(time.Millisecond), show.Counts(
		show.Count("in memory before", uint64(s.InMemory)), show.Count("being written", uint64(s.Pending)),
		show.Count("not there", uint64(s.Absent)), show.Count("failed", uint64(s.Failed))))
	return err
}

// PrintNone returns the function that writes the answer for no blocks, or nil if there is nothing to write.
func (e *Eviction) PrintNone() func(io.Writer) error {
	if !e.JSON {
		return nil
	}
	return func(w io.Writer) error { return e.print(w, &control.EvictAnswer{Kept: []control.EvictKept{}}) }
}

// Eviction are the options of kvfs evict.
type Eviction struct {
	Tier  string // "memory" or "disk"
	Force bool   // also blocks that no other tier holds
	JSON  bool   // the answer is printed as JSON
}

// Run evicts the blocks of paths below a mount from the tier, or without paths all of its
// blocks, and prints the result. It fails if there is nothing at a path.
func (e *Eviction) Run(ctx context.Context, s Streams, c *client.Controls, mount string, paths []string) error {
	stop := func() {}
	if !e.Force { // the daemon copies blocks down before it evicts them: that is what takes time
		stop = followCopies(ctx, s.Err, mount)
	}
	answer, err := e.ask(ctx, c, mount, paths)
	stop()
	if err != nil {
		return err
	}
	if err := e.print(s.Out, answer); err != nil {
		return err
	}
	return absent(answer)
}

// absent is the error about paths without a block.
func absent(answer *control.EvictAnswer) error {
	var names []string
	for _, kept := range answer.Kept {
		if kept.Reason == outcome.ReasonNotFound.String() {
			names = append(names, kept.Path)
		}
	}
	switch len(names) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("%s: not found", names[0])
	}
	return fmt.Errorf("%s and %d more: not found", names[0], len(names)-1)
}

// ask sends the paths to the daemon, in as many requests as it takes, and returns the sum of
// its answers. No paths means all blocks.
func (e *Eviction) ask(ctx context.Context, c *client.Controls, mount string, paths []string) (*control.EvictAnswer, error) {
	d, err := c.Dial(mount, "evict")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	sum := &control.EvictAnswer{Kept: []control.EvictKept{}}
	ask := control.EvictRequest{Tier: e.Tier, Force: e.Force, All: len(paths) == 0}
	for {
		ask.Paths, paths = client.CutBatch(paths)
		var answer control.EvictAnswer
		if err := d.AskInto(ctx, ask, &answer); err != nil {
			return nil, fmt.Errorf("evict from %s: %w", mount, err)
		}
		sum.Blocks += answer.Blocks
		sum.Bytes += answer.Bytes
		sum.KeptTotal += answer.KeptTotal
		sum.Kept = append(sum.Kept, answer.Kept...)
		if len(paths) == 0 {
			return sum, nil
		}
	}
}

func (e *Eviction) print(w io.Writer, answer *control.EvictAnswer) error {
	if e.JSON {
		return show.JSON(w, struct {
			Tier string `json:"tier"`
			*control.EvictAnswer
		}{e.Tier, answer})
	}
	fmt.Fprintf(w, "evicted %s (%s) from %s\n", show.Blocks(answer.Blocks), show.Bytes(answer.Bytes), e.Tier)
	if answer.KeptTotal == 0 {
		return nil
	}
	fmt.Fprintf(w, "kept %s:\n", show.Blocks(answer.KeptTotal))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, kept := range answer.Kept {
		fmt.Fprintf(t, "  %s\t%s\n", show.Text(kept.Reason), show.Text(kept.Path))
	}
	if more := answer.KeptTotal - int64(len(answer.Kept)); more > 0 {
		fmt.Fprintf(t, "  and %d more\n", more)
	}
	return t.Flush()
}

// Flush makes the blocks of names durable, blocks and directories of one mount. It prints nothing, or with raw as JSON
// how many names are done; it ends at the first that fails.
func Flush(s Streams, c *client.Controls, names []string, raw bool) error {
	mount, paths, err := c.Locate(names)
	if err != nil {
		return err
	}
	if err := keeps(mount); err != nil {
		return fmt.Errorf("flush %s: %w", names[0], err)
	}
	for i, path := range paths {
		f, err := os.Open(filepath.Join(mount, path))
		if err == nil {
			err = f.Sync()
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("flush %s: %w", names[i], show.Reason(err))
		}
	}
	if !raw {
		return nil
	}
	return show.JSON(s.Out, struct {
		Mount   string `json:"mount"`
		Flushed int    `json:"flushed"` // names
	}{mount, len(paths)})
}

// keeps fails if the mount has no tier to which fsync copies blocks. An older daemon does not say so of its tiers.
func keeps(mount string) error {
	text, err := client.Status(mount, mounts.Timeout)
	if err != nil {
		return err
	}
	var now struct {
		Secondaries []struct {
			Durable *bool `json:"durable"`
		} `json:"secondaries"`
	}
	if err := json.Unmarshal(text, &now); err != nil {
		return fmt.Errorf("the status is unreadable: %w", err)
	}
	for _, s := range now.Secondaries {
		if s.Durable == nil || *s.Durable {
			return nil
		}
	}
	return errors.New("no tier keeps blocks when memory is lost: nothing was flushed. An SSD tier does (disk.dirs)")
}

// Drain waits until the copies to lower tiers that are under way at the mount at dir are done, at most for timeout
// unless that is 0. It prints nothing, or with raw as JSON how long it took.
func Drain(ctx context.Context, s Streams, c *client.Controls, dir string, timeout time.Duration, raw bool) error {
	d, err := c.Control(dir, "drain")
	if err != nil {
		return err
	}
	defer d.Close()
	if timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = limited
	}
	start := time.Now()
	stop := followCopies(ctx, s.Err, d.Mount)
	err = d.AskInto(ctx, struct{}{}, &struct{}{})
	stop()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not done after %v", timeout)
	}
	if err != nil {
		return fmt.Errorf("drain %s: %w", dir, err)
	}
	if !raw {
		return nil
	}
	return show.JSON(s.Out, struct {
		Mount   string  `json:"mount"`
		Seconds float64 `json:"seconds"`
	}{d.Mount, time.Since(start).Seconds()})
}

// The attributes that commands set.
const (
	AttrPinned = "user.kvfs.pinned"
	AttrTTL    = "user.kvfs.ttl"
)

// AttrChange sets one attribute on many blocks.
type AttrChange struct {
	Attr, Value string
	Done        string // format of the result; its argument is the number of blocks, in words
	JSON        bool   // print the number of changed blocks and the first errors as JSON
}

// Run sets the attribute on all paths below a mount, and on all blocks below directories among them. names are the paths as
// they were given. It prints how many were changed, and fails if some could not be.
func (a *AttrChange) Run(s Streams, c *client.Controls, mount string, paths, names []string) error {
	var done int64
	var failed client.Failures
	for i, name := range names {
		if err := a.changeAll(c, filepath.Join(mount, paths[i]), name, &done, &failed); err != nil {
			return client.Explain(mount, err)
		}
	}
	if err := a.print(s.Out, done, &failed); err != nil {
		return err
	}
	return failed.Err("%d of %s could not be changed", failed.Total, show.Blocks(failed.Total+done))
}

func (a *AttrChange) print(w io.Writer, done int64, failed *client.Failures) error {
	if a.JSON {
		return show.JSON(w, struct {
			Changed int64              `json:"changed"`
			Failed  int64              `json:"failed"`
			Errors  []client.PathError `json:"errors,omitempty"`
		}{done, failed.Total, failed.First})
	}
	_, err := fmt.Fprintf(w, a.Done+"\n", show.Blocks(done))
	return err
}

// PrintNone returns the function that writes the answer for no blocks, or nil if there is nothing to write.
func (a *AttrChange) PrintNone() func(io.Writer) error {
	if !a.JSON {
		return nil
	}
	return func(w io.Writer) error { return a.print(w, 0, &client.Failures{}) }
}

// changeAll sets the attribute on a block, or on all blocks below a directory. name stands for
// path in errors. It fails if the daemon of the mount is gone.
func (a *AttrChange) changeAll(c *client.Controls, path, name string, done *int64, failed *client.Failures) error {
	set := func(path, name string) error {
		err := c.Setxattr(path, a.Attr, a.Value)
		switch {
		case err == nil:
			*done++
		case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.EISDIR):
			return err
		case errors.Is(err, unix.EDQUOT):
			failed.Add(name, "the quota of pinned bytes of its group, its owner or its cgroup is used up: see kvfs quota")
		default:
			failed.Add(name, err.Error())
		}
		return nil
	}
	err := set(path, name)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	// Names below a directory are shown in the form of the given name.
	shown := func(below string) string { return filepath.Join(name, below[len(path):]) }
	return c.WalkBlocks(path, func(block string) error {
		err := set(block, shown(block))
		if errors.Is(err, unix.EISDIR) { // a directory has replaced it
			failed.Add(shown(block), err.Error())
			return nil
		}
		return err
	}, func(dir string, err error) { failed.Add(shown(dir), err.Error()) })
}

// UserID returns the number of a user by name, or the number that was given.
func UserID(name string) (string, error) {
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		return name, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return "", fmt.Errorf("this machine has no user %q", name)
	}
	return u.Uid, nil
}

// Quota sends a request to the daemon of the mount at dir, and prints the quotas of the answer, as JSON if raw.
func Quota(ctx context.Context, w io.Writer, c *client.Controls, dir string, q control.QuotaRequest, raw bool) error {
	all, err := Quotas(ctx, c, dir, q)
	if err != nil {
		return err
	}
	if raw {
		return show.JSON(w, control.QuotaAnswer{Quotas: all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no quotas")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "KIND\tNAME\tUSED\tQUOTA\tPINNED\tPIN QUOTA\tFROM\n")
	for _, q := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", q.Kind, quotaName(&q), show.Bytes(q.UsedBytes), show.BytesOrDash(q.Bytes),
			show.Bytes(q.PinnedBytes), show.BytesOrDash(q.PinQuotaBytes), q.Origin)
	}
	return t.Flush()
}

// Quotas sends a request to the daemon of the mount at dir, and returns the quotas of the answer.
func Quotas(ctx context.Context, c *client.Controls, dir string, q control.QuotaRequest) ([]control.Quota, error) {
	d, err := c.Control(dir, "quota")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var answer control.QuotaAnswer
	if err := d.AskInto(ctx, q, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", d.Mount, err)
	}
	return answer.Quotas, nil
}

func quotaName(q *control.Quota) string {
	if q.Kind == "user" {
		if u, err := user.LookupId(q.Name); err == nil {
			return q.Name + " (" + show.Text(u.Username) + ")"
		}
	}
	if q.Kind == "group" && q.Name == "" {
		return "./" // as in kvfs du
	}
	return show.Text(q.Name)
}

// SpecsRequest is a request to .kvfs/specs. An empty one gets all specs.
type SpecsRequest struct {
	Set    map[string]json.RawMessage `json:"set,omitempty"`
	Remove []string                   `json:"remove,omitempty"`
}

// Specs sends a request to the daemon of the mount at dir, and prints the specs of the answer,
// as JSON if raw. done says what has become of them, or is empty.
func Specs(ctx context.Context, w io.Writer, c *client.Controls, dir string, q SpecsRequest, done string, raw bool) error {
	d, err := c.Control(dir, "specs")
	if err != nil {
		return err
	}
	defer d.Close()
	var answer json.RawMessage
	if err := d.AskInto(ctx, q, &answer); err != nil {
		return fmt.Errorf("specs of %s: %w", d.Mount, err)
	}
	if raw {
		_, err := fmt.Fprintf(w, "%s\n", answer)
		return err
	}
	var all struct {
		Specs map[string]hybrid.Spec `json:"specs"`
	}
	if err := json.Unmarshal(answer, &all); err != nil {
		return fmt.Errorf("specs of %s: answer of the daemon: %w", d.Mount, err)
	}
	return printSpecs(w, all.Specs, done)
}

// CheckSpec reports the faults of the spec in a file, or prints it with its defaults, as JSON if raw.
func CheckSpec(s Streams, name string, raw bool) error {
	text, err := client.ReadDocument(name, s.In)
	if err != nil {
		return err
	}
	c, err := query.ParseSpec(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if raw {
		return show.JSON(s.Out, c.Spec())
	}
	return printSpecs(s.Out, map[string]hybrid.Spec{name: *c.Spec()}, "good")
}

// printSpecs writes specs. done says what became of them, or is empty.
func printSpecs(w io.Writer, specs map[string]hybrid.Spec, done string) error {
	if len(specs) == 0 {
		_, err := fmt.Fprintln(w, "no specs")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, name := range slices.Sorted(maps.Keys(specs)) {
		if i > 0 {
			fmt.Fprintln(t)
		}
		s := specs[name]
		if done != "" {
			fmt.Fprintf(t, "%s: %s\n", name, done)
		} else {
			fmt.Fprintln(t, name)
		}
		if s.HashBlockSize == 0 {
			continue // of a removed spec only the name may be known
		}
		fmt.Fprintf(t, "  hash blocks of %d tokens, scheduler blocks of %d, cache blocks of %d%s\n",
			s.HashBlockSize, s.SchedulerBlockSize, s.CacheBlockSize, specNote(&s))
		fmt.Fprintf(t, "  GROUP\tKIND\tBLOCK\tNOTE\n")
		for j := range s.Groups {
			g := &s.Groups[j]
			fmt.Fprintf(t, "  %s\t%s\t%d\t%s\n", show.OrDash(g.Name), g.Kind, g.BlockSize, show.OrDash(groupNote(g)))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return t.Flush()
}

func specNote(s *hybrid.Spec) string {
	note := ""
	if s.Eagle {
		note += ", with draft layers"
	}
	if s.Retention != nil {
		note += fmt.Sprintf(", stored every %d tokens", *s.Retention)
	}
	if s.PrefillContext > 1 || s.DecodeContext > 1 {
		note += fmt.Sprintf(", context parallel %d and %d", s.PrefillContext, s.DecodeContext)
	}
	return note
}

func groupNote(g *hybrid.Group) string {
	var notes []string
	add := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(g.Window > 0, "window %d", g.Window)
	add(g.Chunk > 0, "chunk %d", g.Chunk)
	add(g.Mode != "", "%s", g.Mode)
	add(g.Eagle, "draft layers")
	add(g.Ranks > 0, "%d ranks", g.Ranks)
	add(g.Variant != 0, "variant %d", g.Variant)
	add(g.Uniform, "uniform")
	return strings.Join(notes, ", ")
}

// followEvery is the time between two looks at what a daemon has to do.
const followEvery = 250 * time.Millisecond

// copiesLeft is a part of .kvfs/jobs.
type copiesLeft struct {
	Stores []struct {
		Keys int64 `json:"keys"`
	} `json:"stores"`
	Queued map[string]int64 `json:"queued"`
}

// blocks is how many copies are left.
func (c *copiesLeft) blocks() (n int64) {
	for _, s := range c.Stores {
		n += s.Keys
	}
	for _, q := range c.Queued {
		n += q
	}
	return n
}

// followCopies shows on w, if it is a terminal, how many of the copies to lower tiers of a mount are done: of the most
// that were left at one time. stop ends that, and removes the line.
func followCopies(ctx context.Context, w io.Writer, mount string) (stop func()) {
	if !show.IsTerminal(w) {
		return func() {}
	}
	bar := show.NewBar(w, true)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // ends with stop
		defer bar.Clear()
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		for most := int64(0); ; {
			text, err := client.Read(mount, "jobs", followEvery)
			var left copiesLeft
			if err == nil && json.Unmarshal(text, &left) == nil {
				n := left.blocks()
				if most = max(most, n); most > 0 {
					bar.Share(fmt.Sprintf("copying %s to lower tiers", show.Blocks(most)), most-n, most)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
