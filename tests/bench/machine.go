package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes the machine, on which the figures depend.
func (b *bench) machine() []string {
	cores := runtime.NumCPU()
	lines := []string{fmt.Sprintf("Linux %s, %s, %d cores, %.1f GiB of memory, %s",
		kernel(), processor(), cores, float64(memInfo("MemTotal"))/gib, runtime.Version())}
	if cores <= b.config.maxThreads+1 {
		lines = append(lines, fmt.Sprintf("%d cores: client and daemon share them", cores))
	}
	load, _ := os.ReadFile("/proc/loadavg") // Absent: not told.
	if f := strings.Fields(string(load)); len(f) > 0 {
		lines = append(lines, "load average at the start: "+f[0]+
			" (0 when the run has the machine to itself)")
	}
	huge, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	lines = append(lines, fmt.Sprintf("tmpfs: %s (huge pages: %s); disk: %s; user id %d",
		b.config.shmDir, chosen(string(huge)), fsType(b.config.diskDir), os.Getuid()))
	if kvfs := b.target(kvfsName); kvfs != nil {
		flags := kvfs.server.argv[1 : len(kvfs.server.argv)-1]
		lines = append(lines, "kvfs "+strings.Join(flags, " "))
	}
	if b.config.quick {
		lines = append(lines, "-quick: a smoke test; its figures are no measurement")
	} else {
		lines = append(lines, fmt.Sprintf("medians of %d rounds of %v for each target in turn",
			b.config.rounds, b.config.passTime))
	}
	return lines
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "of unknown release"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo") // Absent: unknown.
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

// memInfo returns a field of /proc/meminfo in bytes, 0 if there is none.
func memInfo(field string) int {
	info, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == field+":" {
			n, _ := strconv.Atoi(f[1])
			return n * kib
		}
	}
	return 0
}

// chosen returns the word in brackets, which is the active setting of the kernel.
func chosen(setting string) string {
	_, rest, _ := strings.Cut(setting, "[")
	word, _, ok := strings.Cut(rest, "]")
	if !ok {
		return "unknown"
	}
	return word
}

func fsType(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err.Error()
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs, NOT A DISK"
	}
	return fmt.Sprintf("file system type %#x", uint32(st.Type))
}
