package cluster

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDirectoryKept shows that a directory of another node stays for the processes that use it when that node stops, dies
// or is cut off: they made sure of it once, opened it or were about to write in it. An rmdir on
// any node still removes it everywhere.
func TestDirectoryKept(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{})
	maker, user := w.Nodes[0], w.Nodes[1]
	for _, fault := range []struct {
		name         string
		break_, mend func()
	}{
		{"cut off", func() { w.Net.Isolate(maker.Index) }, w.Net.Heal},
		{"killed", maker.Kill, maker.Restart},
		{"stopped", func() { maker.Stop() }, maker.Restart},
	} {
		t.Run(fault.name, func(t *testing.T) {
			w.t = t
			top := block("kept-%s", fault.name)
			uses := map[string]func(dir string) error{
				"made": func(dir string) error {
					if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
						t.Errorf("mkdir of what another node has: %v", err)
					}
					return nil
				},
				"opened": func(dir string) error { _, err := os.ReadDir(dir); return err },
				"begun": func(dir string) error {
					f, err := os.Create(dir + "/begun.tmp")
					if err == nil {
						err = errors.Join(f.Close(), os.Remove(dir+"/begun.tmp"))
					}
					return err
				},
			}
			for how := range uses {
				if err := os.MkdirAll(maker.Path(top+"/"+how), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for how, use := range uses {
				harness.Poll(t, how+" is known", func() bool { return w.exists(user, top+"/"+how) })
				if err := use(user.Path(top + "/" + how)); err != nil {
					t.Errorf("%s: %v", how, err)
				}
			}
			fault.break_()
			harness.Poll(t, "the node is gone", func() bool { return member(user, maker.Name).State != "alive" })
			for how := range uses {
				w.mustWrite(user, top+"/"+how+"/block", 4*kib)
			}
			fault.mend()
			w.WaitJoined()
			for how := range uses {
				w.remove(user, top+"/"+how+"/block")
				harness.Poll(t, "it is removed on "+maker.Name, func() bool {
					err := unix.Rmdir(maker.Path(top + "/" + how))
					return err == nil || errors.Is(err, unix.ENOENT)
				})
				harness.Poll(t, "it is gone on "+user.Name, func() bool { return !w.exists(user, top+"/"+how) })
			}
		})
	}
}
