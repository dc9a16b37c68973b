package mount

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestUserAttrs is about attributes of processes, user.*: vLLM keeps a checksum in one (H2).
func TestUserAttrs(t *testing.T) { onStages(t, userAttrActs) }

// crc is the attribute that vLLM sets with checksum_blocks.
const crc = "user.vllm.kv_crc32c"

// setAttr sets an attribute of a path.
func setAttr(t testing.TB, path, name, value string) {
	t.Helper()
	must(t, "setxattr", again(func() error { return unix.Setxattr(path, name, []byte(value), 0) }))
}

// wantNoAttr checks that a path has no attribute of a name.
func wantNoAttr(t testing.TB, path, name string) {
	t.Helper()
	err := again(func() error { _, err := unix.Getxattr(path, name, make([]byte, 64)); return err })
	wantErrno(t, "getxattr "+name, err, unix.ENODATA)
}

// wantAttr checks an attribute of a path.
func wantAttr(t testing.TB, path, name, want string) {
	t.Helper()
	if got := getxattr(t, path, name); got != want {
		t.Errorf("%s: got %q, want %q", name, got, want)
	}
}

// publish writes a file under a temporary name, gives it an attribute, and renames it.
func publish(t testing.TB, path string, p []byte, value string) {
	t.Helper()
	put(t, path+".tmp", p)
	setAttr(t, path+".tmp", crc, value)
	rename(t, path+".tmp", path)
}

// foreign returns the names of the attributes of a path that are not those of kvfs.
func foreign(t testing.TB, path string) []string {
	t.Helper()
	buf := make([]byte, 8192)
	n, err := unix.Listxattr(path, buf)
	must(t, "listxattr", err)
	return slices.DeleteFunc(strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), func(name string) bool {
		return strings.HasPrefix(name, "user.kvfs.")
	})
}

