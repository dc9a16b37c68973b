package config

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// memInfo is where Linux says how much RAM there is, in kB.
const memInfo = "/proc/meminfo"

// minMemory is the least default of memory.size.
const minMemory = 64 * scalar.MiB

// maxQueue is the largest default of disk.cascade_queue and peer.queue: a device or
// a link that does 1 GiB/s needs a second for it.
const maxQueue = scalar.GiB

// rationalize fills in what follows from other settings or from the machine.
func rationalize(c *Config, src Sources) error {
	if err := rationalizeMemory(c, src.MemTotal); err != nil {
		return err
	}
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
	// Root has a runtime directory in a login, and none in a service: both must mean
	// the same socket.
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
func rationalizeMemory(c *Config, memTotal scalar.Size) error {
	if c.Mode != ModeEmbedded || c.Origin("memory.size").Source != Default {
		return nil
	}
	if memTotal == 0 {
		var err error
		if memTotal, err = readMemTotal(memInfo); err != nil {
			return &Error{Path: "memory.size", Err: fmt.Errorf("no default, set it: %w", err)}
		}
		if limit, ok := MemoryLimit(); ok {
			memTotal = min(memTotal, limit)
		}
	}
	c.Memory.Size = max(memTotal/4/scalar.MiB*scalar.MiB, minMemory)
	return nil
}

// readMemTotal reads the line "MemTotal: <n> kB".
func readMemTotal(name string) (scalar.Size, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "MemTotal:") {
			continue
		}
		var kilobytes scalar.Size
		if _, err := fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &kilobytes); err != nil {
			return 0, fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
		}
		return kilobytes * scalar.KiB, nil
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("%s: no line MemTotal", name)
}
