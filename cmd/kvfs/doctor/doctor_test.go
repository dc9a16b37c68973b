package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/rdma/nic"
	"github.com/kvfs/kvfs/tiers/mem"
)

// fixture is an Env in which nothing is wrong, and that a test spoils.
type fixture struct {
	*Env
	t *testing.T
}

// put writes a file of the machine.
func (f fixture) put(name, text string) {
	f.t.Helper()
	path := f.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

// set loads a configuration.
func (f fixture) set(yaml string) {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		f.t.Fatal(err)
	}
	cfg, err := config.Load(config.Sources{File: file, MemTotal: 4 * scalar.GiB, Hostname: "a"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.Config = cfg
}

// statfs answers for every directory.
func (f fixture) statfs(kind int64, blocks, free, files, filesFree uint64) {
	f.Statfs = func(_ string, st *unix.Statfs_t) error {
		*st = unix.Statfs_t{Type: kind, Bsize: 4096, Blocks: blocks, Bfree: free, Bavail: free, Files: files, Ffree: filesFree}
		return nil
	}
}

// diskDir makes a directory for the SSD tier, on a file system with direct I/O.
func (f fixture) diskDir(more string) string {
	f.t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "kvfs-doctor-*")
	if err != nil {
		f.t.Skipf("no directory on a disk: %v", err)
	}
	f.t.Cleanup(func() { os.RemoveAll(dir) })
	if r, err := directio.Probe(dir); err != nil || !r.Direct {
		f.t.Skipf("no direct I/O here: %v, %v", r, err)
	}
	f.set(fmt.Sprintf("disk: {dirs: [{path: %q, size: 1GiB}]}\n%s", dir, more))
	return dir
}

// certificates makes files of a node whose certificate is valid for so long.
func (f fixture) certificates(node string, valid time.Duration) {
	f.t.Helper()
	dir := f.t.TempDir()
	if err := errors.Join(pki.CreateCA(dir, 0), pki.Issue(dir, pki.NodeOptions{Name: node, Valid: valid})); err != nil {
		f.t.Fatal(err)
	}
	cert, key := pki.NodeFiles(dir, node)
	f.set(fmt.Sprintf("bind: 127.0.0.1\nnode_name: a\ntls: {ca: %q, cert: %q, key: %q}\n", filepath.Join(dir, "ca.pem"), cert, key))
}

func newFixture(t *testing.T) fixture {
	f := fixture{t: t, Env: &Env{
		Root: t.TempDir(), Now: time.Now(), RAM: 4 << 30, From: "of this command", Mount: "/mnt/kv", PID: 42,
		Answers: func(string) error { return nil }, Abandoned: func(*mountinfo.Info) bool { return false },
		Stores: func() ([]mem.Info, error) {
			return []mem.Info{{Dir: "/run/kvfs/m", Alive: true}, {Dir: "/run/kvfs/0", Problem: "absent"}}, nil
		},
		Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			far.Close()
			return near, nil
		},
		Synced: func() (bool, error) { return true, nil },
		WakeUp: func() device.WakeUp { return device.WakeUp{Apart: 10 * time.Microsecond} },
		RDMA:   func(context.Context) (*rails.Report, error) { return &rails.Report{Usable: true}, nil },
		Table:  []*mountinfo.Info{{FSType: mounts.Type, Mountpoint: "/mnt/kv"}, {FSType: "proc", Mountpoint: "/proc"}},
	}}
	f.Status = &status.Document{PID: 42, Mount: status.Mount{ReadPath: "passthrough"}, Memory: status.MemoryDir{Dir: "/run/kvfs/m"}, Cluster: &status.Cluster{
		Members: []cluster.Member{{Name: "a", Self: true, State: "alive", Version: "v1"}, {Name: "b", State: "alive", Version: "v1", ControlAddr: "b:1", BulkAddr: "b:2"}, {Name: "c", State: "left", Version: "v0"}},
	}}
	f.Status.Tiers = []status.Tier{{Name: "memory", State: "online"}}
	f.Status.Groups = []status.Group{{Name: "g", Stored: 5000, Found: 7}, {Name: "h"}}
	f.set("bind: 127.0.0.1\n")
	f.put("dev/fuse", "")
	f.put("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n")
	f.statfs(unix.TMPFS_MAGIC, 1<<30, 1<<30, 1000, 900)
	return f
}

