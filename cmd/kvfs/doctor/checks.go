package doctor

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	iofs "io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/disk/recovery"
)

func checkConfig(_ context.Context, e *Env) Result {
	if e.Config == nil {
		var all []Result
		for _, err := range exit.Each(e.ConfigErr) {
			remedy := "docs/configuration.md has all settings"
			if at, is := errors.AsType[*config.Error](err); is {
				remedy = "correct " + at.Origin.String() + "; " + remedy
			}
			all = append(all, fail(remedy, "the configuration %s is refused: %v", e.From, err))
		}
		return worst(all)
	}
	if w := e.Config.Warnings; len(w) > 0 {
		return warn("kvfs config check", "the configuration %s is accepted, with %d warnings: %s", e.From, len(w), strings.Join(w, "; "))
	}
	return ok("the configuration %s is accepted", e.From)
}

// soon is the time before the end of a certificate from which on it is reported.
const soon = 14 * 24 * time.Hour

func checkCertificates(_ context.Context, e *Env, cfg *config.Config) Result {
	if !cfg.TLS.On() {
		return skip("tls is not set")
	}
	const renew = "kvfs certs issue, see docs/security.md"
	f := pki.Files{CA: cfg.TLS.CA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key}
	var chain []*x509.Certificate
	for _, name := range []string{f.CA, f.Cert} {
		found, err := pki.ReadCertificates(name)
		if err != nil {
			return fail("openssl x509 -noout -text -in "+name, "%v", err)
		}
		if i := slices.IndexFunc(found, func(c *x509.Certificate) bool { return e.Now.After(c.NotAfter) }); i >= 0 {
			return fail(renew, "a certificate in %s is expired since %s", name, found[i].NotAfter.UTC().Format(time.RFC3339))
		}
		chain = append(chain, found...)
	}
	loaded, err := pki.Load(f, zap.NewNop())
	if err == nil && cfg.NodeName != "" {
		err = loaded.CheckName(cfg.NodeName)
	}
	if err != nil {
		return fail("openssl x509 -noout -text -in "+f.Cert, "%v", err)
	}
	first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter.UTC()
	until, left := first.Format(time.RFC3339), first.Sub(e.Now)
	if left < soon {
		return warn(renew, "a certificate expires at %s, in %d days", until, int(left.Hours()/24))
	}
	return ok("they can be read, belong together, and are valid until %s", until)
}

