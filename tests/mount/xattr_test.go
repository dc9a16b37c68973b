package mount

import (
	"hash/crc64"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

func getxattr(t testing.TB, path, name string) string {
	t.Helper()
	buf := make([]byte, 4096)
	var n int
	err := again(func() (err error) {
		n, err = unix.Getxattr(path, name, buf)
		return err
	})
	if err != nil {
		t.Errorf("getxattr %s: %s", name, errnoName(err))
		return ""
	}
	return string(buf[:n])
}

// nvme is the table of CRC-64/NVME in the standard library's, reflected, form.
// Source: Rocksoft model in the NVM Command Set Specification 1.0c, 5.2.1.3.4.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// TestXattrs is about user.kvfs.*: where a block is, its checksum, pin and
// lifetime.
func TestXattrs(t *testing.T) {
	harness.KvfsOnly(t, "user.kvfs attributes")
	if got := crc64.Checksum([]byte("123456789"), nvme); got != 0xae8b14860a799888 {
		t.Fatalf("CRC-64/NVME of the check string: got %016x", got)
	}
	d := harness.Mount(t, harness.Options{})
	runRows(t, d, xattrRows)
}

var xattrRows = []row{
	{"P1 user.kvfs.pinned is 0, can be set to 1 and 0, nothing else", func(t *testing.T, e *env) {
		store(t, e.path("x"), pattern("x", mib))
		for _, v := range []string{"0", "1", "1", "0"} {
			must(t, "setxattr", unix.Setxattr(e.path("x"), "user.kvfs.pinned", []byte(v), 0))
			if got := getxattr(t, e.path("x"), "user.kvfs.pinned"); got != v {
				t.Errorf("got %q, want %q", got, v)
			}
		}
		wantErrno(t, "set to maybe", unix.Setxattr(e.path("x"), "user.kvfs.pinned", []byte("maybe"), 0), unix.EINVAL)
		store(t, e.path("y"), pattern("y", mib))
		if got := getxattr(t, e.path("y"), "user.kvfs.pinned"); got != "0" {
			t.Errorf("of a new block: got %q, want 0", got)
		}
	}},
	{"P1 user.kvfs.ttl: an expired block is ENOENT; durations and seconds", func(t *testing.T, e *env) {
		for _, ttl := range []string{"100ms", "1", "1s"} {
			p := e.path(ttl)
			store(t, p, pattern("x", mib))
			must(t, "setxattr", unix.Setxattr(p, "user.kvfs.ttl", []byte(ttl), 0))
			harness.Poll(t, "block with ttl "+ttl+" is gone", func() bool {
				var st unix.Stat_t
				return unix.Stat(p, &st) == unix.ENOENT
			})
			wantAbsent(t, e.process(), p)
			if slices.Contains(listNames(t, e.dir), ttl) {
				t.Errorf("%s is still listed", ttl)
			}
			store(t, p, pattern("again", mib))
			wantBytes(t, p, pattern("again", mib))
		}
		wantErrno(t, "set to soon", unix.Setxattr(e.path("1"), "user.kvfs.ttl", []byte("soon"), 0), unix.EINVAL)
	}},
	{"P1 the other attributes are read-only, unknown ones absent, listxattr lists (getfattr)", func(t *testing.T, e *env) {
		p := e.path("x")
		store(t, p, pattern("x", mib))
		for _, name := range []string{"user.kvfs.checksum", "user.kvfs.tier"} {
			err := unix.Setxattr(p, name, []byte("x"), 0)
			wantErrno(t, "set "+name, err, unix.EPERM, unix.ENOTSUP, unix.EACCES, unix.EINVAL)
		}
		buf := make([]byte, 4096)
		for _, name := range []string{"user.none", "user.kvfs.none", "security.capability", "system.posix_acl_access"} {
			_, err := unix.Getxattr(p, name, buf)
			wantErrno(t, "get "+name, err, unix.ENODATA, unix.ENOTSUP)
		}
		err := unix.Setxattr(p, "user.none", []byte("x"), 0)
		wantErrno(t, "set user.none", err, nil, unix.ENOTSUP, unix.EPERM)
		n, err := unix.Listxattr(p, buf)
		must(t, "listxattr", err)
		if names := strings.Split(string(buf[:n]), "\x00"); !slices.Contains(names, "user.kvfs.tier") {
			t.Errorf("listxattr: got %q, want user.kvfs.tier in it", names)
		}
		_, err = unix.Getxattr(p, "user.kvfs.checksum", buf[:3])
		wantErrno(t, "get into a short buffer", err, unix.ERANGE)
	}},
}
