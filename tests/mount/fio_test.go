package mount

import (
	"context"
	"fmt"
	"os/exec"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestFio lets fio write files in several ways and verify each byte, first
// while it writes and then by a second run that only reads.
func TestFio(t *testing.T) {
	fio, err := exec.LookPath("fio")
	if err != nil {
		harness.Skip(t, "fio is not installed")
	}
	d := harness.Mount(t, harness.Options{MemorySize: "1GiB"})
	seed := newRand(t).Uint32()
	for _, job := range []struct {
		name string
		args []string
	}{
		{"psync, random sizes", []string{"--ioengine=psync", "--rw=randwrite", "--bsrange=512-256k", "--bs_unaligned"}},
		{"psync, sequential 1 MiB", []string{"--ioengine=psync", "--rw=write", "--bs=1m"}},
		{"psync, 4 KiB, created on open", []string{"--ioengine=psync", "--rw=write", "--bs=4k", "--create_on_open=1", "--fallocate=none"}},
		{"pvsync, direct", []string{"--ioengine=pvsync", "--rw=randwrite", "--bsrange=4k-1m", "--blockalign=4k", "--direct=1"}},
		{"libaio, direct, 16 deep", []string{"--ioengine=libaio", "--rw=randwrite", "--bsrange=4k-512k", "--blockalign=4k", "--direct=1", "--iodepth=16"}},
		{"libaio, direct, fallocate keep", []string{"--ioengine=libaio", "--rw=write", "--bs=128k", "--direct=1", "--iodepth=8", "--fallocate=keep"}},
		{"mmap", []string{"--ioengine=mmap", "--rw=randwrite", "--bsrange=4k-64k", "--blockalign=4k"}},
		{"splice-like sizes with fsync", []string{"--ioengine=sync", "--rw=randwrite", "--bsrange=3k-70k", "--bs_unaligned", "--fsync=32"}},
	} {
		t.Run(job.name, func(t *testing.T) {
			dir := d.Path(t.Name()[len("TestFio/"):])
			mkdir(t, dir)
			args := append([]string{
				"--name=job", "--directory=" + dir, "--size=12m", "--nrfiles=2", "--numjobs=2", "--group_reporting",
				"--verify=crc32c", "--verify_fatal=1", "--do_verify=1", fmt.Sprintf("--randseed=%d", seed),
			}, job.args...)
			runFio(t, fio, args)
			runFio(t, fio, append(args, "--verify_only=1"))
		})
	}
}

func runFio(t *testing.T, fio string, args []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*harness.Deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, fio, args...)
	cmd.Dir = t.TempDir() // for the state files of the verification
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("fio %q: %v\n%s", args, err, out)
	}
}
