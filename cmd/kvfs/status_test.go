package main

import (
	"encoding"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/disk"
)

// statusExample has a field that this version does not know, and a tier that
// lacks most of what it does.
const statusExample = `{
  "version": "v1.2.3", "pid": 42, "uptime_seconds": 3725.4, "future": {"x": [1]},
  "mount": {"dir": "/mnt/kv", "read_path": "passthrough", "write_path": "daemon"},
  "tiers": [
    {"name": "memory", "type": "mem", "state": "online", "used_bytes": 1610612736, "capacity_bytes": 4294967296, "pinned_bytes": 1024, "blocks": 96, "more": 1},
    {"name": "ssd", "state": "offline", "reason": "too many errors"}
  ]
}`

// statusDir makes a directory that looks like a mount.
func statusDir(t *testing.T, text string) string {
	t.Helper()
	return filepath.Dir(filepath.Dir(writeTemp(t, ".kvfs/status", text)))
}

// TestStatus pins the table, and that --json passes the document on as it is.
func TestStatus(t *testing.T) {
	dir := statusDir(t, statusExample)
	want := `version     v1.2.3
mount       /mnt/kv
read path   passthrough
write path  daemon
pid         42
uptime      1h2m5s

TIER    TYPE  STATE                      USED     CAPACITY  PINNED   BLOCKS
memory  mem   online                     1.5 GiB  4.0 GiB   1.0 KiB  96
ssd     -     offline (too many errors)  0 B      0 B       0 B      0
`
	if code, out, errs := runCLI("status", dir); code != exit.OK || out != want {
		t.Errorf("exit code %d, %s\ngot\n%s\nwant\n%s", code, errs, out, want)
	}
	if code, out, _ := runCLI("status", "--json", dir); code != exit.OK || out != statusExample+"\n" {
		t.Errorf("exit code %d, got\n%s", code, out)
	}
	if code, out, _ := runCLI("status", statusDir(t, "{}")); code != exit.OK || !strings.Contains(out, "version     -\n") {
		t.Errorf("empty document: exit code %d, got\n%s", code, out)
	}
	if code, _, errs := runCLI("status", statusDir(t, "no json")); code != exit.Runtime || !strings.HasPrefix(errs, "kvfs: status of the daemon: ") {
		t.Errorf("exit code %d, stderr %q", code, errs)
	}
}

