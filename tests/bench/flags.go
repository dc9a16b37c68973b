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

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// config is the parsed flags, and what follows from -quick.
type config struct {
	kvfs, diskDir     string
	sizes, threads    []int
	rounds            int
	only              []string // topics
	quick, list       bool
	plotDir, docsPath string
	limit             time.Duration
	maxThreads        int

	shmDir    string // a tmpfs
	passTime  time.Duration
	memoryMiB int // of kvfs, where the topic does not need a certain size
	entries   int // of the directory of readdir
	blocks    int // of 4 KiB for heap, in steps from 1000 on, as far as there is memory: about 7 KiB each
	diskBytes int // blocks of each size for the topics of the disk tier
	recover   int // blocks of 4 KiB for recovery, about 7 KiB of memory and 9 KiB of disk each; tiny blocks for the index of object
}

func parseFlags(args []string) (*config, error) {
	c := &config{shmDir: "/dev/shm", passTime: 300 * time.Millisecond, memoryMiB: 3 * kib, entries: 100_000, blocks: 10_000_000, diskBytes: gib, recover: 1_000_000}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&c.kvfs, "kvfs", "", "kvfs `binary`; empty: build ./cmd/kvfs")
	f.StringVar(&c.diskDir, "disk", defaultDisk(), "`directory` on a disk")
	sizes := f.String("sizes", "64KiB,256KiB,1MiB,2MiB,4MiB,16MiB", "block sizes")
	threads := f.String("threads", "1,2", "client threads")
	f.IntVar(&c.rounds, "rounds", 5, "rounds over all targets; figures are their medians")
	only := f.String("only", strings.Join(topics(), ","), "topics to measure")
	f.BoolVar(&c.list, "list", false, "list the topics")
	f.BoolVar(&c.quick, "quick", false, "smoke test: few blocks, one round, a minute")
	f.StringVar(&c.plotDir, "plots", "", "draw what was measured as SVG in `directory`")
	f.StringVar(&c.docsPath, "docs", "", "put the tables of what was measured into the page `file`, if all went well")
	f.DurationVar(&c.limit, "timeout", time.Hour, "stop, and kill hanging daemons, after this time")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if c.quick {
		if c.docsPath != "" {
			return nil, errors.New("-docs: a -quick run measures nothing that a page could tell")
		}
		c.passTime, c.memoryMiB, c.entries, c.blocks, c.diskBytes, c.recover = 20*time.Millisecond, 512, 2000, 5000, 48*mib, 20_000
		given := map[string]bool{}
		f.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["sizes"] {
			*sizes = "64KiB,1MiB,4MiB,16MiB"
		}
		if !given["rounds"] {
			c.rounds = 1
		}
		if !given["timeout"] {
			c.limit = 10 * time.Minute
		}
	}
	c.only = list(*only)
	return c, c.finish(*sizes, *threads)
}

func (c *config) finish(sizes, threads string) error {
	for _, s := range list(sizes) {
		size, err := scalar.ParseSize(s)
		if err != nil || size < 4*kib || size > 256*mib {
			return fmt.Errorf("-sizes: %q is not a size between 4KiB and 256MiB", s)
		}
		c.sizes = append(c.sizes, int(size))
	}
	for _, s := range list(threads) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 64 {
			return fmt.Errorf("-threads: %q is not a number between 1 and 64", s)
		}
		c.threads = append(c.threads, n)
	}
	if len(c.sizes) == 0 || len(c.threads) == 0 || len(c.only) == 0 || c.rounds < 1 {
		return errors.New("-sizes, -threads, -only and -rounds must not be empty or 0")
	}
	c.maxThreads = slices.Max(c.threads)
	for _, name := range c.only {
		if !slices.Contains(topics(), name) {
			return fmt.Errorf("-only: %q is none of %s", name, strings.Join(topics(), ", "))
		}
	}
	return nil
}

// count is how many blocks of a size are read and rewritten in turn: 256 MiB or more, so that they do not stay in a
// processor's level 2 cache, but at most 2,048.
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

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func sizeText(size int) string {
	if size >= mib {
		return fmt.Sprintf("%d MiB", size/mib)
	}
	return fmt.Sprintf("%d KiB", size/kib)
}
