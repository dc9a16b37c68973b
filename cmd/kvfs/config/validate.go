package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// validate checks settings against each other; each alone was checked when it
// was decoded. A setting with a violation is not looked at again.
func (l *loader) validate() {
	l.validateMode()
	l.validateMemory()
	l.validateDisk()
	l.validateTiers()
	l.validateStaging()
	l.validateGroups()
	l.validatePeers()
	l.validateRDMA()
	l.validateSpecs()
	l.validateEvents()
}

// validateMode checks what the modes demand of memory and disk. Source: features of vLLM's Mooncake store connector, whose
// embedded mode needs a segment and whose standalone-store mode must not have one.
func (l *loader) validateMode() {
	c, memory, mode := l.cfg, l.cfg.Origin("memory.size"), l.cfg.Origin("mode")
	if !l.good("mode") {
		return
	}
	if c.Mode == ModeEmbedded {
		if memory.Source != Default && c.Memory.Size == 0 && l.good("memory.size") {
			l.fail(memory, "memory.size", scalar.Violate(scalar.ErrRange, "0 is out of range: mode %s (%v) needs memory", c.Mode, mode))
		} else if memory.Source != Default && c.Memory.Size < scalar.MiB && l.good("memory.size") {
			l.fail(memory, "memory.size", scalar.Violate(scalar.ErrRange, "%v is out of range: want at least %v", c.Memory.Size, scalar.Size(scalar.MiB)))
		}
		return
	}
	if c.Memory.Size != 0 && l.good("memory.size") {
		l.fail(memory, "memory.size", scalar.Violate(scalar.ErrInvalid, "%v excludes mode %s (%v), which contributes no memory: leave it out or set 0", c.Memory.Size, c.Mode, mode))
	}
	if len(c.Disk.Dirs) > 0 && l.good(diskDirs) {
		l.fail(c.Origin(diskDirs), diskDirs, scalar.Violate(scalar.ErrInvalid, "a disk tier excludes mode %s (%v), which contributes no disk: leave it out", c.Mode, mode))
	}
	if len(c.Tiers) > 0 && l.good("tiers") {
		l.fail(c.Origin("tiers"), "tiers", scalar.Violate(scalar.ErrInvalid, "a list of tiers excludes mode %s (%v), which has none: leave it out", c.Mode, mode))
	}
}

func (l *loader) validateMemory() {
	const low, high = "memory.low_watermark", "memory.high_watermark"
	m := l.cfg.Memory
	if m.LowWatermark < m.HighWatermark || !l.good(low, high) {
		return
	}
	l.failLatest(low, high, scalar.Violate(scalar.ErrInvalid, "low_watermark %v (%v) must be below high_watermark %v (%v)",
		m.LowWatermark, l.cfg.Origin(low), m.HighWatermark, l.cfg.Origin(high)))
}

// failLatest records that two settings do not fit each other, at the one that
// comes from the later source; the first if they come from the same.
func (l *loader) failLatest(a, b string, err error) {
	l.fail(l.cfg.Origin(l.latest(a, b)), l.latest(a, b), err)
}

// latest returns which of two settings comes from the later source; a if both do.
func (l *loader) latest(a, b string) string {
	if l.cfg.Origin(a).Source < l.cfg.Origin(b).Source {
		return b
	}
	return a
}

// validateDisk checks that no directory of the SSD tier holds another one, or the memory tier, or is held by it: each of
// them takes all files in it for its own. Names are compared, not what symbolic links make of them.
func (l *loader) validateDisk() {
	l.validateSSD()
	type place struct{ setting, path string }
	var taken []place
	if dir := l.cfg.Memory.Dir; dir != "" && l.good("memory.dir") {
		taken = append(taken, place{"memory.dir", absolute(dir)})
	}
	for i, d := range l.cfg.Disk.Dirs {
		at := fmt.Sprintf("disk.dirs[%d].path", i)
		if d.Path == "" || !l.good(at) {
			continue
		}
		path := absolute(d.Path)
		for _, t := range taken {
			how := ""
			switch {
			case t.path == path:
				how = "is"
			case beneath(path, t.path):
				how = "is below"
			case beneath(t.path, path):
				how = "is above"
			default:
				continue
			}
			l.fail(l.cfg.Origin(at), at, scalar.Violate(scalar.ErrInvalid, "%q %s %s, %q", d.Path, how, t.setting, t.path))
			break
		}
		taken = append(taken, place{at, path})
	}
}

