package plan

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// Step is one figure of a workload, with its derivation.
type Step struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"` // "tokens", "requests", "requests/s", "B", "B/s" or "B/day"
	How   string  `json:"how"`
}

// Settings are settings to make, as text of the configuration. Those that do not follow from the workload are empty.
type Settings struct {
	MemorySize  string `json:"memory.size,omitempty"`        // with an SSD tier below
	MemoryAlone string `json:"memory.size_alone,omitempty"`  // without one
	DiskSize    string `json:"disk.dirs.size,omitempty"`     // of all directories together
	StagingSize string `json:"staging.size"`                 // room for BlockSize
	Group       string `json:"group,omitempty"`              // the first directory below the mount
	BlockSize   string `json:"groups.block_size,omitempty"`  // if all files of the group have the same
	BlockBytes  int64  `json:"largest_file_bytes,omitempty"` // of any group
}

// Figures of kvfs on which the sizes depend.
const (
	lookupLease   = 30 * time.Second // mount.lookup_lease: blocks stay this long after a look-up
	lowWatermark  = 0.95             // memory.low_watermark; disks get the same reserve
	usableStaging = 0.9              // staging.usable_ratio
	stagingUnit   = 4 << 10          // blocks are rounded up to this
	stagingRoom   = 8 << 10          // and need this much more
	minStaging    = 64 << 20         // the default
	minMemory     = 64 << 20
	minDisk       = 1 << 20
	packBelow     = 4 << 20  // smaller blocks share an object of a bucket
	packBytes     = 64 << 20 // which has this many bytes
	partBytes     = 8 << 20  // larger ones are read in such parts
	mib           = 1 << 20
	gib           = 1 << 30
)

func (p *Plan) tiers(z *sizer, o *Options) error {
	st := &p.Settings
	for _, g := range p.Groups {
		st.BlockBytes = max(st.BlockBytes, g.FileBytes)
	}
	l := load{Load: o.Load, plan: p, z: z}
	l.steps()
	for _, s := range p.Load {
		if s.Value > tooMuch {
			return fmt.Errorf("%s comes to %.3g %s, too large to compute with", s.Name, s.Value, s.Unit)
		}
	}
	switch {
	case p.Engine == VLLM:
		st.Group = "MODEL_HASH_r0"
	case p.Engine == SGLang && len(p.Groups) == 1:
		st.Group = "sglang"
	case p.Engine == LMCache:
		st.Group = "lmcache"
	}
	staging := float64(minStaging)
	if st.Group != "" {
		st.BlockSize = scalar.Size(st.BlockBytes).String()
		padded := (st.BlockBytes+stagingUnit-1)/stagingUnit*stagingUnit + stagingRoom
		staging = max(staging, float64(padded)/usableStaging)
	}
	st.StagingSize = wholeSize(staging)
	return nil
}

type load struct {
	Load
	plan *Plan
	z    *sizer
	read float64 // B/s, at most
}

func (l *load) add(name string, value float64, unit, how string, args ...any) float64 {
	l.plan.Load = append(l.plan.Load, Step{Name: name, Value: value, Unit: unit, How: fmt.Sprintf(how, args...)})
	return value
}

// stored returns the bytes that a request stores for a number of tokens.
func (l *load) stored(tokens float64) float64 {
	var sum float64
	for i := range l.plan.Groups {
		g := &l.plan.Groups[i]
		n := 1.0
		if g.BlockTokens > 0 {
			n = tokens / float64(g.BlockTokens)
		}
		sum += n * float64(g.blockBytes())
	}
	return sum
}

// needed returns the bytes that the next request needs of a number of tokens, at most.
func (l *load) needed(tokens float64) float64 {
	if l.plan.Engine == LlamaCpp {
		return l.slot(tokens)
	}
	var sum float64
	for i := range l.plan.Groups {
		g := &l.plan.Groups[i]
		sum += g.needed(tokens) * float64(g.blockBytes())
	}
	return sum
}

// slot returns the bytes of a request's file of llama.cpp.
func (l *load) slot(tokens float64) float64 {
	return float64(l.z.sum(func(s Shape) int64 { return l.z.request(s, int(math.Ceil(tokens))) }))
}

