package mount

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

const groupsConfig = `
groups:
  pool:
    pinned: true
    quota: 8MiB
  cache:
    quota: 16MiB
`

// TestGroups is about groups with a quota: a pinned one refuses at create,
// ftruncate and fallocate, another evicts its own blocks.
func TestGroups(t *testing.T) {
	harness.KvfsOnly(t, "group quotas")
	d := harness.Mount(t, harness.Options{
		MemorySize: "64MiB",
		Config:     groupsConfig,
		Flags:      []string{"--mount-write-timeout", "100ms", "--memory-burst-gap", "0s"},
	})
	mkdir(t, d.Path("pool"))
	mkdir(t, d.Path("cache"))
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
	t.Run("P1 fallocate beyond the quota: ENOSPC, size unchanged (Dynamo)", func(t *testing.T) {
		for _, mode := range []uint32{0, unix.FALLOC_FL_KEEP_SIZE} {
			f := open(t, pool("b"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
			wantErrno(t, "fallocate 9 MiB", again(func() error { return unix.Fallocate(f.fd, mode, 0, 9*mib) }), unix.ENOSPC)
			f.wantSize(0)
			wantErrno(t, "fallocate 8 MiB", again(func() error { return unix.Fallocate(f.fd, mode, 0, 8*mib) }), nil)
			f.close()
			unlink(t, pool("b"))
		}
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
	t.Run("P1 a quota without pinned evicts within the group", func(t *testing.T) {
		store(t, d.Path("bystander"), pattern("bystander", blockSize))
		for i := range 10 {
			p := d.Path("cache", fmt.Sprint(i))
			if step, err := tryStore(t, p, pattern(p, blockSize)); err != nil {
				t.Fatalf("block %d: %s: %s", i, step, errnoName(err))
			}
		}
		var st unix.Stat_t
		visible := 0
		for i := range 10 {
			if unix.Stat(d.Path("cache", fmt.Sprint(i)), &st) == nil {
				visible++
			}
		}
		if visible < 1 || visible > 4 {
			t.Errorf("%d blocks of 4 MiB visible with a quota of 16 MiB", visible)
		}
		wantBytes(t, d.Path("cache", "9"), pattern(d.Path("cache", "9"), blockSize))
		wantBytes(t, d.Path("bystander"), pattern("bystander", blockSize))
	})
}
