package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/tiers/block"
)

// evictBatch bounds the names in one request to the daemon, in bytes of JSON. It
// leaves half of what the daemon takes.
const evictBatch = 8 << 20

// notFound is the reason of the daemon for a path at which there is nothing.
const notFound = "not found"

// evictFlags are the flags of kvfs evict.
type evictFlags struct {
	tier             string
	all, force, json bool
}

func newEvictCommand() *cobra.Command {
	var flags evictFlags
	cmd := &cobra.Command{
		Use:   "evict --tier TIER [--force] [--json] (--all DIR | PATH...)",
		Short: "Drop blocks from one tier",
		Long: "Drop blocks from one tier of a mount: memory, or disk.\n\n" +
			"PATH is a block, or a directory for all blocks below it; - reads names from standard input,\n" +
			"one a line. All must be of one mount. With --all, every block of the tier at the mount DIR.\n\n" +
			"What only this tier holds stays, unless --force is given: such a block is lost then. Blocks that\n" +
			"are open, pinned or being written stay in any case. A block that another tier holds comes back\n" +
			"from there when it is read.\n\n" +
			"Exit codes: 0 also if blocks stayed; 1 if there is nothing at a PATH, or the daemon refused;\n" +
			"5 if it is not a kvfs mount.",
		DisableFlagsInUseLine: true,

		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runEvict(cmd, flags, args) },
	}
	cmd.Flags().StringVar(&flags.tier, "tier", "", "the tier: memory or disk (required)")
	cmd.Flags().BoolVar(&flags.all, "all", false, "every block of the tier")
	cmd.Flags().BoolVar(&flags.force, "force", false, "also blocks that no other tier holds: they are lost")
	cmd.Flags().BoolVar(&flags.json, "json", false, "print the answer as JSON")
	return cmd
}

// evictTarget is where kvfs evict finds mounts and their daemons.
type evictTarget struct {
	mounts []mountInfo
	open   func(control string) (io.ReadWriteCloser, error) // the file .kvfs/evict
}

// runEvict finds the mount, asks its daemon and prints what it says.
func runEvict(cmd *cobra.Command, flags evictFlags, args []string) error {
	switch {
	case flags.tier == "":
		return usageError(cmd, "--tier is missing: memory or disk")
	case flags.all && len(args) != 1:
		return usageError(cmd, "--all wants one mount, %d given", len(args))
	case len(args) == 0:
		return usageError(cmd, "which blocks? Name them, or give --all DIR")
	}
	table, err := os.Open(mountInfoFile)
	if err != nil {
		return err
	}
	defer table.Close()
	mounts, err := readMounts(table)
	if err != nil {
		return err
	}
	open := func(control string) (io.ReadWriteCloser, error) { return os.OpenFile(control, os.O_RDWR, 0) }
	return evictTarget{mounts, open}.run(cmd, flags, args)
}

// run is runEvict on a target.
func (e evictTarget) run(cmd *cobra.Command, flags evictFlags, args []string) error {
	names := args
	if !flags.all {
		var err error
		if names, err = evictNames(args, cmd.InOrStdin()); err != nil {
			return err
		}
	}
	mount, paths, err := belowMount(e.mounts, names)
	if err != nil {
		return withCode(exitNotMount, err)
	}
	// The root of the mount stands for all.
	root := slices.Contains(paths, ".")
	if flags.all && !root {
		return withCode(exitNotMount, fmt.Errorf("%s is not a kvfs mount: it is in the one at %s", args[0], mount))
	}
	if root {
		paths = nil
	}
	answer, err := e.ask(mount, flags, paths)
	if err != nil {
		return err
	}
	if err := printEvict(cmd.OutOrStdout(), flags, answer); err != nil {
		return err
	}
	return absent(answer)
}

