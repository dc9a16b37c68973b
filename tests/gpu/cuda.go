//go:build cgo && linux

package gpu

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

// What is used of the CUDA driver API (cuda.h, 11.1 or later). The ABI of these functions
// is fixed: a newer form of one has another name.
typedef int (*fn_init)(unsigned);
typedef int (*fn_count)(int *);
typedef int (*fn_get)(int *, int);
typedef int (*fn_name)(char *, int, int);
typedef int (*fn_attr)(int *, int, int);
typedef int (*fn_retain)(void **, int);
typedef int (*fn_release)(int);
typedef int (*fn_ctx)(void *);
typedef int (*fn_register)(void *, size_t, unsigned);
typedef int (*fn_host)(void *);
typedef int (*fn_alloc_host)(void **, size_t);
typedef int (*fn_alloc)(unsigned long long *, size_t);
typedef int (*fn_free)(unsigned long long);
typedef int (*fn_h2d)(unsigned long long, const void *, size_t, void *);
typedef int (*fn_d2h)(void *, unsigned long long, size_t);
typedef int (*fn_set)(unsigned long long, unsigned char, size_t);
typedef int (*fn_sync)(void *);
typedef int (*fn_error)(int, const char **);

static struct {
	fn_init init;
	fn_count count;
	fn_get get;
	fn_name name;
	fn_attr attr;
	fn_retain retain;
	fn_release release;
	fn_ctx set_current;
	fn_register host_register;
	fn_host host_unregister;
	fn_alloc_host alloc_host;
	fn_host free_host;
	fn_alloc alloc;
	fn_free free;
	fn_h2d h2d;
	fn_d2h d2h;
	fn_set set;
	fn_sync sync;
	fn_error error_name;
} cu;

// cu_open returns NULL, or what is missing.
static const char *cu_open(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) return dlerror();
	struct { void **to; const char *name; } names[] = {
		{(void **)&cu.init, "cuInit"},
		{(void **)&cu.count, "cuDeviceGetCount"},
		{(void **)&cu.get, "cuDeviceGet"},
		{(void **)&cu.name, "cuDeviceGetName"},
		{(void **)&cu.attr, "cuDeviceGetAttribute"},
		{(void **)&cu.retain, "cuDevicePrimaryCtxRetain"},
		{(void **)&cu.release, "cuDevicePrimaryCtxRelease_v2"},
		{(void **)&cu.set_current, "cuCtxSetCurrent"},
		{(void **)&cu.host_register, "cuMemHostRegister_v2"},
		{(void **)&cu.host_unregister, "cuMemHostUnregister"},
		{(void **)&cu.alloc_host, "cuMemAllocHost_v2"},
		{(void **)&cu.free_host, "cuMemFreeHost"},
		{(void **)&cu.alloc, "cuMemAlloc_v2"},
		{(void **)&cu.free, "cuMemFree_v2"},
		{(void **)&cu.h2d, "cuMemcpyHtoDAsync_v2"},
		{(void **)&cu.d2h, "cuMemcpyDtoH_v2"},
		{(void **)&cu.set, "cuMemsetD8_v2"},
		{(void **)&cu.sync, "cuStreamSynchronize"},
		{(void **)&cu.error_name, "cuGetErrorName"},
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		*names[i].to = dlsym(lib, names[i].name);
		if (!*names[i].to) return dlerror();
	}
	return NULL;
}

static int cu_init(void) { return cu.init(0); }
static int cu_count(int *n) { return cu.count(n); }
static int cu_get(int *dev, int i) { return cu.get(dev, i); }
static int cu_name(char *name, int n, int dev) { return cu.name(name, n, dev); }
static int cu_attr(int *v, int attr, int dev) { return cu.attr(v, attr, dev); }
static int cu_retain(void **ctx, int dev) { return cu.retain(ctx, dev); }
static int cu_release(int dev) { return cu.release(dev); }
static int cu_set_current(void *ctx) { return cu.set_current(ctx); }
static int cu_register(void *p, size_t n, unsigned flags) { return cu.host_register(p, n, flags); }
static int cu_unregister(void *p) { return cu.host_unregister(p); }
static int cu_alloc_host(void **p, size_t n) { return cu.alloc_host(p, n); }
static int cu_free_host(void *p) { return cu.free_host(p); }
static int cu_alloc(unsigned long long *p, size_t n) { return cu.alloc(p, n); }
static int cu_free(unsigned long long p) { return cu.free(p); }
static int cu_d2h(void *to, unsigned long long from, size_t n) { return cu.d2h(to, from, n); }
static int cu_set(unsigned long long p, unsigned char v, size_t n) { return cu.set(p, v, n); }

