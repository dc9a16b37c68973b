// Package doctor finds out what a machine lacks for kvfs, and what is wrong with a mount. It is a table of checks
// (All). Each looks at an Env and gives a Result: a verdict, the reason, and what mends it. A check changes
// nothing. What refuses a start, or is in the log of one, is no check, unless kvfs config check has it before.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/rails"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/mem"
)

// Verdict is the outcome of a check.
type Verdict string

// The verdicts. Only Fail makes the command fail.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn" // kvfs works, but slower or not for long
	Fail Verdict = "fail"
	Skip Verdict = "skip" // nothing to check; the reason says why
)

// Result is what a check found.
type Result struct {
	Verdict Verdict `json:"result"`
	Reason  string  `json:"reason"`           // one sentence
	Remedy  string  `json:"remedy,omitempty"` // a command or a setting; never empty with Warn and Fail

	also []Result // of other causes, which are as bad
}

func ok(format string, args ...any) Result {
	return Result{Verdict: OK, Reason: fmt.Sprintf(format, args...)}
}
func skip(format string, args ...any) Result {
	return Result{Verdict: Skip, Reason: fmt.Sprintf(format, args...)}
}
func warn(remedy, format string, args ...any) Result {
	return Result{Verdict: Warn, Reason: fmt.Sprintf(format, args...), Remedy: remedy}
}
func fail(remedy, format string, args ...any) Result {
	return Result{Verdict: Fail, Reason: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Check is one thing to look at. Run may run in parallel with other checks. It ends soon after its context; if it
// hangs nevertheless, as a system call on a dead mount may, its result is a failure.
type Check struct {
	Name string
	Run  func(context.Context, *Env) Result
	// Fits: it finds out whether the settings fit this machine, whoever starts the daemon. kvfs config check has it, too.
	Fits bool
}

// Env is what the checks look at. They do not change it.
type Env struct {
	Root string    // proc, sys, dev and run are below it; "/" but for tests
	UID  int       // of the user
	Now  time.Time // for certificates
	RAM  int64     // bytes of the machine

	Config    *config.Config // nil: it was refused
	ConfigErr error          // why
	From      string         // where Config comes from, in words

	Mount     string           // the mount to look at; empty for none
	Status    *status.Document // of Mount; nil if there is none, or if it does not answer
	StatusErr error            // why it does not
	PID       int              // of the daemon of Mount; 0 if it is dead or not known

	Table     []*mountinfo.Info                  // the mount table
	Answers   func(point string) error           // mounts.Answers
	Abandoned func(*mountinfo.Info) bool         // mounts.Abandoned
	Stores    func() ([]mem.Info, error)         // mem.List
	Statfs    func(string, *unix.Statfs_t) error // unix.Statfs
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	WakeUp    func() device.WakeUp
	Synced    func() (bool, error)                         // whether the clock is set by another one
	RDMA      func(context.Context) (*rails.Report, error) // that of kvfs doctor rdma
}

// ThisMachine returns an Env of the machine and the user of this process, without a configuration and a mount.
func ThisMachine() (*Env, error) {
	table, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	return &Env{
		Root: "/", UID: os.Geteuid(), Now: time.Now(), RAM: int64(config.TotalMemory()), Table: table,
		Answers: mounts.Answers, Abandoned: mounts.Abandoned, Stores: mem.List, Statfs: unix.Statfs,
		Dial: (&net.Dialer{}).DialContext, Synced: synced, WakeUp: device.MeasureWakeUp,
	}, nil
}

// synced asks the kernel whether something sets its clock, as NTP does.
func synced() (bool, error) {
	state, err := unix.Adjtimex(&unix.Timex{})
	return state != unix.TIME_ERROR, os.NewSyscallError("adjtimex", err)
}

func (e *Env) path(parts ...string) string {
	return filepath.Join(append([]string{e.Root}, parts...)...)
}

// All lists the checks, in the order of the report.
func All() []Check {
	return []Check{
		{Name: "configuration", Run: checkConfig},
		{Name: "certificates", Run: needConfig(checkCertificates), Fits: true},
		{Name: "gossip keys", Run: needConfig(checkKeys), Fits: true},
		{Name: "fuse device", Run: checkFuse},
		{Name: "wake-up", Run: checkWakeUp},
		{Name: "read path", Run: needStatus(checkReadPath)},
		{Name: "memory size", Run: needMemory(checkMemorySize), Fits: true},
		{Name: "shared memory", Run: needMemory(checkShared), Fits: true},
		{Name: "huge pages", Run: needMemory(checkHuge)},
		{Name: "tmpfs inodes", Run: needConfig(checkInodes)},
		{Name: "disk directories", Run: needDisk(checkDirs), Fits: true},
		{Name: "disk room", Run: needDisk(usable(checkRoom)), Fits: true},
		{Name: "cards and GPUs", Run: needConfig(checkRDMA)},
		{Name: "clock", Run: needConfig(checkClock)},
		{Name: "peers", Run: needCluster(checkPeers)},
		{Name: "versions of peers", Run: needCluster(checkVersions)},
		{Name: "settings of peers", Run: needCluster(checkSettings)},
		{Name: "clocks of peers", Run: needStatus(checkClocks)},
		{Name: "reuse", Run: needStatus(checkReuse)},
		{Name: "daemon", Run: checkDaemon},
		{Name: "mounts", Run: checkMounts},
		{Name: "memory without daemon", Run: checkStores},
	}
}

// Fitting lists the checks that find out whether settings fit this machine.
func Fitting() []Check {
	return slices.DeleteFunc(All(), func(c Check) bool { return !c.Fits })
}

// needConfig is a check that is skipped without a configuration.
func needConfig(run func(context.Context, *Env, *config.Config) Result) func(context.Context, *Env) Result {
	return func(ctx context.Context, e *Env) Result {
		if e.Config == nil {
			return skip("the configuration is refused")
		}
		return run(ctx, e, e.Config)
	}
}

// needStatus is a check that is skipped without the status of a mount.
func needStatus(run func(context.Context, *Env, *status.Document) Result) func(context.Context, *Env) Result {
	return func(ctx context.Context, e *Env) Result {
		switch {
		case e.Mount == "":
			return skip("no mount is named: kvfs doctor MOUNT")
		case e.Status == nil:
			return skip("the daemon of the mount does not answer")
		}
		return run(ctx, e, e.Status)
	}
}

// Deadline is the time that a check has.
const Deadline = 2 * mounts.Timeout

// Finding is a result of a check. A check has one for each cause.
type Finding struct {
	Check string `json:"check"`
	Result
}

// Report is the outcome of kvfs doctor. Fields may be added.
type Report struct {
	Mount  string    `json:"mount,omitempty"`
	Checks []Finding `json:"checks"`
}

// Examine runs checks, all at a time, each for at most the deadline.
func Examine(ctx context.Context, e *Env, checks []Check, deadline time.Duration) *Report {
	calls := make([]func(context.Context) Result, len(checks))
	for i, c := range checks {
		calls[i] = func(ctx context.Context) Result { return c.Run(ctx, e) }
	}
	r := &Report{Mount: e.Mount}
	for i, result := range mounts.Within(ctx, deadline, calls) {
		if result == nil {
			late := fail("see docs/operations.md: Nothing answers", "the check has not ended within %v", deadline)
			result = &late
		}
		for _, one := range append([]Result{*result}, result.also...) {
			r.Checks = append(r.Checks, Finding{checks[i].Name, one})
		}
	}
	return r
}

func (r *Report) count(v Verdict) int {
	n := 0
	for i := range r.Checks {
		if r.Checks[i].Verdict == v {
			n++
		}
	}
	return n
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "CHECK\tRESULT\tREASON\n")
	for i := range r.Checks {
		f := &r.Checks[i]
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Check, f.Verdict, show.Text(f.Reason))
		if f.Remedy != "" {
			fmt.Fprintf(t, "\t\t  do: %s\n", show.Text(f.Remedy))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d ok, %d warn, %d fail, %d skip\n", r.count(OK), r.count(Warn), r.count(Fail), r.count(Skip))
	return err
}

// Err is the error with which the command ends, or nil.
func (r *Report) Err() error {
	if n := r.count(Fail); n > 0 {
		return exit.With(exit.Runtime, fmt.Errorf("checks that fail: %d", n))
	}
	return nil
}

// Fit returns the warnings of a report, and an error that joins what fails: one line each, with what mends it.
func (r *Report) Fit() (warnings []string, err error) {
	var errs []error
	for i := range r.Checks {
		f := &r.Checks[i]
		line := fmt.Sprintf("%s: %s. Do: %s", f.Check, f.Reason, f.Remedy)
		switch f.Verdict {
		case Warn:
			warnings = append(warnings, line)
		case Fail:
			errs = append(errs, errors.New(line))
		}
	}
	return warnings, errors.Join(errs...)
}
