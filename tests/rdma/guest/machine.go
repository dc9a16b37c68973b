package guest

import (
	"bufio"
	"context"
	_ "embed" // for init.sh
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const qemu = "qemu-system-x86_64"

// starts is how often a machine is started until it comes to its script.
const starts = 3

// Device is the RDMA device of the guest.
const Device = "rxe0"

// Addrs are the IP addresses of the network interface that Device is on.
var Addrs = [2]string{"10.99.0.1", "10.99.0.2"}

// Errors of Run; test with errors.Is.
var (
	// ErrSilent: nothing was printed for Options.Silence.
	ErrSilent = errors.New("the guest says nothing")
	// ErrBroken: the machine ended without the guest having told the exit code.
	ErrBroken = errors.New("the guest ended before its command")
	// ErrNotStarted: no start came to the script. The error of the last one is wrapped, too.
	ErrNotStarted = errors.New("the guest does not start on this machine")
)

// What the first process of the guest prints on the line of the command.
const (
	startedMark = "kvfs-guest: started"
	endedMark   = "kvfs-guest: exit code "
)

//go:embed init.sh
var initScript string

// Options say what runs in a machine.
type Options struct {
	// Files are copied into the guest: from the path here, by the path there, with the mode
	// they have here.
	Files map[string]string
	// Script is what /bin/sh runs, as root, in /.
	Script string
	// Line is called with each line that Script prints.
	Line func(line string)
	// Silence is for how long the guest may print nothing.
	Silence time.Duration
	// Dir is for files of the run: the messages of the kernel (Console).
	Dir string
}

// Console is the name of the file in Options.Dir with the messages of the guest's kernel.
const Console = "console.log"

// Run starts a machine and waits for the end of its Script, whose exit code it returns. The
// machine is gone when it returns.
//
// Now and then a kernel dies on an emulated processor while it starts. Then the machine is
// started again, up to starts times, before anything of the caller ran. From the second
// start on one thread emulates both processors: that is slower, and dies less often.
func (m *Image) Run(ctx context.Context, o Options) (code int, err error) {
	disk, err := os.CreateTemp(o.Dir, "disk-")
	if err != nil {
		return 0, err
	}
	defer disk.Close()
	// QEMU gets it as its descriptor: it cannot be left behind.
	if err := errors.Join(os.Remove(disk.Name()), m.writeDisk(disk, o)); err != nil {
		return 0, err
	}
	for n := 1; ; n++ {
		threads := "multi"
		if n > 1 {
			threads = "single"
		}
		code, started, err := m.start(ctx, disk, threads, o)
		switch {
		case err == nil || started || ctx.Err() != nil:
			return code, err
		case n == starts:
			return 0, fmt.Errorf("%w: %w", ErrNotStarted, err)
		}
		o.Line(fmt.Sprintf("guest: start %d of %d failed: %v", n, starts, err))
	}
}

// start starts a machine and waits until it is off, or silent for too long. It reports
// whether the guest came as far as to its Script. threads is "multi" or "single".
func (m *Image) start(ctx context.Context, disk *os.File, threads string, o Options) (code int, started bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, qemu, m.arguments(threads, o)...)
	cmd.ExtraFiles = []*os.File{disk}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, false, err
	}
	// The signal at the death of the parent is one at the death of this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, false, err
	}
	silence := time.AfterFunc(o.Silence, func() { cancel(fmt.Errorf("%w for %v", ErrSilent, o.Silence)) })
	defer silence.Stop()
	code, told := follow(out, func(line string) {
		silence.Reset(o.Silence)
		started = true
		o.Line(line)
	})
	end := cmd.Wait()
	switch {
	case told:
		return code, started, nil
	case ctx.Err() != nil:
		return 0, started, context.Cause(ctx)
	}
	return 0, started, fmt.Errorf("%w: %v\n%s", ErrBroken, end, errs.String())
}

// follow tells the lines of a machine until it is off, and returns the exit code, if the
// guest told it.
func follow(r io.Reader, line func(string)) (code int, told bool) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	started := false // before, there are the messages of the BIOS
	for in.Scan() {
		text := strings.TrimRight(in.Text(), "\r")
		if !started {
			started = strings.HasSuffix(text, startedMark)
			continue
		}
		if n, ok := strings.CutPrefix(text, endedMark); ok {
			var err error
			code, err = strconv.Atoi(n)
			told = err == nil
		} else {
			line(text)
		}
	}
	_, _ = io.Copy(io.Discard, r) // if a line was too long: the machine must be able to end
	return code, told
}

func (m *Image) arguments(threads string, o Options) []string {
	return []string{
		"-accel", "tcg,thread=" + threads, "-cpu", "Westmere", // what it has is quick to emulate
		"-machine", "pc", "-smp", "2", "-m", "2048", "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-monitor", "none",
		"-serial", "stdio", "-serial", "file:" + filepath.Join(o.Dir, Console),
		"-kernel", filepath.Join(m.Dir, kernelFile), "-initrd", "/proc/self/fd/3",
		"-append", "console=ttyS1 panic=-1 rdinit=/init mitigations=off",
	}
}

// writeDisk writes the RAM disk of a run: that of the image and the files of the caller.
func (m *Image) writeDisk(f *os.File, o Options) error {
	base, err := os.Open(filepath.Join(m.Dir, diskFile))
	if err != nil {
		return err
	}
	defer base.Close()
	if _, err := io.Copy(f, base); err != nil {
		return err
	}
	a := newArchive(f)
	for path, text := range map[string]string{"init": initScript, "script": o.Script} {
		if err := a.add(path, typeRegular|0o755, int64(len(text)), strings.NewReader(text)); err != nil {
			return err
		}
	}
	settings := fmt.Sprintf("device=%s\naddresses='%s'\nmodules='%s'\nstarted='%s'\nended='%s'\n",
		Device, strings.Join(Addrs[:], " "), strings.Join(modules, " "), startedMark, endedMark)
	if err := a.add("settings", typeRegular|0o644, int64(len(settings)), strings.NewReader(settings)); err != nil {
		return err
	}
	for from, to := range o.Files {
		if err := a.copy(from, strings.TrimPrefix(to, "/")); err != nil {
			return err
		}
	}
	return a.close()
}

// copy adds a file of this machine.
func (a *archive) copy(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return a.add(to, typeRegular|uint32(info.Mode().Perm()), info.Size(), f)
}
