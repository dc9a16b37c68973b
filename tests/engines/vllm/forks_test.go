package vllm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/engines/replay"
	"github.com/kvfs/kvfs/tests/harness"
)

const sumAttr = "user.vllm.kv_crc32c"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// storeSummed stores a block as the tier does with checksum_blocks. publish gives the temporary file its name.
func storeSummed(path string, data []byte, publish func(tmp, path string) error) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	sum := binary.LittleEndian.AppendUint32(nil, crc32.Checksum(data, castagnoli))
	return errors.Join(err, unix.Fsetxattr(int(f.Fd()), sumAttr, sum, 0), f.Close(), publish(tmp, path))
}

// loadSummed loads a block and checks it, as the tier does with checksum_blocks.
func loadSummed(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var sum [4]byte
	if n, err := unix.Fgetxattr(int(f.Fd()), sumAttr, sum[:]); n != 4 {
		return nil, fmt.Errorf("attribute of %d bytes: %w", n, err)
	}
	data, err := os.ReadFile(path)
	if err == nil && crc32.Checksum(data, castagnoli) != binary.LittleEndian.Uint32(sum[:]) {
		err = errors.New("the sum is another")
	}
	return data, err
}

// TestChecksumBlocks makes the calls of checksum_blocks: its probe at the start succeeds, and each block that is there has the
// sum of its bytes, in memory, from the SSD, after a restart, and after it was stored anew (H2).
func TestChecksumBlocks(t *testing.T) {
	d := replay.Mount(t, harness.Options{MemorySize: "16MiB", Disk: "128MiB"}, rootAt)
	root := d.Path(rootAt)
	must(t, os.MkdirAll(root, 0o755))
	probe := root + "/probe.tmp"
	must(t, os.WriteFile(probe, nil, 0o644))
	must(t, unix.Setxattr(probe, sumAttr, []byte{1, 2, 3, 4}, 0))
	must(t, os.Remove(probe))

	const blocks = 32 // of 1 MiB: twice the memory
	block := func(i, version int) []byte {
		data := make([]byte, 1<<20)
		binary.LittleEndian.PutUint64(data[i:], uint64(i+1000*version))
		return data
	}
	check := func(what string, version func(i int) int) {
		t.Helper()
		for i := range blocks {
			data, err := loadSummed(fmt.Sprint(root, "/", i))
			if must(t, err); string(data) != string(block(i, version(i))) {
				t.Errorf("%s: block %d has other bytes", what, i)
			}
		}
	}
	for i := range blocks {
		must(t, storeSummed(fmt.Sprint(root, "/", i), block(i, 0), os.Rename))
	}
	check("stored", func(int) int { return 0 })
	for i := 0; i < blocks; i += 2 {
		must(t, storeSummed(fmt.Sprint(root, "/", i), block(i, 1), os.Rename))
	}
	later := func(i int) int { return (i + 1) % 2 }
	check("half of them anew", later)
	d.Restart()
	check("after a restart", later)
}

// TestPublishByLink makes the calls of a fork that publishes a block by link and unlink: who is first has the name, the
// other finds EEXIST, and neither leaves its temporary file (H5).
func TestPublishByLink(t *testing.T) {
	d := replay.Mount(t, harness.Options{}, rootAt)
	root := d.Path(rootAt)
	must(t, os.MkdirAll(root, 0o755))
	publish := func(tmp, path string) error { return errors.Join(os.Link(tmp, path), os.Remove(tmp)) }
	must(t, storeSummed(root+"/a", []byte("first"), publish))
	if err := storeSummed(root+"/a", []byte("second"), publish); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second publisher: %v", err)
	}
	if data, err := loadSummed(root + "/a"); err != nil || string(data) != "first" {
		t.Errorf("read %q, %v", data, err)
	}
	if names, err := os.ReadDir(root); err != nil || len(names) != 1 {
		t.Errorf("the directory has %v, %v", names, err)
	}
}
