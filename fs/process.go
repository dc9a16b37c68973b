package fs

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/index"
)

// The kernel names the caller of a request by its thread id. What a process is,
// and whether it is dying, /proc knows.

// processes answers what the engine asks about the callers of a mount.
type processes interface {
	same(a, b uint32) bool
	killed(tid uint32) bool
	stillOpen(tid uint32, ino uint64) bool
}

// askedProcs is processes of which somebody else says which threads belong together.
type askedProcs struct {
	processes
	ask func(a, b uint32) bool
}

func (p askedProcs) same(a, b uint32) bool { return a == b || p.ask(a, b) }

// procfs is a path at which /proc of some pid name space is.
type procfs string

// ourProc is that of our own.
const ourProc procfs = "/proc"

// same reports whether thread b belongs to the process of thread a. A thread that has
// ended belongs to none.
func (root procfs) same(a, b uint32) bool {
	if a == b {
		return true
	}
	var buf [64]byte
	p := append(append(buf[:0], root...), '/')
	p = strconv.AppendUint(p, uint64(a), 10)
	p = append(p, "/task/"...)
	p = strconv.AppendUint(p, uint64(b), 10)
	return unix.Access(string(p), unix.F_OK) == nil
}

// pfExiting is PF_EXITING of include/linux/sched.h: the task runs do_exit, where
// the kernel closes what it had open.
const pfExiting = 0x4

// killed reports whether thread tid is being ended by a signal, as far as
// /proc/<tid>/stat tells: field 9 is the flags, field 52 the exit code, whose low
// seven bits are the signal (proc_pid_stat(5)).
//
// A thread in execve(2) closes descriptors, too, and holds a lock of the kernel meanwhile for which
// the read of stat waits, while it waits for our answer. So that is read only of threads that
// have no memory any more, which they give up before they close what they have open, when they end.
func (root procfs) killed(tid uint32) bool {
	var buf [1024]byte
	dir := string(root) + "/" + strconv.FormatUint(uint64(tid), 10)
	if !bytes.HasPrefix(readShort(dir+"/statm", buf[:]), []byte("0 ")) {
		return false
	}
	stat := readShort(dir+"/stat", buf[:])
	// The second field is the name in parentheses and may hold anything.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return false
	}
	f := bytes.Fields(stat[end+1:]) // f[0] is field 3
	if len(f) < 50 {
		return false
	}
	flags, err1 := strconv.ParseUint(string(f[9-3]), 10, 64)
	code, err2 := strconv.ParseInt(string(f[52-3]), 10, 64)
	return err1 == nil && err2 == nil && flags&pfExiting != 0 && code&0x7f != 0
}

// readShort returns what one read of a file gives; nothing if that fails.
func readShort(name string, buf []byte) []byte {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

// stillOpen reports whether thread tid has a descriptor of the inode of that number.
// Before Linux 5.14 fdinfo does not tell the inode, and the answer is no.
func (root procfs) stillOpen(tid uint32, ino uint64) bool {
	dir := string(root) + "/" + strconv.FormatUint(uint64(tid), 10) + "/fdinfo"
	names, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	want := []byte("\nino:\t" + strconv.FormatUint(ino, 10) + "\n")
	for _, n := range names {
		if info, err := os.ReadFile(dir + "/" + n.Name()); err == nil && bytes.Contains(info, want) {
			return true
		}
	}
	return false
}

// closer answers tiers.Closer for the thread that closes.
type closer struct {
	s   *Server
	tid uint32
}

// Killed implements tiers.Closer.
func (c closer) Killed() bool { return c.s.procs.killed(c.tid) }

// StillOpen implements tiers.Closer. The descriptor being closed has left the
// table already.
func (c closer) StillOpen(id index.ID) bool { return c.s.procs.stillOpen(c.tid, c.s.node(uint64(id))) }
