package mount

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestVLLM replays vLLM's users of files as whole sequences of system calls:
// section 2a and 2a' of the contract.
func TestVLLM(t *testing.T) {
	d := harness.Mount(t, harness.Options{MemorySize: "512MiB"})
	runRows(t, d, []row{
		{"P0 fs tier, C path: start, probe, store, look up, load (vLLM)", vllmTier},
		{"P0 fs tier: two instances with 16 writers and 16 readers each share a tree (vLLM)", vllmInstances},
		{"P0 fs tier: a corrupt short block is unlinked by the loader (vLLM)", vllmUnlinkShort},
		{"P1 simple_kv_offload DiskBackend (vLLM)", vllmDiskBackend},
		{"P1 ExampleConnector: one directory a prefix, safetensors by temp, mmap twice (vLLM)", vllmExampleConnector},
		{"P1 ExampleHiddenStatesConnector: safetensors under flock (vLLM)", vllmHiddenStates},
	})
}

const vllmModel = "meta-llama_Llama-3.1-8B_c78c9e79d404"

// vllmPath returns the path of block i below root.
func vllmPath(root string, i int) string {
	h := hash64(i)
	return filepath.Join(root, vllmModel+"_r0", h[0:3], h[3:5]+"_g0", h+".bin")
}

// vllmStart writes config.json and probes O_DIRECT as each instance does.
func vllmStart(t testing.TB, root string) {
	t.Helper()
	dir := filepath.Join(root, vllmModel)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	config := dir + "/config.json"
	if err := unix.Stat(config, &st); err == unix.ENOENT {
		b, _ := json.Marshal(map[string]any{"model": vllmModel, "block_size": 16})
		put(t, config, b)
	}
	p := dir + "/.o_direct_probe_4553700977220842880.tmp"
	f := open(t, p, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC|unix.O_DIRECT, 0o644)
	f.write(aligned(t, make([]byte, 4096)))
	f.close()
	unlink(t, p)
}

// vllmStore is one block's part of FileSystemTierManager's store job. thread
// distinguishes temporaries.
func vllmStore(t testing.TB, a *harness.Actor, final string, thread uint64, p []byte) error {
	if a.Access(final, unix.F_OK) == nil {
		return nil
	}
	var missing []string
	for dir := filepath.Dir(final); ; dir = filepath.Dir(dir) {
		if _, err := a.Stat(dir); err == nil {
			break
		}
		missing = append(missing, dir)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := a.Mkdir(missing[i], 0o777); err != nil && err != unix.EEXIST {
			return fmt.Errorf("mkdir: %w", err)
		}
	}
	tmp := fmt.Sprintf("%s_%d.tmp", final, thread)
	fd, err := a.Open(tmp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_TRUNC|unix.O_DIRECT, 0o644)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	n, err := a.Write(fd, p)
	if err != nil || n != len(p) {
		return fmt.Errorf("write: %d, %w", n, err)
	}
	if err := a.Close(fd); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	if err := a.Rename(tmp, final); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	return nil
}

// vllmLoad opens with O_DIRECT and reads the block with one call.
func vllmLoad(t testing.TB, final string, n int) []byte {
	t.Helper()
	f := open(t, final, unix.O_RDONLY|unix.O_DIRECT, 0)
	defer f.close()
	return f.read(n)
}

func vllmTier(t *testing.T, e *env) {
	const size = 2 * mib
	vllmStart(t, e.dir)
	vllmStart(t, e.dir)
	for i := range 24 {
		p := vllmPath(e.dir, i)
		wantErrno(t, "look-up before", harness.Self().Access(p, unix.F_OK), unix.ENOENT)
		b := aligned(t, pattern(p, size))
		must(t, "store", vllmStore(t, harness.Self(), p, 4553700977220842880, b))
		must(t, "store again", vllmStore(t, harness.Self(), p, 4553700977220842880, b))
	}
	for i := range 24 {
		p := vllmPath(e.dir, i)
		must(t, "look-up", e.process().Access(p, unix.F_OK))
		wantSize(t, p, size)
		sameBytes(t, filepath.Base(p), vllmLoad(t, p, size), pattern(p, size))
		wantSeen(t, e.process(), p, pattern(p, size))
		if names := listNames(t, filepath.Dir(p)); len(names) != 1 {
			t.Errorf("beside the block: %q", names)
		}
	}
	wantErrno(t, "load of an absent block", openErr(t, vllmPath(e.dir, 99), unix.O_RDONLY|unix.O_DIRECT), unix.ENOENT)
}

func openErr(t testing.TB, path string, flags int) error {
	f, err := tryOpen(t, path, flags, 0)
	if err == nil {
		f.close()
	}
	return err
}

func vllmInstances(t *testing.T, e *env) {
	const size, blocks, threads = 128 * kib, 64, 16
	vllmStart(t, e.dir)
	var wg sync.WaitGroup
	instances := make([]*harness.Actor, 2)
	for i := range instances {
		instances[i] = harness.NewActor(t, nil)
		wg.Go(func() {
			for b := range blocks {
				p := vllmPath(e.dir, b)
				if err := vllmStore(t, instances[i], p, uint64(1000+i), pattern(fmt.Sprint(b), size)); err != nil {
					t.Errorf("instance %d, block %d: %v", i, b, err)
				}
			}
		})
	}
	for w := range threads {
		wg.Go(func() {
			for b := w; b < blocks; b += threads / 2 {
				if err := vllmStore(t, harness.Self(), vllmPath(e.dir, b), uint64(w), pattern(fmt.Sprint(b), size)); err != nil {
					t.Errorf("thread %d, block %d: %v", w, b, err)
				}
			}
		})
		wg.Go(func() {
			for b := range blocks {
				got, err := os.ReadFile(vllmPath(e.dir, b))
				if os.IsNotExist(err) {
					continue
				}
				if err != nil || !bytes.Equal(got, pattern(fmt.Sprint(b), size)) {
					t.Errorf("block %d: %d bytes, %v", b, len(got), err)
				}
			}
		})
	}
	wg.Wait()
	for b := range blocks {
		wantBytes(t, vllmPath(e.dir, b), pattern(fmt.Sprint(b), size))
	}
}

