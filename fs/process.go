package fs

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// The kernel names the caller of a request by its thread id. /proc knows the process of the
// thread, whether it is dying, and what it has open.

// processes answers questions of a mount about its callers.
type processes interface {
	// of returns the process of a thread, or 0 if the thread cannot be seen.
	of(tid uint32) (pid uint32)
	// last is of as it was when it was last asked for.
	last(tid uint32) (pid uint32)
	// groups returns the supplementary groups of a thread, or none if it cannot be seen.
	groups(tid uint32) []uint32
	// command returns the name of the program that a process runs, or "" if it cannot be seen.
	command(pid uint32) string
	// cgroup returns the path of a thread's control group of version 2, or nothing if it cannot be seen.
	cgroup(tid uint32) string
	// alive reports whether a process has not ended.
	alive(pid uint32) bool
	killed(tid uint32) bool
	stillOpen(tid uint32, ino uint64) bool
}

// caller describes the process of thread tid, which makes a request.
func (f *files) caller(tid uint32) state.Caller {
	return state.Caller{Kernel: f.mount, Thread: tid, Process: f.procs.of(tid)}
}

// program returns the process of a thread, or the thread if it cannot be seen, and the name of its program.
func (f *files) program(tid uint32) (pid uint32, command string) {
	pid = cmp.Or(f.procs.of(tid), tid)
	return pid, f.procs.command(pid)
}

// maker is caller for a request that may make a version.
func (f *files) maker(tid uint32) state.Caller {
	c := f.caller(tid)
	if f.engine.Accounts().NeedCgroups() {
		c.Cgroup = f.procs.cgroup(tid)
	}
	return c
}

// reader is caller for a request that needs the process only while files are being written.
func (f *files) reader(tid uint32) state.Caller {
	if f.engine.Writing() {
		return f.caller(tid)
	}
	return state.Caller{Kernel: f.mount, Thread: tid, Remembered: f.procs.last(tid), See: f}
}

// ProcessOf implements state.Seer, for state.Caller.See.
func (f *files) ProcessOf(tid uint32) uint32 { return f.procs.of(tid) }

// procfs is the /proc of one pid name space.
type procfs struct {
	root string // path
	own  bool   // the /proc of this process

	mu struct {
		sync.Mutex // leaf
		pids       map[uint32]uint32
	}
}

// maxPids bounds the remembered threads. Beyond it, all are forgotten.
const maxPids = 1 << 14

// ourProc returns the procfs of our own pid name space.
func ourProc() *procfs { return &procfs{root: "/proc", own: true} }

// of implements processes. It checks a remembered answer: another thread may have the number by now.
func (p *procfs) of(tid uint32) uint32 {
	if tid == 0 {
		return 0
	}
	p.mu.Lock()
	pid, known := p.mu.pids[tid]
	p.mu.Unlock()
	if known && p.has(pid, tid) {
		return pid
	}
	if pid = p.read(tid); pid == 0 {
		return 0
	}
	p.mu.Lock()
	if p.mu.pids == nil || len(p.mu.pids) >= maxPids {
		p.mu.pids = map[uint32]uint32{}
	}
	p.mu.pids[tid] = pid
	p.mu.Unlock()
	return pid
}

// last implements processes.
func (p *procfs) last(tid uint32) uint32 {
	p.mu.Lock()
	pid, known := p.mu.pids[tid]
	p.mu.Unlock()
	if !known {
		pid = p.of(tid)
	}
	return pid
}

// has reports whether a thread belongs to a process.
func (p *procfs) has(pid, tid uint32) bool {
	if p.own {
		err := unix.Tgkill(int(pid), int(tid), 0)
		return err == nil || err == unix.EPERM
	}
	var buf [64]byte
	path := append(append(buf[:0], p.root...), '/')
	path = strconv.AppendUint(path, uint64(pid), 10)
	path = append(path, "/task/"...)
	path = strconv.AppendUint(path, uint64(tid), 10)
	return unix.Access(string(path), unix.F_OK) == nil
}

