package mount

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The vocabulary of the differential test: one operation of one process, and
// what came of it.

// Processes of a sequence: two that work, and one that only looks.
const (
	differWorkers = 2
	differWalker  = 2
)

// differSlots is how many descriptors, and how many mappings, a process has.
const differSlots = 4

// differMapBytes is how much a mapping covers.
const differMapBytes = 3 * 4096

// differRecent is the time of change of a file if no call has set it.
const differRecent = -1

// differOp is one operation. Descriptors and mappings have numbers of their own,
// slots, so that one sequence fits any file system.
type differOp struct {
	P     int    // the process
	Do    string // what it does: see differCalls
	A, B  string // names, relative to the directory of the sequence
	S, T  int    // slots
	Q     int    // the process of slot T in "same"
	Flags int
	Mode  uint32
	Off   int64
	N     int64
	Seed  uint64 // of the bytes to write
}

// data returns the N bytes that the operation writes.
func (o differOp) data() []byte { return pattern(fmt.Sprint("differ ", o.Seed), int(o.N)) }

func (o differOp) String() string {
	s := fmt.Sprintf("p%d %s", o.P, o.Do)
	switch o.Do {
	case "open":
		return fmt.Sprintf("%s s%d %s %s %#o", s, o.S, o.A, differFlags(o.Flags), o.Mode)
	case "close", "fstat", "fsync", "fdatasync":
		return fmt.Sprintf("%s s%d", s, o.S)
	case "write", "read":
		return fmt.Sprintf("%s s%d %d bytes", s, o.S, o.N)
	case "pwrite", "pread", "mwrite":
		return fmt.Sprintf("%s s%d %d bytes at %d", s, o.S, o.N, o.Off)
	case "ftruncate":
		return fmt.Sprintf("%s s%d to %d", s, o.S, o.N)
	case "fallocate":
		return fmt.Sprintf("%s s%d mode %d, %d bytes at %d", s, o.S, o.Mode, o.N, o.Off)
	case "lseek":
		return fmt.Sprintf("%s s%d %d whence %d", s, o.S, o.Off, o.Flags)
	case "fchmod":
		return fmt.Sprintf("%s s%d %#o", s, o.S, o.Mode)
	case "dup":
		return fmt.Sprintf("%s s%d to s%d", s, o.S, o.T)
	case "mmap":
		return fmt.Sprintf("%s s%d as m%d %s", s, o.S, o.T, map[int]string{unix.MAP_SHARED: "shared", unix.MAP_PRIVATE: "private"}[o.Flags])
	case "mread":
		return fmt.Sprintf("%s m%d %d bytes at %d", s, o.T, o.N, o.Off)
	case "munmap":
		return fmt.Sprintf("%s m%d", s, o.T)
	case "flock":
		return fmt.Sprintf("%s s%d %s", s, o.S, map[int]string{unix.LOCK_SH: "shared", unix.LOCK_EX: "exclusive", unix.LOCK_UN: "none"}[o.Flags])
	case "setlk":
		return fmt.Sprintf("%s s%d %s %d bytes at %d", s, o.S, map[int]string{unix.F_RDLCK: "read", unix.F_WRLCK: "write", unix.F_UNLCK: "none"}[o.Flags], o.N, o.Off)
	case "same":
		return fmt.Sprintf("%s s%d as p%d s%d", s, o.S, o.Q, o.T)
	case "samename":
		return fmt.Sprintf("%s s%d as %s", s, o.S, o.A)
	case "truncate":
		return fmt.Sprintf("%s %s to %d", s, o.A, o.N)
	case "chmod":
		return fmt.Sprintf("%s %s %#o", s, o.A, o.Mode)
	case "utimens":
		return fmt.Sprintf("%s %s to %d", s, o.A, o.N)
	case "rename":
		return fmt.Sprintf("%s %s to %s", s, o.A, o.B)
	}
	return strings.TrimSpace(s + " " + o.A)
}

func differFlags(flags int) string {
	names := []string{[]string{"O_RDONLY", "O_WRONLY", "O_RDWR", "?"}[flags&unix.O_ACCMODE]}
	for _, f := range []struct {
		bit  int
		name string
	}{{unix.O_CREAT, "O_CREAT"}, {unix.O_EXCL, "O_EXCL"}, {unix.O_TRUNC, "O_TRUNC"}, {unix.O_APPEND, "O_APPEND"}} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, "|")
}

// differStat is what the test compares of a stat.
type differStat struct {
	Size  int64
	Mode  uint32
	Nlink uint64
	Mtime int64  // as it was set, or differRecent
	Ino   uint64 // not compared: see "same"
}

// differResult is what came of an operation.
type differResult struct {
	Errno syscall.Errno
	N     int64
	Data  []byte
	Names []string
	Stat  differStat
}

func (r differResult) String() string {
	var b strings.Builder
	if r.Errno != 0 {
		return unix.ErrnoName(r.Errno)
	}
	fmt.Fprintf(&b, "ok %d", r.N)
	if len(r.Data) > 0 {
		fmt.Fprintf(&b, " %d bytes crc %08x", len(r.Data), crc32.ChecksumIEEE(r.Data))
	}
	if r.Names != nil {
		fmt.Fprintf(&b, " %q", r.Names)
	}
	if r.Stat.Mode != 0 {
		fmt.Fprintf(&b, " size %d mode %#o nlink %d", r.Stat.Size, r.Stat.Mode, r.Stat.Nlink)
		if r.Stat.Mtime != differRecent {
			fmt.Fprintf(&b, " mtime %d", r.Stat.Mtime)
		}
	}
	return b.String()
}

// matches reports whether kvfs may answer r where want is right. A directory of
// kvfs may have 1 for the number of its links.
func (r differResult) matches(want differResult) bool {
	if r.Errno != want.Errno {
		return false
	}
	if r.Errno != 0 {
		return true
	}
	if r.Stat.Mode&unix.S_IFMT == unix.S_IFDIR && r.Stat.Nlink == 1 {
		r.Stat.Nlink = want.Stat.Nlink
	}
	r.Stat.Ino = want.Stat.Ino
	return r.N == want.N && r.Stat == want.Stat && bytes.Equal(r.Data, want.Data) && slices.Equal(r.Names, want.Names)
}

// differStep is what a sequence is made of: operations that one process does in
// a row. A shorter sequence has all of them or none.
type differStep []differOp

func differText(steps []differStep) string {
	var b strings.Builder
	for _, step := range steps {
		for _, op := range step {
			fmt.Fprintf(&b, "\t%v\n", op)
		}
	}
	return b.String()
}