func (l *load) steps() {
	st := &l.plan.Settings
	if l.Rate == 0 && l.Concurrency == 0 {
		return
	}
	var perSecond, working float64
	if l.Rate > 0 {
		perSecond = l.writes()
		working = l.working(perSecond)
	}
	flight := l.flight()
	file := float64(st.BlockBytes)
	if l.Rate > 0 {
		burst := perSecond * lookupLease.Seconds()
		memory := l.add("memory above an SSD tier", math.Max(flight+burst, file)/lowWatermark, "B",
			"(in flight + %.0f s of what is written, until it is on the SSD) / %v, the low watermark; not less than a file", lookupLease.Seconds(), lowWatermark)
		alone := l.add("memory without an SSD tier", math.Max(memory, working/lowWatermark), "B", "working set / %v, but not less than above an SSD tier", lowWatermark)
		disk := l.add("SSD tier", working/lowWatermark, "B", "working set / %v: every block is copied to it", lowWatermark)
		l.bucket(working, perSecond)
		st.MemorySize, st.MemoryAlone, st.DiskSize = memorySize(memory), memorySize(alone), wholeSize(math.Max(disk, minDisk))
		return
	}
	memory := l.add("memory", math.Max(flight, file)/lowWatermark, "B", "in flight / %v, the low watermark, not less than a file; without --requests-per-second no more follows", lowWatermark)
	st.MemorySize = memorySize(memory)
}

func (l *load) bucket(working, perSecond float64) {
	l.add("object tier", working, "B", "working set; its capacity")
	file := l.plan.Settings.BlockBytes
	if file < packBelow { // as the file of an engine that is not known, of 0 bytes
		l.add("object tier, PUT", perSecond/packBytes, "requests/s", "written / %s, since files below %s share objects; more if less than that is written within 0.2 s",
			human(packBytes), human(packBelow))
	} else {
		l.add("object tier, PUT", perSecond/float64(file), "requests/s", "one for each file")
	}
	if l.read > 0 && file > 0 {
		part := min(file, partBytes)
		l.add("object tier, GET", l.read/float64(part), "requests/s", "read, at most, / %s, if neither memory nor SSD has anything", human(float64(part)))
	}
}

// writes adds the figures of writing, and returns the bytes a second.
func (l *load) writes() float64 {
	prompt, share := float64(l.MeanPrompt), l.PrefixShare
	fresh := l.add("new tokens", prompt*(1-share)+float64(l.MeanOutput), "tokens", "%d x (1 - %v) of the prompt + %d of the output, of each request",
		l.MeanPrompt, share, l.MeanOutput)
	each, how := l.stored(fresh), "the blocks of the new tokens, of all groups, of each request"
	if l.plan.Engine == LlamaCpp {
		each, how = l.slot(prompt+float64(l.MeanOutput)), "a slot is saved whole, old tokens too"
	}
	l.add("written a request", each, "B", "%s", how)
	perSecond := l.add("written", l.Rate*each, "B/s", "%v requests/s x that; of this the device of an SSD tier sees all", l.Rate)
	l.add("written a day", perSecond*86400, "B/day", "what a device's endurance and disk.daily_write_budget are about")
	if share == 0 {
		return perSecond
	}
	l.read = l.add("read, at most", l.Rate*l.needed(prompt*share), "B/s", "%v requests/s x the blocks that are needed of %v x %d tokens", l.Rate, share, l.MeanPrompt)
	return perSecond
}

// working adds the figures of the working set, and returns its bytes.
func (l *load) working(perSecond float64) float64 {
	prompt, window := float64(l.MeanPrompt), l.ReuseWindow.Seconds()
	how, shared := fmt.Sprintf("what is written in %v", scalar.Duration(l.ReuseWindow)), 0.0
	if l.PrefixShare > 0 && l.plan.Engine != LlamaCpp {
		shared = l.stored(prompt * l.PrefixShare)
		how += fmt.Sprintf(", and once the shared %v x %d tokens", l.PrefixShare, l.MeanPrompt)
	}
	working := l.add("working set", perSecond*window+shared, "B", "%s: all that comes again within that time is then there, and no hit rate is assumed", how)
	fresh := prompt*(1-l.PrefixShare) + float64(l.MeanOutput)
	if l.plan.Engine == LlamaCpp {
		fresh = prompt + float64(l.MeanOutput)
	}
	if need := l.needed(fresh) * l.Rate * window; need+shared < working*0.99 {
		l.add("needed of it", need+shared, "B", "of each request the blocks within windows, and the last of its states: what would do if nothing else were written")
	}
	return working
}

