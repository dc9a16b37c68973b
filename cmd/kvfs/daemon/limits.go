package daemon

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/mem"
)

// spareDescriptors is for the directories of the memory tier, the mount, ports, and some
// hundred blocks that are open or in flight.
const spareDescriptors = 1024

// checkDescriptors fails if this process may open fewer files than Descriptors. Go has raised the limit as far as it may.
func checkDescriptors(cfg *config.Config) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	if need := Descriptors(cfg); limit.Cur < need {
		return fmt.Errorf("this process may open %d files (RLIMIT_NOFILE), and needs %d with these settings: raise ulimit -n, LimitNOFILE= or --ulimit nofile=", limit.Cur, need)
	}
	return nil
}

// Bounds of the connections that other machines may have to a port for peers, and to that of blocks.
const (
	minConns = 64
	maxConns = 16384
	maxBulk  = 4096
)

// channelConns returns how many connections other machines may have to the control channel, and to that of blocks: each a
// quarter of what this process may open. So local files can be opened whatever comes from outside.
func channelConns() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return minConns
	}
	return int(max(minConns, min(limit.Cur/4, maxConns)))
}

// clientDescriptors returns how many descriptors clients may hold: all but those that Descriptors counts, and half of the spare.
func clientDescriptors(cfg *config.Config) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return spareDescriptors / 2
	}
	rest := min(limit.Cur, math.MaxInt32) - min(limit.Cur, math.MaxInt32, Descriptors(cfg))
	return int(rest) + spareDescriptors/2
}

// Descriptors returns how many files a daemon may have open: the slabs of the SSD tier, which stay open, the blocks on their
// way to buckets, and spare ones.
func Descriptors(cfg *config.Config) uint64 {
	need := uint64(spareDescriptors)
	for _, t := range cfg.Tiers {
		if t.Options != nil { // maybe a driver.Packer
			need += lane.PackFiles
		}
	}
	for _, d := range cfg.Disk.Dirs {
		size := int64(d.Size)
		var st unix.Statfs_t
		if unix.Statfs(d.Path, &st) == nil || unix.Statfs(filepath.Dir(d.Path), &st) == nil { // the directory may not exist yet
			size = min(size, int64(st.Blocks)*st.Bsize)
		}
		need += uint64(size/max(int64(cfg.Disk.SlabSize), 1)) + 16 // 16 for small directories
	}
	return need
}

// MinRoom is the least room for memory that a file system must have.
const MinRoom = 16 * scalar.MiB

// fitMemory returns cfg, or a copy with smaller memory.size and headroom if the memory lies in
// a shared file system with less room. /dev/shm is one; in containers of Docker it has 64 MiB.
func fitMemory(cfg *config.Config, m *mem.Store, log *zap.Logger) (*config.Config, error) {
	room, err := m.RoomBytes()
	if err != nil {
		return nil, fmt.Errorf("memory tier: %w", err)
	}
	if int64(cfg.Memory.Size)+Headroom(cfg) <= room {
		return cfg, nil
	}
	if room < int64(MinRoom) {
		return nil, refuse(cfg, "memory.size", "%v: the file system of %s has room for %s, need at least %v: remount it with a larger size=, or give a container a larger --shm-size", cfg.Memory.Size, m.Dir(), show.Bytes(room), MinRoom)
	}
	fit := *cfg
	fit.Memory.Headroom = scalar.Size(min(Headroom(cfg), room/8))
	fit.Memory.Size = min(cfg.Memory.Size, scalar.Size(room)-fit.Memory.Headroom)
	log.Warn("memory.size exceeds the room of the file system: using less", zap.String("dir", m.Dir()), zap.Stringer("configured", cfg.Memory.Size),
		zap.Stringer("memory", fit.Memory.Size), zap.Stringer("headroom", fit.Memory.Headroom))
	return &fit, nil
}

// refuse returns the error about a setting that does not fit this machine.
func refuse(cfg *config.Config, path, format string, args ...any) error {
	return exit.With(exit.Config, &config.Error{Origin: cfg.Origin(path), Path: path, Err: fmt.Errorf(format, args...)})
}

// checkMemory fails if the machine, or the control group of this process, has less than memory.size.
func checkMemory(cfg *config.Config, log *zap.Logger) error {
	if total := TotalMemory(); int64(cfg.Memory.Size) > total {
		return refuse(cfg, "memory.size", "%v exceeds the memory of this machine, %s: make it smaller", cfg.Memory.Size, show.Bytes(total))
	}
	limit, ok := config.MemoryLimit()
	switch all := cfg.Memory.Size + scalar.Size(Headroom(cfg)); {
	case !ok:
	case cfg.Memory.Size > limit:
		return refuse(cfg, "memory.size", "%v exceeds the memory limit of the control group of this process, %s: make it smaller, or raise that limit", cfg.Memory.Size, show.Bytes(int64(limit)))
	case all > limit:
		log.Warn("memory.size and its headroom exceed the memory limit of the control group, which the blocks count against: the kernel may kill this process",
			zap.Stringer("memory", cfg.Memory.Size), zap.Stringer("with_headroom", all), zap.Stringer("limit", limit))
	}
	return nil
}

// minHeadroom is the least by which the primary tier's file system exceeds its capacity. The headroom holds
// blocks that grow beyond the group's size so far, and removed blocks that are open.
const minHeadroom = 64 << 20

// Headroom returns by how much the file system of the primary tier may exceed memory.size.
func Headroom(cfg *config.Config) int64 {
	if h := int64(cfg.Memory.Headroom); h > 0 {
		return h
	}
	return max(int64(cfg.Memory.Size)/8, minHeadroom)
}

// TotalMemory returns the RAM of the machine in bytes.
func TotalMemory() int64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return math.MaxInt64
	}
	return int64(si.Totalram) * int64(si.Unit)
}
