package mount

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

var oddNames = []string{
	"meta-llama@1@0@5feceb66ffc86f38@bfloat16.pt",
	"100%25 = a.b-c",
	".hidden",
	"..data",
	"...",
	".tmpAbCdEf",
	".metadata",
	"x.lock",
	"ends in space ",
	"new\nline\ttab",
	"caf\u00e9 \u65e5\u672c\u8a9e \U0001f600",
	"\x01\x7f\x80\xfe\xff",
	"back\\slash:colon*star?\"quote'",
	"-rf",
	"~",
	strings.Repeat("n", 255),
	strings.Repeat("\xff", 255),
	strings.Repeat("h", 64) + ".bin_9223372036854775807.tmp",
}

var nameRows = []row{
	{"P0 names of any byte but slash and NUL (LMCache, SGLang, llama.cpp)", func(t *testing.T, e *env) {
		for _, name := range oddNames {
			store := func(p string) { put(t, p, pattern(name, 4097)) }
			store(e.path(name))
			wantSeen(t, e.process(), e.path(name), pattern(name, 4097))
		}
		want := slices.Sorted(slices.Values(oddNames))
		if got := listNames(t, e.dir); !slices.Equal(got, want) {
			t.Errorf("names: got %q, want %q", got, want)
		}
		for _, name := range oddNames {
			rename(t, e.path(name), e.path("moved"))
			rename(t, e.path("moved"), e.path(name))
			wantBytes(t, e.path(name), pattern(name, 4097))
			unlink(t, e.path(name))
		}
		for _, name := range oddNames {
			mkdir(t, e.path(name))
			must(t, "rmdir", unix.Rmdir(e.path(name)))
		}
	}},
}

var otherNameRows = []row{
	{"P0 .kvfs is reserved: EPERM to make, not listed, resolves (kvfs)", func(t *testing.T, e *env) {
		harness.KvfsOnly(t, "control directory")
		ctl := e.d.Path(".kvfs")
		wantErrno(t, "mkdir", unix.Mkdir(ctl, 0o755), unix.EPERM, unix.EEXIST)
		_, err := tryOpen(t, ctl, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
		wantErrno(t, "create", err, unix.EPERM, unix.EEXIST)
		_, err = tryOpen(t, ctl+"/new-file", unix.O_CREAT|unix.O_WRONLY, 0o644)
		wantErrno(t, "create in it", err, unix.EPERM)
		wantErrno(t, "mkdir in it", unix.Mkdir(ctl+"/new-dir", 0o755), unix.EPERM)
		put(t, e.path("f"), []byte("f"))
		mkdir(t, e.path("d"))
		wantErrno(t, "rename file to it", unix.Rename(e.path("f"), ctl), unix.EPERM, unix.EISDIR)
		wantErrno(t, "rename directory to it", unix.Rename(e.path("d"), ctl), unix.EPERM)
		wantErrno(t, "rename into it", unix.Rename(e.path("f"), ctl+"/f"), unix.EPERM)
		wantErrno(t, "rename it away", unix.Rename(ctl, e.path("away")), unix.EPERM)
		wantErrno(t, "rmdir", unix.Rmdir(ctl), unix.EPERM)
		wantErrno(t, "unlink status", unix.Unlink(ctl+"/status"), unix.EPERM)
		if slices.Contains(listNames(t, e.d.Dir), ".kvfs") {
			t.Error("it is listed")
		}
		if st := stat(t, ctl); st.Mode&unix.S_IFMT != unix.S_IFDIR {
			t.Errorf("mode: got %#o, want a directory", st.Mode)
		}
		if names := listNames(t, ctl); !slices.Contains(names, "status") {
			t.Errorf("its names: got %q, want status among them", names)
		}
		put(t, e.path(".kvfs"), []byte("below the root it is a name like any other"))
	}},
	{"P2 FIFO, socket and device nodes work or fail cleanly (nobody)", func(t *testing.T, e *env) {
		for _, kind := range []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR} {
			p := e.path(fmt.Sprintf("node%o", kind))
			err := unix.Mknod(p, kind|0o644, 0)
			wantErrno(t, fmt.Sprintf("mknod %#o", kind), err, nil, unix.EPERM, unix.ENOTSUP, unix.ENOSYS)
			if err != nil {
				wantAbsent(t, e.process(), p)
			}
		}
		p := e.path("regular")
		if err := unix.Mknod(p, unix.S_IFREG|0o644, 0); err == nil {
			put(t, p, []byte("r"))
			wantSeen(t, e.process(), p, []byte("r"))
		}
	}},
}