// flight adds the bytes in use at a time, and returns them.
func (l *load) flight() float64 {
	n, how := float64(l.Concurrency), "--concurrency"
	if l.Concurrency == 0 {
		n = l.add("requests at a time", math.Ceil(l.Rate*lookupLease.Seconds()), "requests", "%v requests/s x %.0f s for which blocks stay after a look-up (mount.lookup_lease)",
			l.Rate, lookupLease.Seconds())
		how = "requests at a time"
	}
	tokens := l.MeanPrompt + l.MeanOutput
	if l.MeanPrompt == 0 {
		tokens = l.plan.Context
	}
	return l.add("in flight", n*l.needed(float64(tokens)), "B", "%s x the blocks that a request of %d tokens needs", how, tokens)
}

// memorySize is wholeSize, but at least the minimum of kvfs.
func memorySize(bytes float64) string { return wholeSize(math.Max(bytes, minMemory)) }

// wholeSize returns a size rounded up to MiB or GiB, in the form of the configuration.
func wholeSize(bytes float64) string {
	if n := math.Ceil(bytes / gib); n > 8 {
		return fmt.Sprintf("%.0fGiB", n)
	}
	return fmt.Sprintf("%.0fMiB", math.Max(math.Ceil(bytes/mib), 1))
}

// Write prints the plan for people.
func (p *Plan) Write(w io.Writer) error {
	out := &bytes.Buffer{}
	p.writeModel(out)
	p.writeLayers(out)
	p.writeSizes(out)
	p.writeGroups(out)
	p.writeLoad(out)
	p.writeSettings(out)
	fmt.Fprintln(out, "\nAssumptions")
	for _, note := range p.Notes {
		fmt.Fprintf(out, "  - %s\n", note)
	}
	_, err := w.Write(out.Bytes())
	return err
}

func (p *Plan) writeModel(w io.Writer) {
	fmt.Fprintf(w, "Model %s: %d layers, keys and values in %s", p.ModelType, p.NumLayers, p.KVDtype)
	if p.StateDtype != "" {
		fmt.Fprintf(w, ", states in %s", p.StateDtype)
	}
	fmt.Fprintf(w, ", %s\n", ranks(p.TP, p.PP))
}

func ranks(tp, pp int) string {
	if tp*pp == 1 {
		return "one rank"
	}
	return fmt.Sprintf("%d ranks (tp %d, pp %d)", tp*pp, tp, pp)
}

// table returns a writer of columns, and a function that ends it.
func table(w io.Writer, head string) (*tabwriter.Writer, func()) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head)
	return t, func() { _ = t.Flush() } // into memory, which cannot fail
}

func (p *Plan) writeLayers(w io.Writer) {
	fmt.Fprintln(w, "\nLayers, of all ranks")
	t, end := table(w, "  KIND\tLAYERS\tOF EACH\tLOOKS BACK\tBYTES A TOKEN\tBYTES A STATE")
	for _, l := range p.Layers {
		each, back := "", "all"
		switch {
		case l.State != "":
			each, back = l.State, "state"
		case l.Latent > 0:
			each = fmt.Sprintf("latent row of %d", l.Latent)
		default:
			each = fmt.Sprintf("%d key/value heads of %d", l.KVHeads, l.HeadDim)
		}
		if l.Window > 0 {
			back = fmt.Sprintf("%d tokens", l.Window)
		}
		if l.Chunk > 0 {
			back = fmt.Sprintf("chunk of %d", l.Chunk)
		}
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s\t%s\n", l.Kind, l.Layers, each, back, orDash(l.TokenBytes), orDash(l.StateBytes))
	}
	end()
}

func orDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func (p *Plan) writeSizes(w io.Writer) {
	fmt.Fprintln(w, "\nBytes")
	t, end := table(w, "  OF\tALL RANKS\t\tTHE LARGEST RANK")
	row := func(name string, b Bytes) {
		fmt.Fprintf(t, "  %s\t%d\t%s\t%d\t%s\n", name, b.Whole, human(float64(b.Whole)), b.Rank, human(float64(b.Rank)))
	}
	row("a token", p.Token)
	if p.BeyondToken != p.Token {
		row("a token beyond windows", p.BeyondToken)
	}
	if p.State != nil {
		row("a state", *p.State)
	}
	if p.Block != nil {
		row(fmt.Sprintf("a block of %d tokens", p.BlockTokens), *p.Block)
	}
	row(fmt.Sprintf("a request of %d tokens", p.Context), p.Request)
	end()
}

func (p *Plan) writeGroups(w io.Writer) {
	fmt.Fprintf(w, "\nFiles of %s\n", cmp.Or(p.Engine, "no engine in particular"))
	t, end := table(w, "  GROUP\tKIND\tLAYERS\tTOKENS\tBYTES OF A FILE\t\tFILES OF A BLOCK")
	for _, g := range p.Groups {
		tokens := fmt.Sprint(g.BlockTokens)
		if g.BlockTokens == 0 {
			tokens = "a request"
		}
		fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%d\t%s\t%d\n", cmp.Or(g.Name, "-"), g.Kind, g.Layers, tokens, g.FileBytes, human(float64(g.FileBytes)), g.Files)
	}
	end()
}

func (p *Plan) writeLoad(w io.Writer) {
	fmt.Fprintln(w, "\nWorkload")
	if len(p.Load) == 0 {
		fmt.Fprintln(w, "  none given: with --requests-per-second, --mean-prompt and --concurrency the sizes of the tiers follow")
		return
	}
	for _, s := range p.Load {
		fmt.Fprintf(w, "  %-26s %s\n%30s%s\n", s.Name, s.amount(), "", s.How)
	}
}

func (s *Step) amount() string {
	switch s.Unit {
	case "B":
		return human(s.Value)
	case "B/s":
		return human(s.Value) + "/s"
	case "B/day":
		return human(s.Value) + "/day"
	case "requests/s":
		return fmt.Sprintf("%.3g %s", s.Value, s.Unit)
	}
	return fmt.Sprintf("%.0f %s", s.Value, s.Unit)
}

// human returns a number of bytes with three or four digits.
func human(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for bytes >= 1024 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	text := fmt.Sprintf("%.1f", bytes)
	return strings.TrimSuffix(text, ".0") + " " + units[i]
}

func (p *Plan) writeSettings(w io.Writer) {
	fmt.Fprintln(w, "\nSettings")
	for line := range strings.Lines(p.YAML()) {
		fmt.Fprint(w, "  ", line)
	}
	if p.Settings.MemoryAlone != "" {
		fmt.Fprintf(w, "Without an SSD tier: memory.size %s, and no disk.\n", p.Settings.MemoryAlone)
	}
}

// YAML returns the settings in the form of the configuration file.
func (p *Plan) YAML() string {
	var b strings.Builder
	st := &p.Settings
	if st.MemorySize != "" {
		fmt.Fprintf(&b, "memory:\n  size: %s\n", st.MemorySize)
	}
	if st.DiskSize != "" {
		fmt.Fprintf(&b, "disk:\n  dirs:\n    - path: /mnt/nvme0/kvfs  # divide the size among the directories, one a device\n      size: %s\n", st.DiskSize)
	}
	fmt.Fprintf(&b, "staging:\n  size: %s\n", st.StagingSize)
	if st.Group != "" {
		fmt.Fprintf(&b, "groups:\n  %s:  # the first directory below the mount, as it is called there\n    block_size: %s\n", st.Group, st.BlockSize)
	}
	if p.Spec != nil {
		fmt.Fprintf(&b, "specs:\n  %s:\n", p.ModelType)
		fmt.Fprintf(&b, "    hash_block_size: %d\n    scheduler_block_size: %d\n    cache_block_size: %d\n    groups:\n",
			p.Spec.HashBlockSize, p.Spec.SchedulerBlockSize, p.Spec.CacheBlockSize)
		for _, g := range p.Spec.Groups {
			text, _ := json.Marshal(g, json.OmitZeroStructFields(true)) // of strings and numbers, which cannot fail
			fmt.Fprintf(&b, "      - %s\n", text)
		}
	}
	return b.String()
}
