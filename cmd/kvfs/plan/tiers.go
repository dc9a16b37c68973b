package plan

import (
	"fmt"
	"math"
	"strings"
	"time"
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

// tiers computes the figures of the workload, and the settings.
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
		st.BlockSize = exactSize(st.BlockBytes)
		padded := (st.BlockBytes+stagingUnit-1)/stagingUnit*stagingUnit + stagingRoom
		staging = max(staging, float64(padded)/usableStaging)
	}
	st.StagingSize = wholeSize(staging)
	return nil
}

// load computes the figures of a workload.
type load struct {
	Load
	plan *Plan
	z    *sizer
	read float64 // B/s, at most
}

// add adds a figure and returns it.
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

// steps computes the figures, and the sizes of the tiers.
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

// bucket adds the figures of a tier on object storage.
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
	how, shared := fmt.Sprintf("what is written in %s", shortTime(l.ReuseWindow)), 0.0
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

// shortTime writes 15m for 15m0s.
func shortTime(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
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

// exactSize returns a size in the form of the configuration.
func exactSize(bytes int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", gib}, {"MiB", mib}, {"KiB", 1 << 10}} {
		if bytes%u.bytes == 0 {
			return fmt.Sprintf("%d%s", bytes/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%dB", bytes)
}
