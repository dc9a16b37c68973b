//go:build ofi && cgo

package fabric

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// code is an error number of libfabric: errno, and more.
type code int

// Error implements error.
func (c code) Error() string { return C.GoString(C.kf_strerror(C.int(c))) }

// Is lets a code be compared with an errno.
func (c code) Is(target error) bool {
	e, ok := target.(syscall.Errno)
	return ok && int(e) == int(c)
}

// The numbers of libfabric that matter here.
const (
	codeAgain    = code(syscall.EAGAIN)
	codeCanceled = code(syscall.ECANCELED)
	codeNoData   = code(syscall.ENODATA)
	codeNoKey    = code(syscall.ENOKEY)
)

// errOf makes an error of the result of a function of the shim.
func errOf(rc C.int) error {
	if rc == 0 {
		return nil
	}
	if rc < 0 {
		rc = -rc
	}
	return code(rc)
}

func stepOf(rc C.int, what *C.char) error {
	if err := errOf(rc); err != nil {
		return fmt.Errorf("%s: %w", C.GoString(what), err)
	}
	return nil
}

// cString returns s for C, or nil if s is empty. The caller must call free.
func cString(s string) (c *C.char, free func()) {
	if s == "" {
		return nil, func() {}
	}
	c = C.CString(s)
	return c, func() { C.free(unsafe.Pointer(c)) }
}

// loadLibrary opens the library at path, or says why not.
func loadLibrary(path string) error {
	c, free := cString(path)
	defer free()
	var why [512]C.char
	if C.kf_load(c, &why[0], C.size_t(len(why))) != 0 {
		return errors.New(C.GoString(&why[0]))
	}
	return nil
}

// libraryVersion returns the version of the library that is open.
func libraryVersion() (major, minor int) {
	v := C.kf_version()
	return int(v >> 16), int(v & 0xffff)
}

// info is the offer of a provider on one device.
type info struct {
	c          *C.struct_fi_info
	provider   string
	domain     string
	maxMessage int64
	keyMask    uint64 // of keys that we choose
	format     uint32 // of addresses
	virtual    bool   // addresses of regions are their mapped addresses
	local      bool   // destinations must be registered
	ordered    bool   // over one connection, the peer's memory is read in the order of the messages
}

// getInfo asks for the first endpoint of a provider; empty strings mean any. With manual the
// endpoint makes progress only when it is polled. domains are the names of all that fit.
func getInfo(provider, domain, host string, manual bool) (i *info, domains string, err error) {
	cp, free := cString(provider)
	defer free()
	cd, free := cString(domain)
	defer free()
	ch, free := cString(host)
	defer free()
	var out C.struct_kf_info
	var names [1024]C.char
	if rc := C.kf_getinfo(cp, cd, ch, cInt(manual, 1), &out, &names[0], C.size_t(len(names))); rc != 0 {
		return nil, "", errOf(rc)
	}
	i = &info{
		c: out.info, provider: C.GoString(out.provider), domain: C.GoString(out.domain),
		maxMessage: int64(min(uint64(out.max_message), messageLimit)), keyMask: ^uint64(0), format: uint32(out.format),
		virtual: out.virtual_address != 0, local: out.local != 0, ordered: manual && out.read_order != 0,
	}
	if n := uint64(out.key_size); n > 0 && n < 8 {
		i.keyMask = 1<<(8*n) - 1
	}
	return i, C.GoString(&names[0]), nil
}

func (i *info) free() { C.kf_freeinfo(i.c) }

// domain is an open device.
type domain struct{ c *C.struct_kf_rail }

// openDomain opens the device of i. With serial nothing is registered while peers are served: the
// providers in software look for regions without a lock.
func openDomain(i *info, serial bool) (*domain, error) {
	d := &domain{c: (*C.struct_kf_rail)(C.calloc(1, C.sizeof_struct_kf_rail))}
	var what *C.char
	rc := C.kf_rail_open(i.c, cInt(serial, 1), d.c, &what)
	err := stepOf(rc, what)
	if err != nil {
		C.free(unsafe.Pointer(d.c))
	}
	return d, err
}