// cases spoil what one check looks at. Each check has a case that is well.
var cases = []struct {
	check  string
	spoil  func(fixture)
	want   Verdict
	reason string // part of it, or of the remedy
}{
	{"configuration", func(fixture) {}, OK, "of this command is accepted"},
	{"configuration", func(f fixture) { f.Config.Warnings = []string{"x is old"} }, Warn, "x is old"},
	{"configuration", func(f fixture) { f.Config, f.ConfigErr = nil, errors.Join(errors.New("one"), errors.New("two")) }, Fail, "is refused: one"},

	{"certificates", func(fixture) {}, Skip, "tls is not set"},
	{"certificates", func(f fixture) { f.certificates("a", 0) }, OK, "valid until"},
	{"certificates", func(f fixture) { f.certificates("a", 73*time.Hour) }, Warn, "in 3 days"},
	{"certificates", func(f fixture) { f.certificates("a", 73*time.Hour); f.Now = f.Now.Add(100 * time.Hour) }, Fail, "is expired since"},
	{"certificates", func(f fixture) { f.certificates("b", 0) }, Fail, "b.kvfs"},
	{"certificates", func(f fixture) { f.certificates("a", 0); os.Remove(f.Config.TLS.CA) }, Fail, "no such file"},
	{"certificates", func(f fixture) { f.certificates("a", 0); os.Chmod(f.Config.TLS.Key, 0o644) }, Fail, "0644"},

	{"gossip keys", func(f fixture) {
		name := filepath.Join(f.t.TempDir(), "keys")
		if err := gossip.CreateKeyring(name); err != nil {
			f.t.Fatal(err)
		}
		f.Config.Peer.GossipKeys = name
	}, OK, "can be read"},
	{"gossip keys", func(f fixture) { f.Config.Peer.GossipKeys = f.path("absent") }, Fail, "no such file"},

	{"fuse device", func(fixture) {}, OK, "can be opened"},
	{"wake-up", func(fixture) {}, OK, "10µs on another processor"},
	{"wake-up", func(f fixture) { f.WakeUp = func() device.WakeUp { return device.WakeUp{Apart: time.Millisecond} } }, Warn, "larger blocks"},
	{"fuse device", func(f fixture) { os.Remove(f.path("dev/fuse")) }, Fail, "modprobe fuse"},
	{"fuse device", func(f fixture) { os.Remove(f.path("dev/fuse")); os.Mkdir(f.path("dev/fuse"), 0o755) }, Fail, "is a directory"},

	{"read path", func(fixture) {}, OK, "by itself"},
	{"read path", func(f fixture) { f.Status.Mount = status.Mount{ReadPath: "splice", PathReason: "no root"} }, Warn, "no root"},
	{"read path", func(f fixture) { f.Status.Mount.ReadPath = "splice" }, Skip, "memory.passthrough is off"},
	{"read path", func(f fixture) { f.Status = nil }, Skip, "does not answer"},
	{"read path", func(f fixture) { f.Mount = "" }, Skip, "no mount is named"},

	{"memory size", func(fixture) {}, OK, "no limit"},
	{"memory size", func(f fixture) { f.cgroup(2 << 30) }, OK, "fits into the memory limit"},
	{"memory size", func(f fixture) { f.cgroup(1<<30 + 1) }, Warn, "with its headroom"},
	{"memory size", func(f fixture) { f.cgroup(1 << 29) }, Fail, "exceeds the memory limit"},
	{"memory size", func(f fixture) { f.RAM = 1 << 29 }, Fail, "memory of this machine"},
	{"memory size", func(f fixture) { f.set("mode: standalone-store\n") }, Skip, "the owner has the memory"},

	{"shared memory", func(fixture) {}, Skip, "tmpfs of its own"},
	{"shared memory", func(f fixture) { f.UID = 1000 }, OK, "has room"},
	{"shared memory", func(f fixture) { f.UID = 1000; f.statfs(unix.TMPFS_MAGIC, 16384, 16384, 0, 0) }, Warn, "--shm-size"},
	{"shared memory", func(f fixture) { f.UID = 1000; f.statfs(unix.TMPFS_MAGIC, 256, 256, 0, 0) }, Fail, "has only 1.0 MiB"},
	{"shared memory", func(f fixture) { f.UID = 1000; f.statfs(unix.EXT4_SUPER_MAGIC, 1<<30, 1<<30, 0, 0) }, Fail, "not on a tmpfs"},
	{"shared memory", func(f fixture) { f.UID = 1000; f.Statfs = func(string, *unix.Statfs_t) error { return unix.EACCES } }, Fail, "permission denied"},

	{"huge pages", func(fixture) {}, OK, "within_size"},
	{"huge pages", func(f fixture) { f.put("sys/kernel/mm/transparent_hugepage/shmem_enabled", "never [deny]\n") }, Warn, "denies"},
	{"huge pages", func(f fixture) { os.RemoveAll(f.path("sys")) }, Warn, "CONFIG_TRANSPARENT_HUGEPAGE"},
	{"huge pages", func(f fixture) { f.UID = 1000 }, Skip, "does not mount"},
	{"huge pages", func(f fixture) { f.Config.Memory.Huge = "never" }, Skip, "never"},

	{"tmpfs inodes", func(fixture) {}, OK, "900 of 1000"},
	{"tmpfs inodes", func(f fixture) { f.statfs(unix.TMPFS_MAGIC, 1, 1, 1000, 10) }, Warn, "only 10 of 1000"},
	{"tmpfs inodes", func(f fixture) { f.Statfs = func(string, *unix.Statfs_t) error { return unix.ENOENT } }, Fail, "no such file"},
	{"tmpfs inodes", func(f fixture) { f.Status = nil }, Skip, "no tmpfs yet"},

	{"disk directories", func(f fixture) { f.diskDir("") }, OK, "direct I/O"},
	{"disk directories", func(f fixture) { f.Config.Disk.Dirs = []config.DiskDir{{Path: "/dev/shm", Size: 1}} }, Fail, "in memory"},
	{"disk directories", func(f fixture) { f.Config.Disk.Dirs = []config.DiskDir{{Path: "/absent/parent/x", Size: 1}} }, Fail, "mkdir -p /absent/parent"},
	{"disk directories", func(f fixture) {
		f.Config.Disk.Dirs, f.Config.Disk.RequireMount = []config.DiskDir{{Path: "/absent", Size: 1}}, "true"
	}, Fail, "disk.require_mount is true"},

	{"disk room", func(f fixture) { f.diskDir("") }, OK, "room for its size 1GiB"},
	{"disk room", func(f fixture) { f.diskDir(""); f.statfs(unix.EXT4_SUPER_MAGIC, 1<<30, 1024, 0, 0) }, Warn, "room for 4.0 MiB"},
	{"disk room", func(f fixture) { f.diskDir(""); f.Statfs = func(string, *unix.Statfs_t) error { return unix.EIO } }, Fail, "input/output error"},

	{"cards and GPUs", func(fixture) {}, OK, "RDMA works: 0 cards, 0 GPUs"},
	{"cards and GPUs", func(f fixture) { f.rdma(&rails.Report{Error: "none"}) }, OK, "by TCP"},
	{"cards and GPUs", func(f fixture) { f.rdma(&rails.Report{Devices: make([]nic.Device, 2), Error: "memlock"}) }, Warn, "2 cards, 0 GPUs; blocks of peers come by TCP, because RDMA cannot be used: memlock"},
	{"cards and GPUs", func(f fixture) {
		f.set("bind: 127.0.0.1\npeer: {transport: rdma}\n")
		f.rdma(&rails.Report{Error: "none"})
	}, Fail, "kvfs doctor rdma"},
	{"cards and GPUs", func(f fixture) { f.set("bind: 127.0.0.1\npeer: {transport: tcp}\n") }, Skip, "transport is tcp"},

	{"clock", func(fixture) {}, OK, "is set by another"},
	{"clock", func(f fixture) { f.Synced = func() (bool, error) { return false, nil } }, Warn, "NTP"},
	{"clock", func(f fixture) { f.Synced = func() (bool, error) { return false, unix.EPERM } }, Skip, "does not tell"},

	{"peers", func(fixture) {}, OK, "all 1 peers"},
	{"peers", func(f fixture) { f.Status.Cluster.Members[1].State = "failed" }, Fail, "b is failed"},
	{"peers", func(f fixture) { f.Status.Cluster.Members = f.Status.Cluster.Members[:1] }, Warn, "no other node"},
	{"peers", func(f fixture) { f.Status.Cluster.Members[1].Breaker = "open" }, Fail, "not asked"},
	{"peers", func(f fixture) {
		f.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, unix.ECONNREFUSED }
	}, Fail, "b: connection refused"},
	{"peers", func(f fixture) { f.Status.Cluster = nil }, Skip, "no peers"},

	{"versions of peers", func(fixture) {}, OK, "one version"},
	{"versions of peers", func(f fixture) { f.Status.Cluster.Members[1].Version = "v2" }, Warn, "2 versions"},
	{"versions of peers", func(f fixture) { f.Status.Cluster.Members[1].Missing = []string{"store"} }, Warn, "b lacks store"},

	{"settings of peers", func(fixture) {}, OK, "all nodes"},
	{"settings of peers", func(f fixture) { f.Status.Cluster.Members[1].SettingsDiffer = true }, Warn, "this node: b"},

	{"clocks of peers", func(fixture) {}, OK, "within 0.1 s"},
	{"clocks of peers", func(f fixture) {
		m := &f.Status.Cluster.Members[1]
		m.ClockAhead, m.ClockError = -3, 1
	}, Warn, "b -3.0 s"},
	{"clocks of peers", func(f fixture) {
		m := &f.Status.Cluster.Members[1]
		m.ClockAhead, m.ClockError = 3, 2.5
	}, OK, "within 0.5 s"},

	{"clocks of peers", func(f fixture) { f.Status.VersionsAhead = 108000 }, Warn, "versions are 30h0m0s ahead of the clock, since one of this node: a clock is wrong, or was"},
	{"clocks of peers", func(f fixture) {
		f.Status.VersionsAhead, f.Status.VersionsFrom = 2, "b"
		f.Status.Cluster.Members[1].ClockAhead = 2
	}, Warn, "b +2.0 s; times to live end that much early or late, and the node ahead wins conflicts of writes; versions are 2s ahead of the clock, since one of b"},
	{"clocks of peers", func(f fixture) { f.Status.Cluster = nil }, Skip, "no peers"},

	{"reuse", func(fixture) {}, OK, "5000 blocks"},
	{"reuse", func(f fixture) { f.Status.Groups[1].Stored = 1000 }, Warn, "h (1000 blocks)"},
	{"reuse", func(f fixture) { f.Status.Groups = []status.Group{{Stored: 3}, {Stored: 999}} }, Skip, "only 1002"},

	{"daemon", func(fixture) {}, OK, "answers"},
	{"daemon", func(f fixture) { f.Status.Tiers[0] = status.Tier{Name: "disk", State: "offline", Reason: "EIO"} }, Warn, "disk is offline (EIO)"},
	{"daemon", func(f fixture) { f.Status, f.StatusErr = nil, errors.New("the daemon is dead") }, Fail, "the daemon is dead"},

	{"mounts", func(fixture) {}, OK, "all 1 kvfs mounts"},
	{"mounts", func(f fixture) { f.Answers = func(string) error { return unix.ENOTCONN } }, Fail, "kvfs mount /mnt/kv, with the settings it had, which starts it again with its blocks; kvfs umount /mnt/kv"},
	{"mounts", func(f fixture) { f.Answers = func(string) error { return mounts.ErrSilent } }, Fail, "1 of 1"},
	{"mounts", func(f fixture) {
		f.Abandoned = func(*mountinfo.Info) bool { return true }
		f.Answers = func(string) error { panic("an abandoned mount is asked") }
	}, Fail, "1 of 1"},
	{"mounts", func(f fixture) { f.Table = nil }, Skip, "no kvfs mount"},

	{"memory without daemon", func(fixture) {}, OK, "no memory"},
	{"memory without daemon", func(f fixture) {
		f.Stores = func() ([]mem.Info, error) {
			return []mem.Info{{Dir: "/run/kvfs/m", Label: "/mnt/x", Bytes: 4096, Mounted: true}}, nil
		}
	}, Warn, "/run/kvfs/m has 4.0 KiB of the mount /mnt/x"},
	{"memory without daemon", func(f fixture) { f.Stores = func() ([]mem.Info, error) { return nil, iofs.ErrPermission } }, Skip, "cannot be listed"},
}