func checkKeys(_ context.Context, _ *Env, cfg *config.Config) Result {
	if cfg.Peer.GossipKeys == "" {
		return skip("peer.gossip_keys is not set")
	}
	if _, err := gossip.LoadKeyring(cfg.Peer.GossipKeys); err != nil {
		return fail("kvfs keys create FILE", "%v", err)
	}
	return ok("the keys in %s can be read", cfg.Peer.GossipKeys)
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

func checkWakeUp(_ context.Context, e *Env) Result {
	w := e.WakeUp()
	if w.Dear() {
		return warn("larger blocks: docs/engines/README.md", "%v: small blocks are slow, and several clients at once", w)
	}
	return ok("%v", w)
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

// needDisk is a check of the directories of the SSD tier. The result is the worst of those of each directory.
func needDisk(run func(context.Context, *Env, config.DiskDir) Result) func(context.Context, *Env) Result {
	return needConfig(func(ctx context.Context, e *Env, cfg *config.Config) Result {
		if len(cfg.Disk.Dirs) == 0 {
			return skip("there is no SSD tier")
		}
		var all []Result
		for i, d := range cfg.Disk.Dirs {
			r := run(ctx, e, d)
			if r.Remedy != "" {
				at := fmt.Sprintf("disk.dirs[%d]", i)
				r.Reason = fmt.Sprintf("%s (%v): %s", at, cfg.Origin(at), r.Reason)
			}
			all = append(all, r)
		}
		return worst(all)
	})
}

// usable is a check of a directory that can be one of the SSD tier: checkDirs tells why another one cannot.
func usable(run func(context.Context, *Env, config.DiskDir) Result) func(context.Context, *Env, config.DiskDir) Result {
	return func(ctx context.Context, e *Env, d config.DiskDir) Result {
		if checkDirs(ctx, e, d).Verdict == Fail {
			return skip("%s cannot be used: see disk directories", d.Path)
		}
		return run(ctx, e, d)
	}
}

// worst returns the worst results: those that are well in one sentence, the others each for itself.
func worst(all []Result) Result {
	order := map[Verdict]int{Skip: 0, OK: 1, Warn: 2, Fail: 3}
	var w Result
	for i, r := range all {
		switch {
		case i == 0 || order[r.Verdict] > order[w.Verdict]:
			w = r
		case r.Verdict == w.Verdict && r.Remedy == "":
			w.Reason += "; " + r.Reason
		case r.Verdict == w.Verdict:
			w.also = append(w.also, r)
		}
	}
	return w
}

// existing returns dir, or the directory above it if dir is absent: kvfs makes it.
func existing(dir string) string {
	if _, err := os.Stat(dir); errors.Is(err, iofs.ErrNotExist) {
		return filepath.Dir(dir)
	}
	return dir
}

func checkDirs(_ context.Context, e *Env, d config.DiskDir) Result {
	place := recovery.Options{RequireMount: e.Config.Disk.RequireMount, StateDir: daemon.StateDir(os.Getenv)}
	if wrong, is := errors.AsType[*recovery.DirError](recovery.CheckPlace(d.Path, place)); is {
		return fail("the file system mounted, or --disk-require-mount=false", "%v", wrong)
	}
	dir := existing(d.Path)
	r, err := directio.Probe(dir)
	switch {
	case errors.Is(err, iofs.ErrNotExist):
		return fail("mkdir -p "+dir+", or mount the disk that it is on", "%s: its parent %s does not exist", d.Path, dir)
	case r.FileSystem == "tmpfs" || r.FileSystem == "ramfs":
		return fail("a directory on ext4 or xfs", "%s is on %s, in memory", d.Path, r.FileSystem)
	case errors.Is(err, directio.ErrNotDirect):
		return fail("a directory on ext4 or xfs", "%s has no direct I/O: %v", d.Path, err)
	case err != nil:
		return fail("another disk.dirs[].path, or access to this one", "%s: %v", d.Path, err)
	case !r.Direct:
		return warn("a directory on ext4 or xfs", "%s is on %v", d.Path, r)
	}
	return ok("%s is on %v", d.Path, r)
}

func checkRoom(_ context.Context, e *Env, d config.DiskDir) Result {
	st, err := e.statfsNear(d.Path)
	if err != nil {
		return fail("dmesg, smartctl, or another disk.dirs[].path", "%s: %v", d.Path, err)
	}
	room := int64(st.Bavail) * st.Bsize
	entries, _ := os.ReadDir(d.Path) // the directory may be absent
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			if own, is := info.Sys().(*syscall.Stat_t); is {
				room += own.Blocks * 512
			}
		}
	}
	if room < int64(d.Size) {
		return warn("a smaller disk.dirs[].size, or other files removed", "%s has room for %s, less than its size %v", d.Path, show.Bytes(room), d.Size)
	}
	return ok("%s has room for its size %v", d.Path, d.Size)
}

func checkRDMA(ctx context.Context, e *Env, cfg *config.Config) Result {
	switch {
	case cfg.Bind == "":
		return skip("there are no peers: bind is not set")
	case cfg.Peer.Transport == config.TransportTCP:
		return skip("peer.transport is tcp")
	}
	r, err := e.RDMA(ctx)
	if err != nil {
		return fail("kvfs doctor rdma", "%v", err)
	}
	found := fmt.Sprintf("%d cards, %d GPUs", len(r.Devices), len(r.GPUs))
	if r.Plan != nil {
		found += ", plan " + cmp.Or(strings.Join(rails.Describe(r.Plan), "; "), "of no card")
	}
	switch {
	case r.Usable:
		return ok("RDMA works: %s", found)
	case cfg.Peer.Transport == config.TransportRDMA:
		return fail("kvfs doctor rdma", "%s; RDMA cannot be used: %s", found, r.Error)
	case len(r.Devices) == 0:
		return ok("%s: blocks of peers come by TCP", found)
	}
	return warn("kvfs doctor rdma", "%s; blocks of peers come by TCP, because RDMA cannot be used: %s", found, r.Error)
}

func checkClock(_ context.Context, e *Env, cfg *config.Config) Result {
	if cfg.Bind == "" {
		return skip("there are no peers: bind is not set")
	}
	synced, err := e.Synced()
	switch {
	case err != nil:
		return skip("the kernel does not tell: %v", err)
	case !synced:
		return warn("run chronyd or another client of NTP", "nothing sets the clock of this machine")
	}
	return ok("the clock of this machine is set by another one")
}

