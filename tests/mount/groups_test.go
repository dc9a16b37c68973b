package mount

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

const groupsConfig = `
groups:
  pool:
    pinned: true
    quota: 8MiB
`

// TestGroups: a pinned group with a quota refuses at create and ftruncate, and is never evicted. tiers/memory shows the other
// quotas.
func TestGroups(t *testing.T) {
	harness.KvfsOnly(t, "group quotas")
	d := harness.Mount(t, harness.Options{
		MemorySize: "64MiB",
		Config:     groupsConfig,
		Flags:      []string{"--mount-write-timeout", "100ms", "--memory-burst-gap", "0s"},
	})
	mkdir(t, d.Path("pool"))
	pool := func(name string) string { return d.Path("pool", name) }

	t.Run("P1 ftruncate beyond the quota: ENOSPC, size unchanged (vLLM disk)", func(t *testing.T) {
		f := open(t, pool("a"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		wantErrno(t, "ftruncate 9 MiB", again(func() error { return unix.Ftruncate(f.fd, 9*mib) }), unix.ENOSPC)
		f.wantSize(0)
		must(t, "ftruncate 8 MiB", again(func() error { return unix.Ftruncate(f.fd, 8*mib) }))
		f.wantSize(8 * mib)
		f.pwrite(pattern("a", mib), 7*mib)
		f.close()
		unlink(t, pool("a"))
	})
	t.Run("P1 a full group refuses a new file at create or first write (NIXL pool)", func(t *testing.T) {
		f := open(t, pool("full"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		must(t, "fallocate", again(func() error { return unix.Fallocate(f.fd, 0, 0, 8*mib) }))
		step, err := tryStore(t, pool("more"), pattern("more", mib))
		wantErrno(t, step, err, unix.ENOSPC)
		if step != "open" && step != "write" {
			t.Errorf("ENOSPC came at %q", step)
		}
		unlink(t, pool("full"))
		f.close()
		harness.Poll(t, "the quota is free again", func() bool {
			_, err := tryStore(t, pool("more"), pattern("more", mib))
			return err == nil
		})
		unlink(t, pool("more"))
	})
	t.Run("P1 a pinned group is never evicted", func(t *testing.T) {
		put(t, pool("kept"), pattern("kept", 7*mib))
		flood(t, d.Path("other"), 3*smallMemory)
		wantBytes(t, pool("kept"), pattern("kept", 7*mib))
		if got := getxattr(t, pool("kept"), "user.kvfs.pinned"); got != "1" {
			t.Errorf("user.kvfs.pinned: got %q, want 1", got)
		}
		if got := d.Status().Tiers[0].PinnedBytes; got < 7*mib {
			t.Errorf("pinned_bytes: got %d, want 7 MiB or more", got)
		}
	})
}