// cgroup gives the process a memory limit.
func (f fixture) cgroup(limit int) {
	f.put("proc/self/cgroup", "0::/x\n")
	f.put("sys/fs/cgroup/x/memory.max", strconv.Itoa(limit))
}

func (f fixture) rdma(r *rails.Report) {
	f.RDMA = func(context.Context) (*rails.Report, error) { return r, nil }
}

// TestChecks shows what each check says of a machine that is well, and of one that is not.
func TestChecks(t *testing.T) {
	all, seen := map[string]Check{}, map[string]map[Verdict]bool{}
	for _, c := range All() {
		if all[c.Name].Run != nil {
			t.Errorf("two checks have the name %s", c.Name)
		}
		all[c.Name], seen[c.Name] = c, map[Verdict]bool{}
	}
	for _, tc := range cases {
		t.Run(tc.check+" "+tc.reason, func(t *testing.T) {
			f := newFixture(t)
			tc.spoil(fixture{f.Env, t})
			got := all[tc.check].Run(t.Context(), f.Env)
			if got.Verdict != tc.want || !strings.Contains(got.Reason+"\n"+got.Remedy, tc.reason) {
				t.Errorf("got %+v, want %s with %q", got, tc.want, tc.reason)
			}
			if bad := got.Verdict == Warn || got.Verdict == Fail; bad != (got.Remedy != "") {
				t.Errorf("no remedy: %+v", got)
			}
			seen[tc.check][tc.want] = true
		})
	}
	for name, v := range seen {
		if strings.HasPrefix(name, "disk ") {
			continue // skipped where no disk has direct I/O
		}
		if name != "settings of peers" && (!v[OK] || !v[Warn] && !v[Fail]) {
			t.Errorf("%s lacks a case that is well, or one that is not", name)
		}
	}
}

