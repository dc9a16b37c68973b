package doctor

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// machineChecks are about the kernel and its limits.
func machineChecks() []Check {
	return []Check{
		{Name: "kernel", Run: checkKernel},
		{Name: "fuse device", Run: checkFuse},
		{Name: "fusermount", Run: checkFusermount},
		{Name: "read path", Run: needStatus(checkReadPath)},
		{Name: "io_uring", Run: needConfig(checkUring)},
		{Name: "open files", Run: needConfig(checkFiles)},
		{Name: "locked memory", Run: needConfig(checkLocked)},
	}
}

// passthroughSince is the first Linux with FUSE passthrough.
const passthroughMajor, passthroughMinor = 6, 9

func checkKernel(_ context.Context, e *Env) Result {
	text, err := os.ReadFile(e.path("proc/sys/kernel/osrelease"))
	if err != nil {
		return fail("mount /proc", "the version of the kernel cannot be read: %v", err)
	}
	release := strings.TrimSpace(string(text))
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fail("mount /proc", "%q is not a version of Linux", release)
	}
	switch {
	case major < passthroughMajor || major == passthroughMajor && minor < passthroughMinor:
		return warn("Linux 6.9 or later", "Linux %s has no FUSE passthrough: all bytes go through the daemon", release)
	case e.UID != 0:
		return warn("run kvfs as root", "Linux %s has FUSE passthrough, which only root may use: all bytes go through the daemon", release)
	}
	return ok("Linux %s has FUSE passthrough", release)
}

func checkFuse(_ context.Context, e *Env) Result {
	path := e.path("dev/fuse")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return ok("%s can be opened", path)
	case errors.Is(err, iofs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fail("modprobe fuse; for a container, --device=/dev/fuse", "%v", err)
	}
	return fail("chmod 0666 /dev/fuse; for a container, --device=/dev/fuse", "%v", err)
}

func checkFusermount(_ context.Context, e *Env) Result {
	if e.UID == 0 {
		return skip("root mounts without it")
	}
	for _, name := range []string{"fusermount3", "fusermount"} {
		path, err := e.LookPath(name)
		if err != nil {
			continue
		}
		info, err := os.Stat(path)
		if err == nil && info.Mode()&os.ModeSetuid == 0 {
			return warn("chmod u+s "+path, "%s is not set-uid: it may not be allowed to mount", path)
		}
		return ok("%s is there", path)
	}
	return fail("install fuse3", "fusermount3 is not installed, without which only root can mount")
}

func checkReadPath(_ context.Context, _ *Env, s *status.Document) Result {
	switch m := &s.Mount; {
	case m.ReadPath == "passthrough":
		return ok("the kernel reads open blocks by itself")
	case m.PathReason == "":
		return skip("memory.passthrough is off: reads go by %s", show.OrDash(m.ReadPath))
	default:
		return warn("see docs/operations.md: Opens or reads are slow", "reads go by %s, not by passthrough: %s", show.OrDash(m.ReadPath), m.PathReason)
	}
}

func checkUring(ctx context.Context, e *Env, cfg *config.Config) Result {
	if len(cfg.Disk.Dirs) == 0 {
		return skip("only an SSD tier uses it, and none is configured")
	}
	if cfg.DirectIO.Engine == directioPread {
		return skip("directio.engine is pread")
	}
	bad := warn
	if cfg.DirectIO.Engine != config.Auto {
		bad = fail // the start fails
	}
	const sysctl = "kernel.io_uring_disabled"
	text, err := os.ReadFile(e.path("proc/sys/kernel/io_uring_disabled"))
	if v := strings.TrimSpace(string(text)); err == nil && (v == "2" || v == "1" && e.UID != 0) {
		return bad("sysctl "+sysctl+"=0", "the sysctl %s is %s: the SSD tier uses pread, with more CPU", sysctl, v)
	}
	if err := e.Uring(ctx); err != nil {
		return bad("allow io_uring in the seccomp profile of the container", "io_uring does not work: %v", err)
	}
	return ok("io_uring works")
}

// directioPread is the value of directio.engine without io_uring.
const directioPread = "pread"

// limit returns a limit of the daemon of the mount, or else of this process.
func (e *Env) limit(name string) (uint64, error) {
	pid := "self"
	if e.PID > 0 {
		pid = strconv.Itoa(e.PID)
	}
	text, err := os.ReadFile(e.path("proc", pid, "limits"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		rest, is := strings.CutPrefix(line, name+" ")
		if fields := strings.Fields(rest); is && len(fields) > 1 {
			if fields[0] == "unlimited" {
				return math.MaxUint64, nil
			}
			return strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("no line %q in the limits of process %s", name, pid)
}

func checkFiles(_ context.Context, e *Env, cfg *config.Config) Result {
	limit, err := e.limit("Max open files")
	if err != nil {
		return skip("the limit cannot be read: %v", err)
	}
	if need := daemon.Descriptors(cfg); limit < need {
		return fail(fmt.Sprintf("ulimit -n %d, LimitNOFILE=%[1]d or --ulimit nofile=%[1]d", need), "%d files may be open, and the settings need %d", limit, need)
	}
	return ok("%s files may be open, and the settings need %d", number(limit), daemon.Descriptors(cfg))
}

func checkLocked(_ context.Context, e *Env, cfg *config.Config) Result {
	if cfg.Bind == "" || cfg.Peer.Transport == config.TransportTCP {
		return skip("only RDMA pins memory, and it is not used")
	}
	if e.UID == 0 {
		return ok("root may pin memory beyond the limit")
	}
	limit, err := e.limit("Max locked memory")
	if err != nil {
		return skip("the limit cannot be read: %v", err)
	}
	need := rails.PinnedBytes(cfg)
	bad := warn
	if cfg.Peer.Transport == config.TransportRDMA {
		bad = fail
	}
	if limit < uint64(need) {
		return bad("ulimit -l unlimited, LimitMEMLOCK=infinity or --ulimit memlock=-1", "%s may be pinned, and RDMA needs %s", show.Bytes(int64(limit)), show.Bytes(need))
	}
	return ok("RDMA may pin the %s that it needs", show.Bytes(need))
}

// number returns a limit in words.
func number(n uint64) string {
	if n == math.MaxUint64 {
		return "any number of"
	}
	return strconv.FormatUint(n, 10)
}