// read returns the process of a thread from its status file, or 0 if there is no such thread.
func (p *procfs) read(tid uint32) uint32 {
	var buf [512]byte
	_, rest, _ := bytes.Cut(readShort(p.path(tid)+"/status", buf[:]), []byte("\nTgid:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	pid, err := strconv.ParseUint(string(line), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(pid)
}

// command implements processes. Unlike stat, comm takes no lock that a thread in execve(2) holds (killed).
func (p *procfs) command(pid uint32) string {
	var buf [64]byte
	return string(bytes.TrimSuffix(readShort(p.path(pid)+"/comm", buf[:]), []byte("\n")))
}

// groups implements processes.
func (p *procfs) groups(tid uint32) (gids []uint32) {
	status, err := os.ReadFile(p.path(tid) + "/status")
	if err != nil {
		return nil
	}
	_, rest, _ := bytes.Cut(status, []byte("\nGroups:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	for _, field := range bytes.Fields(line) {
		if gid, err := strconv.ParseUint(string(field), 10, 32); err == nil {
			gids = append(gids, uint32(gid))
		}
	}
	return gids
}

// cgroup implements processes. The path is as seen from the control group name space of this process.
func (p *procfs) cgroup(tid uint32) string {
	list, err := os.ReadFile(p.path(tid) + "/cgroup")
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(list) {
		if at, ok := bytes.CutPrefix(line, []byte("0::")); ok {
			return string(bytes.TrimSuffix(at, []byte("\n")))
		}
	}
	return ""
}

// path is the directory of a thread or process.
func (p *procfs) path(id uint32) string { return p.root + "/" + strconv.FormatUint(uint64(id), 10) }

// alive implements processes. It reports true for process 0, which cannot be seen. A process is dead if
// none of its threads has memory: it is ending, or its parent has not waited for it yet.
func (p *procfs) alive(pid uint32) bool {
	if pid == 0 {
		return true
	}
	tasks, err := os.ReadDir(p.path(pid) + "/task")
	for _, t := range tasks {
		var buf [16]byte
		if statm := readShort(p.path(pid)+"/task/"+t.Name()+"/statm", buf[:]); len(statm) > 0 && !bytes.HasPrefix(statm, []byte("0 ")) {
			return true
		}
	}
	return err != nil && !ended(err)
}

// ended reports whether an error of /proc says that the process has ended: the kernel answers ESRCH for one that
// ends between two steps of a look-up.
func ended(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// maxDescriptors is how many descriptors of a process stillOpen looks at: 3 to 10 us each, by the machine.
const maxDescriptors = 64

// pfExiting is PF_EXITING of include/linux/sched.h: the task runs do_exit, where
// the kernel closes what it had open.
const pfExiting = 0x4

// killed reports whether a signal is ending thread tid, as far as /proc/<tid>/stat tells: field 9 is the
// flags, field 52 the exit code, whose low seven bits are the signal (proc_pid_stat(5)).
//
// killed reads stat only of threads that have no memory. Reading stat of a thread in execve(2)
// would deadlock: execve closes descriptors, waits for our answer, and holds the kernel lock
// that the read needs. A thread that ends gives its memory up before it closes its files.
func (p *procfs) killed(tid uint32) bool {
	var buf [1024]byte
	dir := p.path(tid)
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

// readShort returns the result of one read of a file, or nothing if it fails.
func readShort(name string, buf []byte) []byte { return readShortAt(unix.AT_FDCWD, name, buf) }

// readShortAt is readShort for a file in the directory dir.
func readShortAt(dir int, name string, buf []byte) []byte {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
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

// stillOpen reports whether thread tid has a descriptor that can write the inode with number
// ino. The answer is no before Linux 5.14, whose fdinfo does not tell the inode, and for a
// process with more than maxDescriptors, where the search would take too long. It reads nothing
// of /proc/<tid>/fd: as with stat (killed), that would deadlock if the thread is in execve(2).
func (p *procfs) stillOpen(tid uint32, ino uint64) bool {
	dir, err := unix.Open(p.path(tid)+"/fdinfo", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	var list [4096]byte // holds more than maxDescriptors
	n, err := unix.ReadDirent(dir, list[:])
	if err != nil {
		return false
	}
	_, count, names := unix.ParseDirent(list[:n], -1, make([]string, 0, maxDescriptors))
	if count == 0 || count > maxDescriptors { // none: its first thread may have ended
		return false
	}
	want := []byte("\nino:\t" + strconv.FormatUint(ino, 10) + "\n")
	for _, name := range names {
		var buf [256]byte // the lines that matter come first
		info := readShortAt(dir, name, buf[:])
		if bytes.Contains(info, want) && writes(info) {
			return true
		}
	}
	return false
}

// writes reports whether the descriptor of an fdinfo is open for writing: the last octal digit
// of its flags is the access mode.
func writes(info []byte) bool {
	_, flags, ok := bytes.Cut(info, []byte("\nflags:\t"))
	flags, _, end := bytes.Cut(flags, []byte("\n"))
	return ok && end && len(flags) > 0 && int(flags[len(flags)-1]-'0')&unix.O_ACCMODE != unix.O_RDONLY
}

// closer answers openfile.Closer for the thread that closes.
type closer struct {
	f   *files
	tid uint32
}

// Killed implements openfile.Closer.
func (c closer) Killed() bool { return c.f.procs.killed(c.tid) }

// StillOpen implements openfile.Closer. The descriptor being closed has already left the table.
func (c closer) StillOpen(id index.ID) bool {
	return c.f.procs.stillOpen(c.tid, c.f.epoch.Ino(uint64(id)))
}