func (d *domain) close() error {
	err := errOf(C.kf_rail_close(d.c))
	C.free(unsafe.Pointer(d.c))
	return err
}

// memory is a registration with one device.
type memory struct {
	d   *domain
	c   *C.struct_fid_mr
	key uint64
}

// register registers p, which is mapped and not of the Go heap. want is the key to use, if the
// provider lets callers choose.
func (d *domain) register(p []byte, remote bool, want uint64) (memory, error) {
	m := memory{d: d}
	var key C.uint64_t
	rc := C.kf_mr_open(d.c, unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)), cInt(remote, 1), C.uint64_t(want), &m.c, &key)
	m.key = uint64(key)
	return m, errOf(rc)
}

func (m memory) close() error {
	if m.c == nil {
		return nil
	}
	return errOf(C.kf_mr_close(m.d.c, m.c))
}

const (
	depth = C.KF_DEPTH // operations under way on an endpoint
	batch = C.KF_BATCH // completed operations found at a time
)

// queue is an endpoint of the library with its completion queue. Its functions may be called in
// parallel, but none with or after close.
type queue struct{ c *C.struct_kf_ep }

// openQueue opens an endpoint that reads from the peer at addr, or that peers read from if addr is
// empty. poll: the provider is not asked to wake it. own: it has its own domain.
func openQueue(d *domain, i *info, addr []byte, poll, own bool) (queue, error) {
	var q queue
	var what *C.char
	flags := cInt(poll, C.KF_POLL) | cInt(i.local, C.KF_LOCAL) | cInt(own, C.KF_OWN)
	var a unsafe.Pointer
	if len(addr) > 0 {
		a = C.CBytes(addr)
		defer C.free(a)
	}
	rc := C.kf_ep_open(d.c, a, C.size_t(len(addr)), flags, &q.c, &what)
	return q, stepOf(rc, what)
}

// cInt returns f if set is true.
func cInt(set bool, f C.int) C.int {
	if set {
		return f
	}
	return 0
}

func (q queue) close() error { return errOf(C.kf_ep_close(q.c)) }

// name returns the address of q for peers.
func (q queue) name() ([]byte, error) {
	var room [maxRailAddr]byte
	n := C.size_t(len(room))
	if err := errOf(C.kf_ep_name(q.c, unsafe.Pointer(&room[0]), &n)); err != nil {
		return nil, err
	}
	return append([]byte{}, room[:n]...), nil
}

// wakes reports whether the provider can wake a waiting goroutine.
func (q queue) wakes() bool { return C.kf_ep_wakes(q.c) != 0 }

// read begins to read len(p) bytes at the peer's address at.
func (q queue) read(slot int, p []byte, m memory, at, key uint64) error {
	return errOf(C.kf_ep_read(q.c, C.int(slot), unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)), m.c, C.uint64_t(at), C.uint64_t(key)))
}

// readWord begins to read 8 bytes. word returns them when they are there.
func (q queue) readWord(slot int, at, key uint64) error {
	return errOf(C.kf_ep_word(q.c, C.int(slot), C.uint64_t(at), C.uint64_t(key)))
}

func (q queue) word(slot int) uint64 { return uint64(C.kf_ep_word_of(q.c, C.int(slot))) }

// done is a completed operation.
type done struct {
	slot   int   // -1: not an operation of this package
	err    error // nil, or a code
	detail int   // of the provider
}

// poll makes progress and appends completed operations to out. If there are none, it sleeps until
// there may be one, wake is called, or milliseconds have passed.
func (q queue) poll(out []done, milliseconds int) ([]done, error) {
	var entries [batch]C.struct_kf_done
	n := C.kf_ep_poll(q.c, &entries[0], C.int(milliseconds))
	if n < 0 {
		return out, errOf(n)
	}
	for _, e := range entries[:n] {
		out = append(out, done{slot: int(e.slot), err: errOf(e.err), detail: int(e.detail)})
	}
	return out, nil
}

func (q queue) wake() { C.kf_ep_wake(q.c) }

// pause sleeps until wake is called or milliseconds have passed, without making progress.
func (q queue) pause(milliseconds int) { C.kf_ep_pause(q.c, C.int(milliseconds)) }