var userAttrActs = []act{
	{"set on a temporary file, they are those of the block after the rename", func(t *testing.T, s *stage) {
		p, sum := s.path("x"), "\x00\xff\x00\x01"
		f := open(t, p+".tmp", unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o644)
		f.write(pattern("x", mib))
		must(t, "fsetxattr", unix.Fsetxattr(f.fd, crc, []byte(sum), 0))
		buf := make([]byte, 64)
		if n, err := unix.Fgetxattr(f.fd, crc, buf); err != nil || string(buf[:n]) != sum {
			t.Errorf("fgetxattr: %q, %s", buf[:max(n, 0)], errnoName(err))
		}
		f.close()
		wantAttr(t, p+".tmp", crc, sum)
		rename(t, p+".tmp", p)
		wantAttr(t, p, crc, sum)
		if v, err := s.process().Getxattr(p, crc); err != nil || v != sum {
			t.Errorf("another process: %q, %s", v, errnoName(err))
		}
		rename(t, p, s.path("y"))
		wantAttr(t, s.path("y"), crc, sum)
		s.wantCommitted(s.path("y"), pattern("x", mib))
		wantAttr(t, s.path("y"), crc, sum)
	}},
	{"create, replace, list, remove", func(t *testing.T, s *stage) {
		p := s.path("x")
		s.store(p, pattern("x", mib))
		wantNoAttr(t, p, crc)
		wantErrno(t, "replace", unix.Setxattr(p, crc, []byte("1"), unix.XATTR_REPLACE), unix.ENODATA)
		must(t, "create", unix.Setxattr(p, crc, []byte("1"), unix.XATTR_CREATE))
		wantErrno(t, "create again", unix.Setxattr(p, crc, []byte("2"), unix.XATTR_CREATE), unix.EEXIST)
		wantAttr(t, p, crc, "1")
		must(t, "replace", unix.Setxattr(p, crc, []byte("2"), unix.XATTR_REPLACE))
		wantAttr(t, p, crc, "2")
		setAttr(t, p, "user.empty", "")
		wantAttr(t, p, "user.empty", "")
		if names := foreign(t, p); !slices.Equal(names, []string{crc, "user.empty"}) {
			t.Errorf("listxattr: %q", names)
		}
		must(t, "remove", unix.Removexattr(p, crc))
		wantErrno(t, "remove again", unix.Removexattr(p, crc), unix.ENODATA)
		wantNoAttr(t, p, crc)
		if names := foreign(t, p); !slices.Equal(names, []string{"user.empty"}) {
			t.Errorf("listxattr: %q", names)
		}
		for _, name := range []string{"trusted.x", "security.x", "user.kvfs.x"} {
			wantErrno(t, name, unix.Setxattr(p, name, []byte("1"), 0), unix.EOPNOTSUPP)
		}
		wantErrno(t, "of a directory", unix.Setxattr(s.dir, "user.x", []byte("1"), 0), unix.EOPNOTSUPP, unix.EPERM)
		s.wantCommitted(p, pattern("x", mib))
		wantAttr(t, p, "user.empty", "")
	}},
	{"4 KiB a file: more is ENOSPC, a larger value E2BIG, and nothing is lost", func(t *testing.T, s *stage) {
		p := s.path("x")
		publish(t, p, pattern("x", mib), "sum")
		most := 4096 - (3 + len(crc) + 3) - (3 + len("user.big"))
		for size, want := range map[int]error{4097: unix.E2BIG, 65536: unix.E2BIG, 4096: unix.ENOSPC, most + 1: unix.ENOSPC} {
			wantErrno(t, fmt.Sprint(size), unix.Setxattr(p, "user.big", make([]byte, size), 0), want)
		}
		setAttr(t, p, "user.big", strings.Repeat("v", most))
		wantErrno(t, "one more", unix.Setxattr(p, "user.a", nil, 0), unix.ENOSPC)
		wantAttr(t, p, crc, "sum")
		wantAttr(t, p, "user.big", strings.Repeat("v", most))
		wantBytes(t, p, pattern("x", mib))
	}},
	{"a file that begins anew has none, one that is written in place keeps them", func(t *testing.T, s *stage) {
		for _, name := range []string{"block", "held", "x.tmp", "x.lock"} {
			p := s.path(name)
			put(t, p, pattern("x", mib))
			setAttr(t, p, crc, "old")
			f := open(t, p, unix.O_WRONLY, 0)
			f.pwrite([]byte("new"), 100)
			f.close()
			wantAttr(t, p, crc, "old")
			if name == "held" {
				h := open(t, p, unix.O_RDONLY, 0)
				defer h.close()
				defer func() {
					buf := make([]byte, 64)
					if n, err := unix.Fgetxattr(h.fd, crc, buf); err != nil || string(buf[:n]) != "old" {
						t.Errorf("of the earlier file: %q, %s", buf[:max(n, 0)], errnoName(err))
					}
				}()
			}
			f = open(t, p, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
			wantNoAttr(t, p, crc)
			f.write(pattern("y", mib))
			f.close()
			wantNoAttr(t, p, crc)
			wantBytes(t, p, pattern("y", mib))
		}
		publish(t, s.path("block"), pattern("z", mib), "z")
		s.store(s.path("block"), pattern("w", mib))
		wantNoAttr(t, s.path("block"), crc)
	}},
	{"unlink and link", func(t *testing.T, s *stage) {
		p := s.path("x")
		publish(t, p, pattern("x", mib), "old")
		unlink(t, p)
		s.store(p, pattern("y", mib))
		wantNoAttr(t, p, crc)
		put(t, s.path("z.tmp"), pattern("z", mib))
		setAttr(t, s.path("z.tmp"), crc, "z")
		must(t, "link", unix.Link(s.path("z.tmp"), s.path("z")))
		wantAttr(t, s.path("z.tmp"), crc, "z")
		unlink(t, s.path("z.tmp"))
		wantAttr(t, s.path("z"), crc, "z")
	}},
}

// TestUserAttrsKilled: after a kill of the daemon each file in memory has the attributes of its version (H2).
func TestUserAttrsKilled(t *testing.T) {
	harness.KvfsOnly(t, "warm restart")
	d := harness.Mount(t, harness.Options{})
	publish(t, d.Path("block"), pattern("block", mib), "block")
	publish(t, d.Path("changed"), pattern("block", mib), "old")
	setAttr(t, d.Path("changed"), crc, "new")
	publish(t, d.Path("removed"), pattern("block", mib), "old")
	must(t, "removexattr", unix.Removexattr(d.Path("removed"), crc))
	publish(t, d.Path("anew"), pattern("block", mib), "old")
	store(t, d.Path("anew"), pattern("block", mib))
	put(t, d.Path("x.tmp"), pattern("x", mib))
	setAttr(t, d.Path("x.tmp"), crc, "x")
	put(t, d.Path("y.tmp"), pattern("x", mib))
	setAttr(t, d.Path("y.tmp"), crc, "old")
	put(t, d.Path("y.tmp"), pattern("y", mib))
	d.Kill()
	d.Restart()
	wantAttr(t, d.Path("block"), crc, "block")
	wantAttr(t, d.Path("changed"), crc, "new")
	wantAttr(t, d.Path("x.tmp"), crc, "x")
	rename(t, d.Path("x.tmp"), d.Path("x"))
	wantAttr(t, d.Path("x"), crc, "x")
	for _, p := range []string{"removed", "anew", "y.tmp"} {
		wantNoAttr(t, d.Path(p), crc)
	}
}

// TestUserAttrsDisk: the copy of a block on SSD has its attributes, after an eviction, a stop, and a kill without memory (H2).
func TestUserAttrsDisk(t *testing.T) {
	harness.KvfsOnly(t, "SSD tier")
	d := harness.Mount(t, harness.Options{MemorySize: "32MiB", Disk: "256MiB", Flags: []string{"--disk-cascade", "sync"}})
	publish(t, d.Path("block"), pattern("block", mib), "sum")
	publish(t, d.Path("changed"), pattern("changed", mib), "old")
	setAttr(t, d.Path("changed"), crc, "new")
	publish(t, d.Path("removed"), pattern("removed", mib), "old")
	must(t, "removexattr", unix.Removexattr(d.Path("removed"), crc))
	publish(t, d.Path("anew"), pattern("anew", mib), "old")
	store(t, d.Path("anew"), pattern("anew", mib))
	publish(t, d.Path("moved-from"), pattern("moved", mib), "moved")
	rename(t, d.Path("moved-from"), d.Path("moved"))
	wants := map[string]string{"block": "sum", "changed": "new", "removed": "", "anew": "", "moved": "moved"}
	check := func(when string) {
		t.Helper()
		for p, want := range wants {
			for range 2 { // where it is, and from memory
				if want == "" {
					wantNoAttr(t, d.Path(p), crc)
				} else {
					wantAttr(t, d.Path(p), crc, want)
				}
				wantBytes(t, d.Path(p), pattern(p, mib))
			}
		}
		if t.Failed() {
			t.Fatal(when)
		}
	}
	evict := func() {
		t.Helper()
		for p := range wants {
			if _, stderr, code := harness.Kvfs(t, "evict", "--tier", "memory", d.Path(p)); code != 0 {
				t.Fatalf("evict: %s", stderr)
			}
		}
	}
	evict()
	check("after an eviction")
	evict()
	setAttr(t, d.Path("block"), crc, "on SSD") // of a block that memory has not
	wants["block"] = "on SSD"
	evict()
	check("after a change on SSD")
	must(t, "fsync", fsync(d.Path("block")))
	must(t, "fsync", fsync(d.Dir))
	d.Kill()
	d.DropMemory()
	d.Restart()
	check("after a kill without memory")
	d.Stop()
	d.Restart()
	check("after a stop")

	// What a header has no room for is not copied: fsync says so, and nothing is lost.
	long := d.Path(strings.Repeat("n", 200))
	publish(t, long, pattern("long", mib), "sum")
	setAttr(t, long, "user.big", strings.Repeat("v", 4000))
	wantErrno(t, "fsync", fsync(long), unix.ENOSPC)
	wantAttr(t, long, "user.big", strings.Repeat("v", 4000))
	wantAttr(t, long, crc, "sum")
	wantBytes(t, long, pattern("long", mib))
}

// fsync syncs a file or directory.
func fsync(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return again(func() error { return unix.Fsync(fd) })
}