// absolute returns path from the root, clean.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path) // the working directory is gone: paths that are absolute still compare
}

// beneath reports whether path lies below dir; both are absolute and clean.
func beneath(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") && path != dir
}

// minUsable is the least usable staging memory: more than any block needs that is too small to be moved in place.
const minUsable = scalar.MiB

// Direct I/O moves whole aligned units, and needs room around a block for where it begins and ends. Source:
// _DIRECT_IO_ALIGNMENT and _DIRECT_IO_PADDING_BYTES of vLLM's Mooncake store connector.
const (
	stagingAlignment = 4 * scalar.KiB
	stagingPadding   = 8 * scalar.KiB
)

// padded returns the staging memory that a block of this size may need.
func padded(size scalar.Size) scalar.Size {
	if size > math.MaxInt64-stagingAlignment-stagingPadding {
		return math.MaxInt64 // more than there is, in any case
	}
	return (size+stagingAlignment-1)/stagingAlignment*stagingAlignment + stagingPadding
}

// validateStaging checks that what is usable of the staging memory suffices, for itself and for the blocks of each group,
// where there is a tier that needs it. Source: the staging budget of vLLM's Mooncake store connector, which there is none of
// with offloading off.
func (l *loader) validateStaging() {
	const size, ratio = "staging.size", "staging.usable_ratio"
	st := l.cfg.Staging
	usable := scalar.Size(float64(st.Size) * st.UsableRatio)
	if len(l.cfg.Disk.Dirs) == 0 || !l.good(size, ratio) {
		return
	}
	product := fmt.Sprintf("size %v (%v) times usable_ratio %v (%v) is %v", st.Size, l.cfg.Origin(size), st.UsableRatio, l.cfg.Origin(ratio), usable)
	if usable < minUsable {
		l.failLatest(size, ratio, scalar.Violate(scalar.ErrInvalid, "%s: want at least %v", product, minUsable))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(l.cfg.Groups)) {
		at := join(joinName("groups", name), "block_size")
		block := l.cfg.Groups[name].BlockSize
		if need := padded(block); block != 0 && need > usable && l.good(at) {
			l.failLatest(at, l.latest(size, ratio), scalar.Violate(scalar.ErrInvalid, "a block of %v (%v) needs %v of staging, and %s",
				block, l.cfg.Origin(at), need, product))
		}
	}
}

// validateGroups checks that what is to be enforced is said.
func (l *loader) validateGroups() {
	for _, name := range slices.Sorted(maps.Keys(l.cfg.Groups)) {
		g, at := l.cfg.Groups[name], joinName("groups", name)
		if strict := join(at, "strict"); g.Strict && g.BlockSize == 0 && l.good(strict, join(at, "block_size")) {
			l.fail(l.cfg.Origin(strict), strict, scalar.Violate(scalar.ErrInvalid, "strict needs block_size"))
		}
	}
}

// good reports whether none of the settings has a violation.
func (l *loader) good(paths ...string) bool {
	for _, path := range paths {
		if l.bad[path] {
			return false
		}
	}
	return true
}

// lookup returns the textual setting at path, which must exist.
func lookup(path string) *textSetting {
	for _, t := range textSettings() {
		if t.path == path {
			return t
		}
	}
	panic("config: no setting " + path)
}

// minMemory is the least default of memory.size.
const minMemory = 64 * scalar.MiB

// maxQueue is the largest default of disk.cascade_queue and peer.queue: a device or
// a link that does 1 GiB/s needs a second for it.
const maxQueue = scalar.GiB

// rationalize fills in what follows from other settings or from the machine.
func rationalize(c *Config, src Sources) error {
	rationalizeMemory(c, src.MemTotal)
	if c.Disk.CascadeQueue == 0 {
		c.Disk.CascadeQueue = min(c.Memory.Size/4, maxQueue)
	}
	for i := range c.Tiers {
		c.Tiers[i].Name = cmp.Or(c.Tiers[i].Name, c.Tiers[i].Type)
	}
	if err := rationalizeStore(c, os.Geteuid(), environment(src.Environ)["XDG_RUNTIME_DIR"]); err != nil {
		return err
	}
	return rationalizePeers(c, src.Hostname)
}

