package mount

import (
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

var userAttrActs = []act{
	{"a file that begins anew has none, one that is written in place or committed keeps them", func(t *testing.T, s *stage) {
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
		f := open(t, s.path("first"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644) // private until the close
		f.write(pattern("x", mib))
		must(t, "fsetxattr", unix.Fsetxattr(f.fd, crc, []byte("early"), 0))
		f.close()
		wantAttr(t, s.path("first"), crc, "early")
		publish(t, s.path("block"), pattern("z", mib), "z")
		s.store(s.path("block"), pattern("w", mib))
		wantNoAttr(t, s.path("block"), crc)
	}},
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
