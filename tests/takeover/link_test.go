package takeover

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLink takes over between link and unlink of a process that publishes a block: the temporary name is still there (H5).
func TestLink(t *testing.T) {
	s := newSite(t)
	first := s.mount()
	s.write(0, 1)
	tmp, name := s.path(1)+".tmp", s.path(1)
	if err := os.WriteFile(tmp, block(1), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(tmp, name); err != nil {
		t.Fatal(err)
	}
	s.takeover()
	first.end()
	s.check(1, 2)
	if b, err := os.ReadFile(tmp); err != nil || string(b) != string(block(1)) {
		t.Errorf("the temporary name: %v", err)
	}
	if err := os.Remove(tmp); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(tmp); !os.IsNotExist(err) {
		t.Errorf("after its removal: %v", err)
	}
	s.check(1, 2)
}

// TestUserAttrs: attributes of processes outlive a takeover with their files (H2).
func TestUserAttrs(t *testing.T) {
	const name, value = "user.vllm.kv_crc32c", "\x01\x00\xff\x02"
	s := newSite(t)
	first := s.mount()
	s.write(0, 2)
	if err := unix.Setxattr(s.path(0), name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
	s.takeover()
	first.end()
	s.check(0, 2)
	buf := make([]byte, 64)
	if n, err := unix.Getxattr(s.path(0), name, buf); err != nil || string(buf[:n]) != value {
		t.Errorf("got %q, %v", buf[:max(n, 0)], err)
	}
	if _, err := unix.Getxattr(s.path(1), name, buf); err != unix.ENODATA {
		t.Errorf("of another block: %v", err)
	}
}
