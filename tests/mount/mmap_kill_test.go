package mount

import (
	"fmt"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestMapOutlivesDaemon: with passthrough a mapping needs no daemon, neither to read a block nor to store one, be it
// the first of its group: kill -9 of the daemon gives no SIGBUS (LMCache GDS).
func TestMapOutlivesDaemon(t *testing.T) {
	harness.KvfsOnly(t, "the daemon's end")
	const size = 2 * mib
	d := harness.Mount(t, harness.Options{})
	if s := d.Status().Mount; s.ReadPath != "passthrough" || s.WritePath != "passthrough" {
		harness.Skip(t, "no passthrough")
	}
	mkdir(t, d.Path("known"))
	mkdir(t, d.Path("new"))
	store(t, d.Path("known", "first"), pattern("first", size))
	maps := map[string][]byte{"read": mapFile(t, open(t, d.Path("known", "first"), unix.O_RDONLY, 0), size, unix.PROT_READ, unix.MAP_SHARED)}
	for _, name := range []string{"known/x", "known/x.tmp", "known/x.lock", "new/x", "new/x.tmp"} {
		f := open(t, d.Path(name), unix.O_RDWR|unix.O_CREAT, 0o644)
		f.truncate(size)
		maps[name] = mapFile(t, f, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		copy(maps[name], pattern(name, size)[:size/2])
	}
	d.Kill()
	for name, m := range maps {
		if err := guarded(func() {
			if name == "read" {
				sameBytes(t, name, m, pattern("first", size))
				return
			}
			copy(m[size/2:], pattern(name, size)[size/2:])
			sameBytes(t, name, m, pattern(name, size))
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// guarded runs fn, and returns as an error that a page of a mapping could not be had, which else ends the process.
func guarded(fn func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("fault: %v", r)
		}
	}()
	fn()
	return nil
}