// TestOneFindingACause shows that each cause has a finding with its own remedy, and no other check tells it once more.
func TestOneFindingACause(t *testing.T) {
	f := newFixture(t)
	f.Config.Disk.Dirs = []config.DiskDir{{Path: "/absent/a/x", Size: 1}, {Path: "/absent/b/x", Size: 1}}
	checks := append(All()[:1], Fitting()...)
	r := Examine(t.Context(), f.Env, checks, Deadline)
	var failed []string
	for _, c := range r.Checks {
		if c.Verdict == Fail {
			failed = append(failed, c.Remedy)
		}
	}
	want := []string{"mkdir -p /absent/a, or mount the disk that it is on", "mkdir -p /absent/b, or mount the disk that it is on"}
	if !slices.Equal(failed, want) {
		t.Errorf("remedies %q, want %q", failed, want)
	}
	f.Config, f.ConfigErr = nil, errors.Join(&config.Error{Origin: config.Origin{Source: config.File, Name: "c.yaml", Line: 3}, Err: errors.New("one")}, errors.New("two"))
	if r := Examine(t.Context(), f.Env, checks, Deadline); r.count(Fail) != 2 || !strings.HasPrefix(r.Checks[0].Remedy, "correct c.yaml:3; ") {
		t.Errorf("of two errors: %+v", r.Checks)
	}
}