func vllmUnlinkShort(t *testing.T, e *env) {
	p := vllmPath(e.dir, 0)
	must(t, "store", vllmStore(t, harness.Self(), p, 1, pattern(p, mib)))
	if b := vllmLoad(t, p, 2*mib); len(b) != mib {
		t.Fatalf("read beyond the end: got %d bytes, want %d", len(b), mib)
	}
	unlink(t, p)
	must(t, "store again", vllmStore(t, harness.Self(), p, 1, pattern(p, 2*mib)))
	sameBytes(t, "loaded", vllmLoad(t, p, 2*mib), pattern(p, 2*mib))
}

func vllmDiskBackend(t *testing.T, e *env) {
	const slots, slot, parts = 16, 2 * mib, 32
	p := e.path("worker0.kv")
	unix.Unlink(p)
	f := open(t, p, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_DIRECT, 0o600)
	f.truncate(slots * slot)
	vectors := func(b []byte) (iov [][]byte) {
		for i := range parts {
			iov = append(iov, b[i*slot/parts:(i+1)*slot/parts])
		}
		return iov
	}
	rnd := newRand(t)
	var version [slots]int
	for i := 1; i <= 60; i++ {
		s := rnd.IntN(slots)
		version[s] = i
		b := aligned(t, pattern(fmt.Sprint(s, i), slot))
		if n, err := unix.Pwritev(f.fd, vectors(b), int64(s)*slot); err != nil || n != slot {
			t.Fatalf("pwritev: %d, %v", n, err)
		}
		s = rnd.IntN(slots)
		got := aligned(t, make([]byte, slot))
		if n, err := unix.Preadv(f.fd, vectors(got), int64(s)*slot); err != nil || n != slot {
			t.Fatalf("preadv: %d, %v", n, err)
		}
		want := make([]byte, slot)
		if version[s] > 0 {
			want = pattern(fmt.Sprint(s, version[s]), slot)
		}
		sameBytes(t, fmt.Sprintf("slot %d", s), got, want)
	}
	unlink(t, p)
	b := aligned(t, pattern("last", slot))
	f.pwrite(b, 3*slot)
	sameBytes(t, "after unlink", f.pread(slot, 3*slot), b)
	f.close()
	wantAbsent(t, e.process(), p)
}

// saveSafetensors writes as the safetensors library (0.7) does: a temporary file
// of mode 0600, its size first, 1 MiB at a time, then a rename.
func saveSafetensors(t testing.TB, path string, tensor []byte) []byte {
	t.Helper()
	header := fmt.Appendf(nil, `{"kv_cache":{"dtype":"BF16","shape":[%d],"data_offsets":[0,%d]}}`, len(tensor)/2, len(tensor))
	all := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	all = append(append(all, header...), tensor...)
	tmp := filepath.Join(filepath.Dir(path), ".tmpQx81Zk")
	f := open(t, tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	f.truncate(int64(len(all)))
	for off := 0; off < len(all); off += mib {
		f.write(all[off:min(off+mib, len(all))])
	}
	f.close()
	rename(t, tmp, path)
	return all
}

// loadSafetensors maps the file twice, as the library and torch do.
func loadSafetensors(t testing.TB, path string) []byte {
	t.Helper()
	n := int(stat(t, path).Size)
	var maps [2][]byte
	for i := range maps {
		f := open(t, path, unix.O_RDONLY, 0)
		maps[i] = mapFile(t, f, n, unix.PROT_READ, unix.MAP_PRIVATE)
		f.close()
	}
	sameBytes(t, "second mapping", maps[1], maps[0])
	return maps[0]
}

func vllmExampleConnector(t *testing.T, e *env) {
	var st unix.Stat_t
	for prefix := range 4 {
		dir := e.path(hash64(prefix)[:32])
		wantErrno(t, "exists", unix.Stat(dir, &st), unix.ENOENT)
		for layer := range 8 {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			p := fmt.Sprintf("%s/model.layers.%d.self_attn.attn.safetensors", dir, layer)
			want := saveSafetensors(t, p, pattern(p, mib+100))
			sameBytes(t, p, loadSafetensors(t, p), want)
			wantSeen(t, e.process(), p, want)
		}
		if got := len(listNames(t, dir)); got != 8 {
			t.Errorf("%d files in the directory, want 8", got)
		}
		must(t, "exists, other process", e.process().Access(dir, unix.F_OK))
	}
}

func vllmHiddenStates(t *testing.T, e *env) {
	p := e.path("req-1.safetensors")
	lock := open(t, p+".lock", unix.O_RDWR|unix.O_CREAT, 0o644)
	must(t, "LOCK_EX", unix.Flock(lock.fd, unix.LOCK_EX))
	fd, err := e.process().Open(p+".lock", unix.O_RDWR|unix.O_CREAT, 0o644)
	must(t, "open", err)
	locked := make(chan error, 1)
	go func() { locked <- e.process().Flock(fd, unix.LOCK_SH) }()
	want := saveSafetensors(t, p, pattern("hidden", mib))
	must(t, "LOCK_UN", unix.Flock(lock.fd, unix.LOCK_UN))
	must(t, "LOCK_SH of the reader", <-locked)
	wantSeen(t, e.process(), p, want)
}
