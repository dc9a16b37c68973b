package device

import (
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/zap"
)

// waits is the Files of a mount whose blocks take long to come.
type waits struct{ *oneFile }

// OpenLater implements Files.
func (waits) OpenLater(*fuse.OpenIn, *fuse.OpenOut, Reply) (fuse.Status, bool) { return fuse.OK, true }

// TestInterrupt shows that an INTERRUPT of an OPEN gets no answer, for EAGAIN would have the
// kernel ask again at once, and that go-fuse sees to the others.
func TestInterrupt(t *testing.T) {
	w := newLoop(waits{newOneFile(1)}, &fuse.MountOptions{MaxWrite: 4096}, zap.NewNop()).newWorker()
	defer w.free()
	open := (*fuse.OpenIn)(unsafe.Pointer(&w.in[0]))
	*open = fuse.OpenIn{InHeader: fuse.InHeader{Opcode: opcodeOpen, Unique: 42, NodeId: oneNode}}
	if size, ok := w.hot(-1, int(unsafe.Sizeof(*open))); size != 0 || !ok {
		t.Fatalf("OPEN: %d bytes, %v", size, ok)
	}
	for _, of := range []uint64{42, 44} {
		in := (*fuse.InterruptIn)(unsafe.Pointer(&w.in[0]))
		*in = fuse.InterruptIn{InHeader: fuse.InHeader{Opcode: opcodeInterrupt, Unique: of | 1}, Unique: of}
		if size, ok := w.hot(-1, int(unsafe.Sizeof(*in))); size != 0 || ok != (of == 42) {
			t.Errorf("INTERRUPT of %d: %d bytes, %v", of, size, ok)
		}
	}
}
