package harness

import (
	"os"
	"path/filepath"
	"testing"
)

// Serve starts an owner, kvfs serve, and waits until mounts can attach to it. The result is a
// Daemon without a mount: its Dir stays empty, and Status asks the mounts.
func Serve(tb testing.TB, opts Options) *Daemon {
	tb.Helper()
	KvfsOnly(tb, "no owner to start")
	NeedFuse(tb)
	if os.Geteuid() != 0 {
		Skip(tb, "needs root, to mount without fusermount3")
	}
	d := &Daemon{tb: tb, opts: opts}
	d.makeDirs()
	d.Socket = filepath.Join(d.base, "run", "store.sock")
	tb.Cleanup(d.cleanup)
	d.start()
	return d
}

// Attach mounts the owner's blocks.
func (d *Daemon) Attach(flags ...string) *Daemon {
	d.tb.Helper()
	return Mount(d.tb, Options{MemorySize: "-", Flags: append(d.AttachFlags(), flags...)})
}

// AttachFlags are the flags of a mount that attaches to the owner.
func (d *Daemon) AttachFlags() []string {
	return []string{"--mode", "standalone-store", "--store-socket", d.Socket}
}