const noPeers = "the mount has no peers: bind is not set"

func needCluster(run func(context.Context, *Env, *status.Cluster) Result) func(context.Context, *Env) Result {
	return needStatus(func(ctx context.Context, e *Env, s *status.Document) Result {
		if s.Cluster == nil {
			return skip(noPeers)
		}
		return run(ctx, e, s.Cluster)
	})
}

// dialTimeout is the time that a peer has to accept a connection.
const dialTimeout = 3 * time.Second

func checkPeers(ctx context.Context, e *Env, c *status.Cluster) Result {
	var others []*cluster.Member
	for i := range c.Members {
		if m := &c.Members[i]; !m.Self && m.State != "left" {
			others = append(others, m)
		}
	}
	if len(others) == 0 {
		return warn("kvfs members MOUNT; see join", "the mount has joined no other node")
	}
	faults := make([]string, len(others))
	var dials sync.WaitGroup
	for i, m := range others {
		dials.Go(func() { faults[i] = e.reach(ctx, m) })
	}
	dials.Wait()
	faults = slices.DeleteFunc(faults, func(s string) bool { return s == "" })
	if len(faults) > 0 {
		return fail("kvfs members MOUNT; see docs/cluster.md: Look and find out", "%d of %d peers are not well: %s", len(faults), len(others), strings.Join(faults, "; "))
	}
	return ok("all %d peers are alive and accept connections", len(others))
}

