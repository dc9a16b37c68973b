package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
)

// memoryChecks are about the memory tier.
func memoryChecks() []Check {
	return []Check{
		{Name: "memory size", Run: needMemory(checkMemorySize), Fits: true},
		{Name: "shared memory", Run: needMemory(checkShared), Fits: true},
		{Name: "huge pages", Run: needMemory(checkHuge)},
		{Name: "tmpfs inodes", Run: needConfig(checkInodes)},
	}
}

// needMemory is a check of a process that has memory of its own.
func needMemory(run func(context.Context, *Env, *config.Config) Result) func(context.Context, *Env) Result {
	return needConfig(func(ctx context.Context, e *Env, cfg *config.Config) Result {
		if cfg.Mode == config.ModeStandaloneStore && cfg.Memory.Size == 0 {
			return skip("in mode standalone-store the owner has the memory")
		}
		return run(ctx, e, cfg)
	})
}

func checkMemorySize(_ context.Context, e *Env, cfg *config.Config) Result {
	size, all := cfg.Memory.Size, cfg.Memory.Size+scalar.Size(daemon.Headroom(cfg))
	const less = "a smaller memory.size"
	from := cfg.Origin("memory.size")
	if int64(size) > e.RAM {
		return fail(less, "memory.size %v (%v) exceeds the memory of this machine, %s", size, from, show.Bytes(e.RAM))
	}
	limit, limited := config.MemoryLimitBelow(e.Root)
	switch {
	case !limited:
		return ok("memory.size %v fits into the memory of this machine, %s, and its control group has no limit", size, show.Bytes(e.RAM))
	case size > limit:
		return fail(less+", or a higher memory limit of the control group", "memory.size %v (%v) exceeds the memory limit of the control group, %s", size, from, show.Bytes(int64(limit)))
	case all > limit:
		return warn(less+", or a higher memory limit of the control group", "memory.size with its headroom, %v, exceeds the memory limit of the control group, %s", all, show.Bytes(int64(limit)))
	}
	return ok("memory.size with its headroom, %v, fits into the memory limit of the control group, %s", all, show.Bytes(int64(limit)))
}

// shared returns the directory of another tmpfs in which the blocks lie, or "" if kvfs mounts its own.
func (e *Env) shared(cfg *config.Config) string {
	switch {
	case cfg.Memory.Dir != "":
		return cfg.Memory.Dir
	case e.UID == 0:
		return ""
	}
	return e.path("dev/shm")
}

// statfsNear asks for the file system of a directory, or of the one above it if it is absent.
func (e *Env) statfsNear(dir string) (st unix.Statfs_t, err error) {
	if err = e.Statfs(dir, &st); err != nil {
		err = e.Statfs(filepath.Dir(dir), &st)
	}
	return st, err
}

func checkShared(_ context.Context, e *Env, cfg *config.Config) Result {
	dir := e.shared(cfg)
	if dir == "" {
		return skip("as root kvfs mounts a tmpfs of its own")
	}
	st, err := e.statfsNear(dir)
	if err != nil {
		return fail("another memory.dir", "%s: %v", dir, err)
	}
	const grow = "mount -o remount,size=SIZE /dev/shm, --shm-size of a container, or a smaller memory.size"
	size, want := int64(st.Blocks)*st.Bsize, int64(cfg.Memory.Size)+daemon.Headroom(cfg)
	switch {
	case uint32(st.Type) != unix.TMPFS_MAGIC:
		return fail("a memory.dir on a tmpfs", "%s is not on a tmpfs", dir)
	case size > 0 && size < int64(daemon.MinRoom):
		return fail(grow, "%s has only %s", dir, show.Bytes(size))
	case size > 0 && size < want:
		return warn(grow, "%s has %s, less than memory.size with its headroom, %s: kvfs uses less", dir, show.Bytes(size), show.Bytes(want))
	}
	return ok("%s has room for memory.size with its headroom, %s", dir, show.Bytes(want))
}

func checkHuge(_ context.Context, e *Env, cfg *config.Config) Result {
	switch {
	case e.shared(cfg) != "":
		return skip("the blocks lie in a tmpfs that kvfs does not mount")
	case cfg.Memory.Huge == "never":
		return skip("memory.huge is never")
	}
	text, err := os.ReadFile(e.path("sys/kernel/mm/transparent_hugepage/shmem_enabled"))
	if err != nil {
		return warn("a kernel with CONFIG_TRANSPARENT_HUGEPAGE", "this kernel has no huge pages for tmpfs: reads are slower")
	}
	if strings.Contains(string(text), "[deny]") {
		return warn("echo never >/sys/kernel/mm/transparent_hugepage/shmem_enabled", "the kernel denies huge pages to every tmpfs: reads are slower")
	}
	return ok("the tmpfs of kvfs may have huge pages (memory.huge %s)", cfg.Memory.Huge)
}

func checkInodes(_ context.Context, e *Env, cfg *config.Config) Result {
	dir := e.shared(cfg)
	if e.Status != nil {
		dir = e.Status.Memory.Dir
	}
	if dir == "" {
		return skip("there is no tmpfs yet")
	}
	st, err := e.statfsNear(dir)
	if err != nil {
		return fail("mount a tmpfs there, or another memory.dir", "%s: %v", dir, err)
	}
	switch {
	case st.Files == 0:
		return ok("the tmpfs of %s has no limit of files", dir)
	case st.Ffree < st.Files/20:
		return warn("mount -o remount,nr_inodes=N on that tmpfs, or larger blocks", "the tmpfs of %s has only %d of %d files left", dir, st.Ffree, st.Files)
	}
	return ok("the tmpfs of %s has %d of %d files left", dir, st.Ffree, st.Files)
}
