package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// topics are the groups of rows, in the order in which they are printed.
func topics() []string {
	return slices.Concat(hotTopics(), diskTopics(), peerTopics(), controlTopics(), storeTopics(), takeoverTopics(), ttftTopics(), rivalTopics(),
		objectTopics())
}

// hotTopics are about blocks in memory, on the targets of -targets.
func hotTopics() []string {
	return []string{"read", "write", "fresh", "open", "stat", "ops", "cpu", "readdir", "heap"}
}

// diskTopics are about the disk tier.
func diskTopics() []string {
	return []string{"cold", "drain", "hotcascade", "recovery", "prefetch", "lookfirst"}
}

// config is the parsed flags.
type config struct {
	kvfs       string
	kvfsArgs   []string
	targets    []string
	shmDir     string
	diskDir    string
	sizes      []int
	threads    []int
	rounds     int
	passTime   time.Duration
	only       []string
	quick      bool
	verbose    bool
	memoryMiB  int
	entries    int
	blocks     int
	diskBytes  int
	recover    int
	jsonPath   string
	plotDir    string
	docsPath   string
	limit      time.Duration
	maxThreads int
}

func parseFlags(args []string) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&c.kvfs, "kvfs", "", "kvfs `binary`; empty: build ./cmd/kvfs")
	kvfsArgs := f.String("kvfs-args", "", "further `flags` of 'kvfs mount', separated by spaces")
	targets := f.String("targets", "shm,huge,disk,kvfs,loopback",
		"what to measure; shm always is")
	f.StringVar(&c.shmDir, "shm", "/dev/shm", "the tmpfs `directory` of target shm")
	f.StringVar(&c.diskDir, "disk", "", "`directory` on a disk; empty: the user's cache, else TMPDIR")
	sizes := f.String("sizes", "64KiB,256KiB,1MiB,2MiB,4MiB,16MiB", "block sizes")
	threads := f.String("threads", "1,2", "client threads")
	f.IntVar(&c.rounds, "rounds", 5, "rounds over all targets; figures are their medians")
	f.DurationVar(&c.passTime, "time", 300*time.Millisecond, "length of one pass")
	only := f.String("only", "", "topics to measure, of "+strings.Join(topics(), ",")+"; empty: all")
	f.BoolVar(&c.quick, "quick", false, "smoke test: few blocks, one round, seconds")
	f.BoolVar(&c.verbose, "v", false, "show what the daemons print")
	memory := f.String("memory-size", "3GiB", "memory of kvfs for all topics but heap")
	f.IntVar(&c.entries, "entries", 100_000, "directory entries for readdir")
	f.IntVar(&c.blocks, "blocks", 10_000_000, "blocks of 4 KiB for heap, in steps from 1000 on, as far as there is memory: about 7 KiB each")
	diskBytes := f.String("disk-bytes", "1GiB", "blocks of each size for cold and drain, in all")
	f.IntVar(&c.recover, "recover", 1_000_000, "blocks of 4 KiB for recovery, about 7 KiB of memory "+
		"and 9 KiB of disk each; tiny blocks for the index of object")
	f.StringVar(&c.plotDir, "plots", "", "draw what was measured as SVG in `directory`")
	f.StringVar(&c.docsPath, "docs", "", "put the tables of what was measured into the page `file`, if all went well")
	f.StringVar(&c.jsonPath, "json", "", "write all figures to `file` too")
	f.DurationVar(&c.limit, "timeout", time.Hour, "stop, and kill hanging daemons, after this time")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if c.quick && c.docsPath != "" {
		return nil, errors.New("-docs: a -quick run measures nothing that a page could tell")
	}
	if c.quick {
		quicken(f, c, sizes, memory, diskBytes)
	}
	c.kvfsArgs = strings.Fields(*kvfsArgs)
	c.targets, c.only = list(*targets), list(*only)
	return c, c.finish(*sizes, *threads, *memory, *diskBytes)
}

