package config

import (
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// largeBlock is the size of a large block of an engine: see docs/sizing.md.
const largeBlock = 32 * scalar.MiB

// small warns of a memory that is given and holds no large block.
func (l *loader) small() []string {
	const path = "memory.size"
	if o := l.cfg.Origin(path); l.cfg.Mode == ModeEmbedded && o.Source != Default && l.cfg.Memory.Size < largeBlock {
		return []string{fmt.Sprintf("%v: %s: %v holds no block that is larger, and engines have blocks of up to %v: writes of such a block fail with ENOSPC. docs/sizing.md says how large blocks are",
			o, path, l.cfg.Memory.Size, scalar.Size(largeBlock))}
	}
	return nil
}

// MemoryLimit returns the least limit of memory of the control groups that this process is in, of version
// 2 or 1; false if there is none. The pages of the memory tier count against it.
func MemoryLimit() (scalar.Size, bool) { return MemoryLimitBelow("/") }

// MemoryLimitBelow is MemoryLimit with /proc and /sys below root.
//
// Source: cgroups(7).
func MemoryLimitBelow(root string) (scalar.Size, bool) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, false
	}
	const base = "sys/fs/cgroup"
	least := scalar.Size(math.MaxInt64)
	for line := range strings.Lines(string(text)) {
		// hierarchy:controllers:path, with 0 and no controllers for version 2
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		dir, file := filepath.Join(root, base), "memory.max"
		switch {
		case fields[1] == "memory":
			dir, file = filepath.Join(dir, "memory"), "memory.limit_in_bytes"
		case fields[0] != "0" || fields[1] != "":
			continue
		}
		// A container sees its own group at the top, but may be told the path of the machine: what is not
		// there has no limit.
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			if n, err := readLimit(filepath.Join(dir, at, file)); err == nil {
				least = min(least, n)
			}
			if at == "/" {
				break
			}
		}
	}
	return least, least < 1<<60 // no limit is the largest number of pages in version 1
}

// readLimit reads a limit; "max" is none.
func readLimit(name string) (scalar.Size, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return scalar.Size(n), nil
}
