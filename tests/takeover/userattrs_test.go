package takeover

import (
	"testing"

	"golang.org/x/sys/unix"
)

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