// rationalizeStore places the socket of the owner where only the user uid comes.
func rationalizeStore(c *Config, uid int, runtimeDir string) error {
	if c.Store.Socket != "" {
		return nil
	}
	socket := fmt.Sprintf("/run/kvfs/%d/store.sock", uid)
	// Root has a runtime directory in a login, and none in a service: both must mean the same socket.
	if uid != 0 && filepath.IsAbs(runtimeDir) {
		socket = filepath.Join(runtimeDir, "kvfs", "store.sock")
	}
	if err := checkSocket(socket); err != nil {
		return &Error{Path: "store.socket", Err: fmt.Errorf("no default, set it: %w", err)}
	}
	c.Store.Socket = socket
	return nil
}

// rationalizeMemory gives the memory tier its share of the RAM, or of what its control group may
// have if that is less; zero means to look.
func rationalizeMemory(c *Config, memTotal scalar.Size) {
	if c.Mode != ModeEmbedded || c.Origin("memory.size").Source != Default {
		return
	}
	if memTotal == 0 {
		memTotal = TotalMemory()
		if limit, ok := MemoryLimit(); ok {
			memTotal = min(memTotal, limit)
		}
	}
	c.Memory.Size = max(memTotal/4/scalar.MiB*scalar.MiB, minMemory)
}

// TotalMemory returns the RAM of the machine.
func TotalMemory() scalar.Size {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return math.MaxInt64
	}
	return scalar.Size(si.Totalram) * scalar.Size(si.Unit)
}

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

// MemoryLimitBelow returns what MemoryLimit would on a machine whose /proc and /sys are below root.
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
		// A container sees its own group at the top, but may be told the path of the machine: what is not there has no limit.
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

// validateSpecs checks that each spec is one that look-ups can obey. All reasons against one stand in one violation. A spec
// with a violation in it is left out: what New has to say about the rest of it would mislead.
func (l *loader) validateSpecs() {
	bad := slices.Sorted(maps.Keys(l.bad))
	for n, name := range slices.Sorted(maps.Keys(l.cfg.Specs)) {
		at := joinName("specs", name)
		if n == hybrid.MaxSpecs {
			l.fail(l.cfg.Origin(at), "specs", scalar.Violate(scalar.ErrRange, "there are %d: want at most %d", len(l.cfg.Specs), hybrid.MaxSpecs))
			return
		}
		if i, _ := slices.BinarySearch(bad, at+"."); !l.good(at) || i < len(bad) && strings.HasPrefix(bad[i], at+".") {
			continue
		}
		if _, err := hybrid.New(l.cfg.Specs[name]); err != nil {
			l.fail(l.cfg.Origin(at), at, scalar.Violate(scalar.ErrInvalid, "%v", err))
		}
	}
}

// heeded are the settings that a mount of mode standalone-store uses, beside those of which any
// value but the default is an error. All others are for the owner.
var heeded = map[string]bool{
	"mode": true, "store.socket": true, "store.owner_timeout": true, "node_name": true, "drain_timeout": true,
	"memory.passthrough": true, "mount.allow_other": true, "mount.entry_timeout": true, "mount.attr_timeout": true,
	"mount.max_write": true, "mount.fs_name": true, "log.level": true, "log.format": true,
}

// idle says, in one line, which settings were given and have no effect in the mode. What
// says the same as the default does is none of them: a file may spell out everything.
func (l *loader) idle() []string {
	if l.cfg.Mode != ModeStandaloneStore {
		return nil
	}
	paths := l.given(schema(), reflect.ValueOf(l.cfg).Elem(), reflect.ValueOf(defaultConfig()).Elem())
	if len(paths) == 0 {
		return nil
	}
	return []string{"mode " + l.cfg.Mode + " (" + l.cfg.Origin("mode").String() + "): only kvfs serve heeds " + strings.Join(paths, ", ")}
}

// given lists the settings below s that are not heeded, and of which the value is not the default.
func (l *loader) given(s *setting, value, def reflect.Value) []string {
	var paths []string
	for _, child := range s.settings {
		v, d := value.Field(child.index), def.Field(child.index)
		idle := false
		switch child.shape {
		case section:
			paths = append(paths, l.given(child, v, d)...)
		case table, list:
			idle = v.Len() > 0
		default: // what has no origin follows from other settings
			idle = !heeded[child.path] && l.cfg.Origin(child.path).Source != Default && format(v) != format(d)
		}
		if idle {
			paths = append(paths, child.path)
		}
	}
	return paths
}
