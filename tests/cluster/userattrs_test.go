package cluster

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// crc is the attribute in which vLLM keeps a checksum.
const crc = "user.vllm.kv_crc32c"

// publish stores a block as vLLM does: with an attribute that is set before the rename.
func (w *world) publish(n *harness.Node, name, value string) (version uint64) {
	w.t.Helper()
	version = w.begin(name)
	tmp := n.Path(name) + ".tmp"
	if err := os.WriteFile(tmp, content(name, version, 256*kib), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := unix.Setxattr(tmp, crc, []byte(value), 0); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(tmp, n.Path(name)); err != nil {
		w.t.Fatal(err)
	}
	return version
}

// attr returns the attribute of a block on a node, "" if the block has none.
func (w *world) attr(n *harness.Node, name string) string {
	w.t.Helper()
	buf := make([]byte, 64)
	size, err := unix.Getxattr(n.Path(name), crc, buf)
	if err != nil && err != unix.ENODATA {
		w.t.Errorf("%s on %s: %v", name, n.Name, err)
	}
	return string(buf[:max(size, 0)])
}

// TestUserAttrs: the attributes of processes of a block are the same on all nodes, with each version (H2).
func TestUserAttrs(t *testing.T) {
	w := newWorld(t, harness.ClusterOptions{Nodes: 2, PeerTimeout: patient})
	a, b := w.Nodes[0], w.Nodes[1]
	name := block("attrs")
	w.wantVersion(b, name, w.publish(a, name, "one"))
	if got := w.attr(b, name); got != "one" {
		w.t.Errorf("after a read: %q", got)
	}
	asked := block("asked")
	w.publish(a, asked, "asked")
	harness.Poll(w.t, "the block is there", func() bool { return w.exists(b, asked) })
	if got := w.attr(b, asked); got != "asked" { // it is not here yet
		w.t.Errorf("before a read: %q", got)
	}
	for _, value := range []string{"two", ""} { // of the same bytes
		err := unix.Removexattr(a.Path(name), crc)
		if value != "" {
			err = unix.Setxattr(a.Path(name), crc, []byte(value), 0)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		harness.Poll(w.t, "the other node has the change", func() bool { return w.exists(b, name) && w.attr(b, name) == value })
		w.mustRead(b, name)
	}
	if err := unix.Setxattr(b.Path(asked), crc, []byte("changed"), 0); err != nil { // on the node that did not make it
		w.t.Fatal(err)
	}
	harness.Poll(w.t, "its maker has the change", func() bool { return w.exists(a, asked) && w.attr(a, asked) == "changed" })
	w.wantVersion(b, name, w.publish(a, name, "three"))
	if got := w.attr(b, name); got != "three" {
		w.t.Errorf("of the next version: %q", got)
	}
	w.wantVersion(b, name, w.mustWrite(a, name, 256*kib))
	if got := w.attr(b, name); got != "" {
		w.t.Errorf("of a version without: %q", got)
	}
}