// TestExamine shows that a check that hangs fails and holds no other up, and that the table shows foreign names safely.
func TestExamine(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	r := Examine(t.Context(), &Env{Mount: "/m"}, []Check{
		{Name: "hangs", Run: func(context.Context, *Env) Result { <-hang; return Result{} }},
		{Name: "heeds", Run: func(ctx context.Context, _ *Env) Result { <-ctx.Done(); return skip("%v", ctx.Err()) }},
		{Name: "well", Run: func(context.Context, *Env) Result { return ok("a\x1b[31mb") }},
	}, time.Second)
	want := []Finding{{"hangs", fail("see docs/operations.md: Nothing answers", "the check has not ended within 1s")}, {"heeds", skip("context deadline exceeded")}, {"well", ok("a\x1b[31mb")}}
	for i := range want {
		if !reflect.DeepEqual(r.Checks[i], want[i]) {
			t.Errorf("got %+v, want %+v", r.Checks[i], want[i])
		}
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "1 ok, 0 warn, 1 fail, 1 skip") {
		t.Errorf("%v, got\n%s", err, out.String())
	}
	if err := r.Err(); exit.Code(err) != exit.Runtime {
		t.Errorf("got %v", err)
	}
	var back Report
	if err := json.Unmarshal(status.JSON(r), &back); err != nil || back.Checks[0].Verdict != Fail || back.Mount != "/m" {
		t.Errorf("%v, got %+v", err, back)
	}
	if err := (&Report{Checks: []Finding{{"x", warn("y", "z")}}}).Err(); err != nil {
		t.Errorf("a warning fails: %v", err)
	}
}