// TestStatusOfSecondaries pins the lines of the tiers below memory, and shows that
// the keys are those of tiers.SecondaryStats, and that absent ones do no harm.
func TestStatusOfSecondaries(t *testing.T) {
	ssd := tiers.SecondaryStats{
		Name: "disk", QueuedBlocks: 1, QueuedBytes: 4 << 20, QueueLimitBytes: 1 << 30,
		Cascaded: 12, CascadedBytes: 48 << 20, CascadeDropped: 2, AdmissionRejected: 5,
		Promoted: 1, PromotedBytes: 4 << 20, PromoteCorrupt: 1, PromoteTimeouts: 3,
	}
	ssd.Detail = &disk.Detail{
		BudgetBytes: 2 << 40, WrittenTodayBytes: 1 << 30, ScrubbedBlocks: 9, ScrubbedBytes: 36 << 20, ScrubbedBad: 1,
		Devices: []disk.DeviceDetail{
			{Dir: "/mnt/a", State: "online", UsedBytes: 3 << 20, CapacityBytes: 1 << 30, Blocks: 7, Engine: "io_uring"},
			{Dir: "/mnt/b", State: "offline", Reason: "EIO"},
		},
	}
	sparse := map[string]any{"Name": "disk", "Detail": map[string]any{"devices": []any{map[string]any{"dir": "/mnt/c", "more": 1}}}}
	text, err := json.Marshal(map[string]any{
		"tiers":       []any{map[string]any{"name": "memory"}, map[string]any{"name": "disk", "type": "disk", "state": "degraded"}},
		"secondaries": []any{ssd, sparse, map[string]any{"Name": "peer", "Detail": map[string]any{"devices": 7}}, map[string]any{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `
TIER    TYPE  STATE     USED  CAPACITY  PINNED  BLOCKS
memory  -     -         0 B   0 B       0 B     0
disk    disk  degraded  0 B   0 B       0 B     0

disk
  cascade queue  1 block, 4.0 MiB of 1.0 GiB
  cascaded       12 blocks, 48.0 MiB (queue full 2, not admitted 5)
  promoted       1 block, 4.0 MiB (corrupt 1, timed out 3)
  written today  1.0 GiB of 2.0 TiB
  scrubbed       9 blocks, 36.0 MiB (bad 1)

  DEVICE  STATE          USED     CAPACITY  BLOCKS  ENGINE
  /mnt/a  online         3.0 MiB  1.0 GiB   7       io_uring
  /mnt/b  offline (EIO)  0 B      0 B       0       -

disk
  cascade queue  0 blocks, 0 B of 0 B
  cascaded       0 blocks, 0 B
  promoted       0 blocks, 0 B
  written today  0 B
  scrubbed       0 blocks, 0 B

  DEVICE  STATE  USED  CAPACITY  BLOCKS  ENGINE
  /mnt/c  -      0 B   0 B       0       -

peer
  cascade queue  0 blocks, 0 B of 0 B
  cascaded       0 blocks, 0 B
  promoted       0 blocks, 0 B

-
  cascade queue  0 blocks, 0 B of 0 B
  cascaded       0 blocks, 0 B
  promoted       0 blocks, 0 B
`
	code, out, errs := runCLI("status", statusDir(t, string(text)))
	if code != exit.OK || !strings.HasSuffix(out, want) {
		t.Errorf("exit code %d, %s\ngot\n%s\nwant at the end\n%s", code, errs, out, want)
	}
}

// TestStatusOfSilentDaemon shows that a daemon that never answers costs no more
// than the timeout. A FIFO without a writer never answers either.
func TestStatusOfSilentDaemon(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".kvfs"), 0o700); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, ".kvfs", "status")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := readStatus(dir, time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "has not answered for 1ms") || exit.Code(err) != exit.Runtime {
		t.Errorf("got %v", err)
	}
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0) // lets the reader go
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

// TestStatusOfDeadDaemon shows what the errors of a dead mount become.
func TestStatusOfDeadDaemon(t *testing.T) {
	err := explainStatus("/m", &os.PathError{Op: "open", Path: "/m/.kvfs/status", Err: unix.ENOTCONN})
	if exit.Code(err) != exit.NotMount || err.Error() != "the daemon of /m is dead; clean up with kvfs umount /m" {
		t.Errorf("got %v, code %d", err, exit.Code(err))
	}
	if err := explainStatus("/m", unix.EACCES); !errors.Is(err, unix.EACCES) || exit.Code(err) != exit.Runtime {
		t.Errorf("got %v, code %d", err, exit.Code(err))
	}
}

// TestStatusReadable shows that whatever status may write can be read again: no part of the
// document has a type that only encodes.
func TestStatusReadable(t *testing.T) {
	implements := func(typ reflect.Type, any ...reflect.Type) bool {
		return slices.ContainsFunc(any, func(i reflect.Type) bool { return typ.Implements(i) || reflect.PointerTo(typ).Implements(i) })
	}
	var walk func(typ reflect.Type, path string)
	walk = func(typ reflect.Type, path string) {
		if implements(typ, reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()) {
			if !implements(typ, reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()) {
				t.Errorf("%s is a %v, which only encodes", path, typ)
			}
			return
		}
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			walk(typ.Elem(), path+"[]")
		case reflect.Map:
			walk(typ.Key(), path+"[key]")
			walk(typ.Elem(), path+"[]")
		case reflect.Struct:
			for f := range typ.Fields() {
				if f.IsExported() && f.Tag.Get("json") != "-" {
					walk(f.Type, path+"."+f.Name)
				}
			}
		case reflect.Interface:
			if path != ".Secondaries[].TierStats.Detail" { // of any form, so it is read as that
				t.Errorf("%s is a %v", path, typ)
			}
		case reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
			t.Errorf("%s is a %v", path, typ)
		}
	}
	walk(reflect.TypeFor[statusDocument](), "")
}
