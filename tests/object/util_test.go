package object

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// prefix is where the daemons of a test put their blocks.
const prefix = "prod"

// keys is the access key in the environment.
var keys = []string{"AWS_ACCESS_KEY_ID=" + s3test.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey}

// blocks are names below a mount point, and the bytes there.
type blocks map[string][]byte

// flag returns the flag for a bucket at this address, with more settings.
func flag(endpoint, more string) []string {
	return []string{"--object", fmt.Sprintf("url=s3://%s/%s,endpoint=%s,refresh=1s%s", s3test.Bucket, prefix, endpoint, more)}
}

// mount starts a daemon with a tier on the store at an endpoint. More settings begin with a comma.
func mount(t testing.TB, endpoint, more string, opts harness.Options) *harness.Daemon {
	t.Helper()
	harness.KvfsOnly(t, "a tier on object storage")
	opts.Flags = append(flag(endpoint, more), opts.Flags...)
	opts.Env = append(slices.Clone(keys), opts.Env...)
	return harness.Mount(t, opts)
}

// What tests of mounts have in common.
var (
	pattern = harness.Pattern
	again   = harness.Again
)

// numbered returns n blocks of size bytes in a directory.
func numbered(dir string, n, size int) blocks {
	bs := blocks{}
	for i := range n {
		name := fmt.Sprintf("%s/%04d", dir, i)
		bs[name] = pattern(name, size)
	}
	return bs
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// store writes a block as engines do: to another name, and then renamed.
func store(t testing.TB, path string, b []byte) {
	t.Helper()
	must(t, "mkdir", os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, "write", os.WriteFile(path+".tmp", b, 0o644))
	must(t, "rename", again(func() error { return unix.Rename(path+".tmp", path) }))
}

func storeAll(t testing.TB, d *harness.Daemon, bs blocks) {
	t.Helper()
	for name, b := range bs {
		store(t, d.Path(name), b)
	}
}

// wantBlocks reads each block.
func wantBlocks(t testing.TB, d *harness.Daemon, bs blocks) {
	t.Helper()
	for name, want := range bs {
		got, err := os.ReadFile(d.Path(name))
		if err != nil {
			t.Errorf("read: %v", err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes, which differ from the %d that were stored", name, len(got), len(want))
		}
	}
}

// survey reads each block, which may be missing, but not wrong. It returns how many there are.
func survey(t testing.TB, d *harness.Daemon, bs blocks) (found int) {
	t.Helper()
	for name, want := range bs {
		got, err := os.ReadFile(d.Path(name))
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			t.Errorf("read: %v, want the bytes or ENOENT", err)
		case !bytes.Equal(got, want):
			t.Errorf("%s: got %d bytes, which differ from the %d that were stored", name, len(got), len(want))
		default:
			found++
		}
	}
	return found
}

// wantAbsent fails the test if a block is there.
func wantAbsent(t testing.TB, d *harness.Daemon, name string) {
	t.Helper()
	if _, err := os.ReadFile(d.Path(name)); !errors.Is(err, unix.ENOENT) {
		t.Errorf("read of %s: got %v, want ENOENT", name, err)
	}
}

// tiersOf returns the tiers that have a block, or nil if it is not there.
func tiersOf(d *harness.Daemon, name string) []string {
	tiers := harness.TiersOf(d.Path(name))
	if tiers == "" {
		return nil
	}
	return strings.Split(tiers, ",")
}

// waitStored waits until the bucket has each block.
func waitStored(t testing.TB, d *harness.Daemon, bs blocks) {
	t.Helper()
	for name := range bs {
		harness.Poll(t, name+" is in the bucket", func() bool { return slices.Contains(tiersOf(d, name), "object") })
	}
}

// waitListed waits until a daemon has listed the bucket.
func waitListed(t testing.TB, d *harness.Daemon) {
	t.Helper()
	harness.Poll(t, "the bucket is listed", func() bool {
		text, err := os.ReadFile(d.Path(".kvfs/status"))
		must(t, "read the status", err)
		var status struct {
			Secondaries []struct{ Detail struct{ Listed bool } }
		}
		must(t, "decode the status", json.Unmarshal(text, &status))
		for _, s := range status.Secondaries {
			if s.Detail.Listed {
				return true
			}
		}
		return false
	})
}

// waitFound waits until a daemon finds each block.
func waitFound(t testing.TB, d *harness.Daemon, bs blocks) {
	t.Helper()
	for name := range bs {
		harness.Poll(t, name+" is found", func() bool { return tiersOf(d, name) != nil })
	}
}

// evict leaves the blocks of a daemon in the bucket only.
func evict(t testing.TB, d *harness.Daemon, tiers ...string) {
	t.Helper()
	for _, tier := range tiers {
		if stdout, stderr, code := harness.Kvfs(t, "evict", "--tier", tier, "--all", d.Dir); code != 0 {
			t.Fatalf("kvfs evict --tier %s: exit code %d\n%s%s", tier, code, stdout, stderr)
		}
	}
}

// cold stores blocks and leaves them in the bucket only.
func cold(t testing.TB, d *harness.Daemon, bs blocks) {
	t.Helper()
	storeAll(t, d, bs)
	waitStored(t, d, bs)
	evict(t, d, "memory")
	for name := range bs {
		if got := tiersOf(d, name); !slices.Equal(got, []string{"object"}) {
			t.Fatalf("tiers of %s: got %q, want object", name, got)
		}
	}
}

// remove removes a block.
func remove(t testing.TB, d *harness.Daemon, name string) {
	t.Helper()
	must(t, "remove", os.Remove(d.Path(name)))
}

// damage changes an object below the prefix.
func damage(s *s3test.Server, name string, change func(data []byte)) {
	data := s.Get(prefix + "/" + name)
	change(data)
	s.Put(prefix+"/"+name, data)
}