// reach returns why a peer is not well, or "".
func (e *Env) reach(ctx context.Context, m *cluster.Member) string {
	if m.State != "alive" {
		return fmt.Sprintf("%s is %s", m.Name, strings.TrimSpace(m.State+" "+m.Reason))
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for _, addr := range []string{m.ControlAddr, m.BulkAddr} {
		if addr == "" {
			continue
		}
		conn, err := e.Dial(ctx, "tcp", addr)
		if err != nil {
			return fmt.Sprintf("%s: %v", m.Name, err)
		}
		conn.Close()
	}
	if m.Breaker == "open" {
		return fmt.Sprintf("%s is not asked since it failed: %s", m.Name, cmp.Or(m.LastError, "no reason known"))
	}
	return ""
}

func checkVersions(_ context.Context, _ *Env, c *status.Cluster) Result {
	versions := map[string]bool{}
	var missing []string
	for i := range c.Members {
		m := &c.Members[i]
		if m.State != "alive" {
			continue
		}
		versions[m.Version] = true
		if len(m.Missing) > 0 {
			missing = append(missing, m.Name+" lacks "+strings.Join(m.Missing, ", "))
		}
	}
	switch {
	case len(missing) > 0:
		return warn("the same version and settings on all nodes", "peers lack features of this node: %s", strings.Join(missing, "; "))
	case len(versions) > 1:
		return warn("the same version on all nodes", "the nodes have %d versions of kvfs", len(versions))
	}
	return ok("all nodes have one version of kvfs")
}

func checkSettings(_ context.Context, _ *Env, c *status.Cluster) Result {
	var differ []string
	for i := range c.Members {
		if m := &c.Members[i]; m.SettingsDiffer && m.State == "alive" {
			differ = append(differ, m.Name)
		}
	}
	if len(differ) > 0 {
		return warn("kvfs config print, on both nodes", "other groups, specs, mount.temp_patterns, mount.plain_patterns or replicas than on this node: %s", strings.Join(differ, ", "))
	}
	return ok("all nodes have the groups, specs, patterns and replicas of this one")
}

func checkClocks(_ context.Context, _ *Env, s *status.Document) Result {
	if s.Cluster == nil {
		return skip(noPeers)
	}
	var wrong, found []string
	worst := 0.0
	for i := range s.Cluster.Members {
		m := &s.Cluster.Members[i]
		if m.Self || m.State != "alive" {
			continue
		}
		off := max(0, math.Abs(m.ClockAhead)-m.ClockError) // that is certain
		worst = max(worst, off)
		if off > status.ClockLimit.Seconds() {
			wrong = append(wrong, fmt.Sprintf("%s %+.1f s", m.Name, m.ClockAhead))
		}
	}
	if len(wrong) > 0 {
		found = append(found, fmt.Sprintf("clocks are ahead of (+) or behind (-) this node's: %s; times to live end that much early or late, and the node ahead wins conflicts of writes", strings.Join(wrong, ", ")))
	}
	if ahead := s.Ahead(); ahead != "" {
		found = append(found, ahead+": a clock is wrong, or was; blocks have times in the future, and nodes that do not know these versions lose conflicts of writes. It ends when the clock gets there")
	}
	if len(found) > 0 {
		return warn("chronyc tracking, on all nodes; see docs/cluster.md: Clocks", "%s", strings.Join(found, "; "))
	}
	return ok("the clocks of peers are within %.1f s of this node's", max(worst, 0.1))
}

// manyStored is the number of blocks of a group after which at least one hit is expected.
const manyStored = 1000

func checkReuse(_ context.Context, _ *Env, s *status.Document) Result {
	var stored, found uint64
	var never []string
	for i := range s.Groups {
		g := &s.Groups[i]
		stored, found = stored+g.Stored, found+g.Found
		if g.Found == 0 && g.Stored >= manyStored {
			never = append(never, fmt.Sprintf("%s (%d blocks)", cmp.Or(show.Text(g.Name), "the empty group"), g.Stored))
		}
	}
	switch {
	case len(never) > 0:
		return warn("PYTHONHASHSEED set to one number for all engines, and the same model, block size and type of the KV cache in all",
			"groups that store blocks of which none was ever found: %s. Probably each engine computes other names for the same tokens", strings.Join(never, ", "))
	case found > 0:
		return ok("%d blocks were stored, and %d look-ups and opens found one", stored, found)
	}
	return skip("only %d blocks were stored so far", stored)
}

func checkDaemon(_ context.Context, e *Env) Result {
	switch {
	case e.Mount == "":
		return skip("no mount is named: kvfs doctor MOUNT")
	case e.Status == nil:
		return fail("see docs/operations.md: Nothing answers", "%v", e.StatusErr)
	}
	for _, t := range e.Status.Tiers {
		if t.State != "" && t.State != "online" {
			return warn("kvfs status "+e.Mount, "the daemon answers; its tier %s is %s", t.Name, show.State(t.State, t.Reason))
		}
	}
	return ok("the daemon answers, and its tiers are online")
}

func checkMounts(_ context.Context, e *Env) Result {
	var points, faults []string
	for _, m := range e.Table {
		if mounts.IsOurs(m) {
			points = append(points, m.Mountpoint)
			if e.Abandoned(m) { // not asked: the answer might never come
				faults = append(faults, m.Mountpoint)
			}
		}
	}
	if len(points) == 0 {
		return skip("this machine has no kvfs mount")
	}
	if len(faults) == 0 {
		faults = e.silent(points)
	}
	if len(faults) > 0 {
		return fail("kvfs mount "+faults[0]+", with the settings it had, which starts it again with its blocks; kvfs umount "+faults[0]+" gives them up", "%d of %d kvfs mounts have no daemon that answers: %s", len(faults), len(points), strings.Join(faults, ", "))
	}
	return ok("the daemons of all %d kvfs mounts answer", len(points))
}

// silent returns the mounts whose daemon is dead or does not answer.
func (e *Env) silent(points []string) []string {
	bad := make([]bool, len(points))
	var asked sync.WaitGroup
	for i, point := range points {
		asked.Go(func() {
			err := e.Answers(point)
			bad[i] = mounts.Dead(err) || errors.Is(err, mounts.ErrSilent)
		})
	}
	asked.Wait()
	var found []string
	for i, point := range points {
		if bad[i] {
			found = append(found, point)
		}
	}
	return found
}

func checkStores(_ context.Context, e *Env) Result {
	all, err := e.Stores()
	if err != nil {
		return skip("the memory of daemons cannot be listed: %v", err)
	}
	var left []string
	remedy := ""
	for _, s := range all {
		if s.Alive || s.Problem != "" && !s.Mounted { // the latter is another directory, as that of sockets
			continue
		}
		text := fmt.Sprintf("%s has %s", s.Dir, show.Bytes(s.Bytes))
		if s.Label != "" {
			text += " of the mount " + s.Label
		}
		left = append(left, text)
		if remedy == "" && s.Mounted {
			remedy = "kvfs mount on that directory adopts the blocks; umount " + s.Dir + " drops them"
		} else if remedy == "" {
			remedy = "kvfs mount on that directory adopts the blocks; rm -r " + s.Dir + " drops them"
		}
	}
	if len(left) > 0 {
		return warn(remedy, "no daemon uses this memory: %s", strings.Join(left, "; "))
	}
	return ok("no memory of a dead daemon is left")
}