// absent is the error about paths that are not there.
func absent(answer *fs.EvictAnswer) error {
	var names []string
	for _, kept := range answer.Kept {
		if kept.Reason == notFound {
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

// evictNames returns the names in args, with those in the lines of stdin in the
// place of "-".
func evictNames(args []string, stdin io.Reader) ([]string, error) {
	var names []string
	for _, arg := range args {
		if arg != "-" {
			names = append(names, arg)
			continue
		}
		lines := bufio.NewScanner(stdin)
		lines.Buffer(nil, unix.PathMax*2)
		for lines.Scan() {
			if line := lines.Text(); line != "" {
				names = append(names, line)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("standard input has no names")
	}
	for _, name := range names {
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("%q is not UTF-8: evict the directory instead", name)
		}
	}
	return names, nil
}

// belowMount returns the one mount that all names are in, and their paths below
// it. It does not look at what is in the mount: a look-up is a promise that the
// block stays for a while, and would keep it from being evicted.
func belowMount(mounts []mountInfo, names []string) (mount string, paths []string, err error) {
	dirs := map[string]string{} // by directory as it was named
	for _, name := range names {
		abs, err := filepath.Abs(name)
		if err != nil {
			return "", nil, err
		}
		dir, base := filepath.Split(abs)
		resolved, known := dirs[dir]
		if !known {
			resolved = resolveOutside(mounts, dir)
			dirs[dir] = resolved
		}
		m, path, err := mountOf(mounts, resolveOutside(mounts, filepath.Join(resolved, base)))
		switch {
		case err != nil:
			return "", nil, fmt.Errorf("%s %w", name, err)
		case mount == "":
			mount = m
		case mount != m:
			return "", nil, fmt.Errorf("%s is in the mount %s, others are in %s", name, m, mount)
		}
		paths = append(paths, path)
	}
	return mount, paths, nil
}

// resolveOutside follows the symbolic links in an absolute path, up to where a
// kvfs mount begins. What cannot be resolved stays as it is.
func resolveOutside(mounts []mountInfo, path string) string {
	done := "/"
	for rest := range strings.SplitSeq(strings.Trim(filepath.Clean(path), "/"), "/") {
		next := filepath.Join(done, rest)
		if _, _, err := mountOf(mounts, next); err != nil {
			if resolved, err := filepath.EvalSymlinks(next); err == nil {
				next = resolved
			}
		}
		done = next
	}
	return done
}

// mountOf returns the kvfs mount that the absolute path is in, and the path below
// it, "." for the mount itself.
func mountOf(mounts []mountInfo, path string) (mount, below string, err error) {
	var in mountInfo
	for _, m := range mounts {
		inside := m.point == path || m.point == "/" || strings.HasPrefix(path, m.point+"/")
		if inside && len(m.point) >= len(in.point) { // later ones lie on top
			in = m
		}
	}
	if in.fsType != fsType {
		return "", "", errors.New("is not in a kvfs mount")
	}
	below, err = filepath.Rel(in.point, path)
	return in.point, below, err
}

// ask sends the paths to the daemon, in as many requests as it takes, and returns
// the sum of its answers. No paths means all.
func (e evictTarget) ask(mount string, flags evictFlags, paths []string) (*fs.EvictAnswer, error) {
	f, err := e.open(filepath.Join(mount, block.Reserved, "evict"))
	if err != nil {
		return nil, explainStatus(mount, err)
	}
	defer f.Close()
	sum := &fs.EvictAnswer{Kept: []fs.EvictKept{}}
	ask := fs.EvictRequest{Tier: flags.tier, Force: flags.force, All: len(paths) == 0}
	for {
		ask.Paths, paths = cutBatch(paths)
		answer, err := askOnce(f, ask)
		if err != nil {
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

// cutBatch returns the paths of the next request and the rest.
func cutBatch(paths []string) (batch, rest []string) {
	size := 0
	for i, path := range paths {
		text, _ := json.Marshal(path) // a string always has a JSON form
		if size += len(text) + 1; size > evictBatch && i > 0 {
			return paths[:i], paths[i:]
		}
	}
	return paths, nil
}

// askOnce writes one request and reads its answer.
func askOnce(f io.ReadWriter, ask fs.EvictRequest) (*fs.EvictAnswer, error) {
	request, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(append(request, '\n')); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string `json:"error"`
		fs.EvictAnswer
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("answer of the daemon: %w", err)
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return &answer.EvictAnswer, nil
}

// printEvict writes the answer.
func printEvict(w io.Writer, flags evictFlags, answer *fs.EvictAnswer) error {
	if flags.json {
		text, err := json.MarshalIndent(struct {
			Tier string `json:"tier"`
			*fs.EvictAnswer
		}{flags.tier, answer}, "", "  ")
		if err != nil {
			return err
		}
		_, err = w.Write(append(text, '\n'))
		return err
	}
	fmt.Fprintf(w, "evicted %s (%s) from %s\n", countBlocks(answer.Blocks), humanBytes(answer.Bytes), flags.tier)
	if answer.KeptTotal == 0 {
		return nil
	}
	fmt.Fprintf(w, "kept %s:\n", countBlocks(answer.KeptTotal))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, kept := range answer.Kept {
		fmt.Fprintf(t, "  %s\t%s\n", kept.Reason, kept.Path)
	}
	if more := answer.KeptTotal - int64(len(answer.Kept)); more > 0 {
		fmt.Fprintf(t, "  and %d more\n", more)
	}
	return t.Flush()
}

// countBlocks returns a number of blocks in words.
func countBlocks(n int64) string {
	if n == 1 {
		return "1 block"
	}
	return fmt.Sprintf("%d blocks", n)
}