// quicken sets values that were not given to those of a smoke test.
func quicken(f *flag.FlagSet, c *config, sizes, memory, diskBytes *string) {
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	set := func(name string, apply func()) {
		if !given[name] {
			apply()
		}
	}
	set("sizes", func() { *sizes = "64KiB,1MiB,4MiB,16MiB" })
	set("rounds", func() { c.rounds = 1 })
	set("time", func() { c.passTime = 20 * time.Millisecond })
	set("entries", func() { c.entries = 2000 })
	set("blocks", func() { c.blocks = 5000 })
	set("recover", func() { c.recover = 20_000 })
	set("disk-bytes", func() { *diskBytes = "48MiB" })
	set("memory-size", func() { *memory = "512MiB" })
	set("timeout", func() { c.limit = 10 * time.Minute })
}

func (c *config) finish(sizes, threads, memory, diskBytes string) error {
	for _, s := range list(sizes) {
		size, err := parseSize(s)
		if err != nil || size < 4*kib || size > 256*mib {
			return fmt.Errorf("-sizes: %q is not a size between 4KiB and 256MiB", s)
		}
		c.sizes = append(c.sizes, size)
	}
	for _, s := range list(threads) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 64 {
			return fmt.Errorf("-threads: %q is not a number between 1 and 64", s)
		}
		c.threads = append(c.threads, n)
	}
	if len(c.sizes) == 0 || len(c.threads) == 0 || min(c.rounds, c.entries, c.blocks, c.recover) < 1 {
		return fmt.Errorf("-sizes, -threads, -rounds, -entries, -blocks and -recover must not be empty or 0")
	}
	c.maxThreads = slices.Max(c.threads)
	size, err := parseSize(memory)
	if err != nil {
		return fmt.Errorf("-memory-size: %w", err)
	}
	c.memoryMiB = size / mib
	if c.diskBytes, err = parseSize(diskBytes); err != nil {
		return fmt.Errorf("-disk-bytes: %w", err)
	}
	if !slices.Contains(c.targets, shmName) {
		c.targets = append([]string{shmName}, c.targets...)
	}
	all := append(references(), kvfsName, loopbackName)
	if err := known("-targets", c.targets, all); err != nil {
		return err
	}
	if err := known("-only", c.only, topics()); err != nil {
		return err
	}
	if c.diskDir == "" {
		c.diskDir = defaultDisk()
	}
	return nil
}

// measuredTopics are those of -only; all without it.
func (c *config) measuredTopics() []string {
	if len(c.only) == 0 {
		return topics()
	}
	return c.only
}

// wants reports whether any of the topics is to be measured.
func (c *config) wants(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(c.measuredTopics(), n) })
}

// count is how many blocks of a size are read and rewritten in turn: 256 MiB or more, so that they
// do not stay in a processor's level 2 cache, but at most 2,048.
func (c *config) count(size int) int {
	if c.quick {
		return max(2, min(64, 16*mib/size))
	}
	return max(24, min(2048, 256*mib/size))
}

func defaultDisk() string {
	if dir, err := os.UserCacheDir(); err == nil && os.MkdirAll(dir, 0o700) == nil {
		return dir
	}
	return os.TempDir()
}

func known(name string, values, allowed []string) error {
	for _, v := range values {
		if !slices.Contains(allowed, v) {
			return fmt.Errorf("%s: %q is none of %s", name, v, strings.Join(allowed, ", "))
		}
	}
	return nil
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func parseSize(s string) (int, error) {
	for suffix, unit := range map[string]int{"KiB": kib, "MiB": mib, "GiB": gib} {
		if digits, ok := strings.CutSuffix(s, suffix); ok {
			n, err := strconv.Atoi(digits)
			if err != nil || n < 1 || n > 1<<20 {
				return 0, fmt.Errorf("%q is not a size", s)
			}
			return n * unit, nil
		}
	}
	return 0, fmt.Errorf("%q is not a size such as 64KiB", s)
}

func sizeText(size int) string {
	if size >= mib {
		return fmt.Sprintf("%d MiB", size/mib)
	}
	return fmt.Sprintf("%d KiB", size/kib)
}