// cu_h2d copies in the default stream and waits for it.
static int cu_h2d(unsigned long long to, const void *from, size_t n) {
	int rc = cu.h2d(to, from, n, NULL);
	return rc ? rc : cu.sync(NULL);
}

static const char *cu_error(int rc) {
	const char *s = NULL;
	return cu.error_name(rc, &s) || !s ? "unknown error" : s;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Of cuda.h.
const (
	registerReadOnly      = 0x08 // CU_MEMHOSTREGISTER_READ_ONLY
	attrReadOnlySupported = 113  // CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
	attrHostPageTables    = 100  // CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
)

// device is the first GPU, with its primary context on the thread of the goroutine that
// opened it, which stays on it until close.
type device struct {
	id             C.int
	name           string
	readOnly       bool // can register what is mapped for reading alone
	hostPageTables bool // walks the page tables of the processor
}

// openDevice fails where there is nothing to open.
func openDevice() (*device, error) {
	if why := C.cu_open(); why != nil {
		return nil, errors.New(C.GoString(why))
	}
	var count C.int
	if err := errors.Join(check("cuInit", C.cu_init()), check("cuDeviceGetCount", C.cu_count(&count))); err != nil {
		return nil, err
	}
	if count == 0 {
		return nil, errors.New("no GPU")
	}
	d := &device{}
	if err := check("cuDeviceGet", C.cu_get(&d.id, 0)); err != nil {
		return nil, err
	}
	var name [256]C.char
	if err := check("cuDeviceGetName", C.cu_name(&name[0], C.int(len(name)), d.id)); err != nil {
		return nil, err
	}
	d.name = C.GoString(&name[0])
	d.readOnly, d.hostPageTables = d.has(attrReadOnlySupported), d.has(attrHostPageTables)
	runtime.LockOSThread()
	var ctx unsafe.Pointer
	err := check("cuDevicePrimaryCtxRetain", C.cu_retain(&ctx, d.id))
	if err == nil {
		err = check("cuCtxSetCurrent", C.cu_set_current(ctx))
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return d, nil
}

// check turns a result of the library into an error.
func check(call string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (%d)", call, C.GoString(C.cu_error(rc)), int(rc))
}

// has reports whether an attribute is there and not 0. An older library does not know all.
func (d *device) has(attr C.int) bool {
	var v C.int
	return C.cu_attr(&v, attr, d.id) == 0 && v != 0
}

func (d *device) close() error {
	defer runtime.UnlockOSThread()
	return check("cuDevicePrimaryCtxRelease", C.cu_release(d.id))
}

// register pins the pages of mem, which is not of Go, for the copy engine.
func (d *device) register(mem []byte, flags uint) error {
	return check("cuMemHostRegister", C.cu_register(unsafe.Pointer(&mem[0]), C.size_t(len(mem)), C.uint(flags)))
}

func (d *device) unregister(mem []byte) error {
	return check("cuMemHostUnregister", C.cu_unregister(unsafe.Pointer(&mem[0])))
}

// allocHost returns pinned memory.
func (d *device) allocHost(n int) ([]byte, error) {
	var p unsafe.Pointer
	if err := check("cuMemAllocHost", C.cu_alloc_host(&p, C.size_t(n))); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), n), nil
}

func (d *device) freeHost(mem []byte) error {
	return check("cuMemFreeHost", C.cu_free_host(unsafe.Pointer(&mem[0])))
}

// memory is that of the GPU.
type memory C.ulonglong

func (d *device) alloc(n int) (memory, error) {
	var p C.ulonglong
	err := check("cuMemAlloc", C.cu_alloc(&p, C.size_t(n)))
	return memory(p), err
}

func (d *device) free(m memory) error { return check("cuMemFree", C.cu_free(C.ulonglong(m))) }

// clear overwrites n bytes, so that what is read back is not left from before.
func (d *device) clear(m memory, n int) error {
	return check("cuMemsetD8", C.cu_set(C.ulonglong(m), 0xa5, C.size_t(n)))
}

// copyTo copies from to the GPU and returns when it is there.
func (d *device) copyTo(m memory, from []byte) error {
	return check("cuMemcpyHtoDAsync", C.cu_h2d(C.ulonglong(m), unsafe.Pointer(&from[0]), C.size_t(len(from))))
}

// copyFrom copies from the GPU.
func (d *device) copyFrom(to []byte, m memory) error {
	return check("cuMemcpyDtoH", C.cu_d2h(unsafe.Pointer(&to[0]), C.ulonglong(m), C.size_t(len(to))))
}
