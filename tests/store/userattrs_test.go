package store

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestUserAttrs shows what one mount of an owner does on the others: they have its attributes of processes, and find a block
// that it publishes by link under one name after the unlink (H2, H5).
func TestUserAttrs(t *testing.T) {
	const name = "user.vllm.kv_crc32c"
	o := serve(t)
	a, b := o.mount(), o.mount()
	write(t, a, 0)
	write(t, b, 1)
	get := func(d *harness.Daemon, file string) string {
		t.Helper()
		buf := make([]byte, 64)
		n, err := unix.Getxattr(d.Path("g", file), name, buf)
		if err != nil && err != unix.ENODATA {
			t.Errorf("getxattr: %v", err)
		}
		return string(buf[:max(n, 0)])
	}
	for _, value := range []string{"one", "two"} {
		if err := unix.Setxattr(a.Path("g", "0000"), name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
		if got := get(b, "0000"); got != value {
			t.Errorf("the other mount has %q, want %q", got, value)
		}
	}
	tmp := a.Path("g", "0002.tmp")
	if err := os.WriteFile(tmp, block(2), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(tmp, a.Path("g", "0002")); err != nil {
		t.Fatal(err)
	}
	check(t, b, 2)
	if got, err := os.ReadFile(b.Path("g", "0002.tmp")); err != nil || string(got) != string(block(2)) {
		t.Errorf("the temporary name in the other mount: %v", err)
	}
	if err := os.Remove(tmp); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.Path("g", "0002.tmp")); !os.IsNotExist(err) {
		t.Errorf("the temporary name after its removal: %v", err)
	}
	check(t, b, 2)
	if got := get(b, "0001"); got != "" {
		t.Errorf("another block has %q", got)
	}
}
