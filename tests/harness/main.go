package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness/netns"
	"github.com/kvfs/kvfs/tests/sets"
)

// Environment variables between a test process and its helpers.
const helperEnv = "KVFS_TEST_HELPER"

var helpers = map[string]func(args []string) int{actorHelper: actorMain, launchHelper: launchMain, commandHelper: commandMain}

// Helper registers fn to run in processes that RunHelper or StartHelper start;
// its result is their exit code. Call it in TestMain, before Main.
func Helper(name string, fn func(args []string) int) { helpers[name] = fn }

// Main runs the tests of the set that the environment selects (see tests/sets), or the helper for which this process was started, and returns the exit code.
func Main(m *testing.M) int {
	if name := os.Getenv(helperEnv); name != "" {
		fn := helpers[name]
		if fn == nil {
			fmt.Fprintf(os.Stderr, "no helper %q\n", name)
			return 2
		}
		return fn(os.Args[1:])
	}
	sets.Select()
	sweep()
	removeOnSignal()
	code := m.Run()
	removeProcessDirs()
	printSkips()
	return code
}

// Temporary directories. All files of a test process are below a few directories whose names have
// its process id, so that a later process can clean up after a dead one.

const dirPrefix = "kvfs-test-"

var parents = tempParents()

// ending is locked for good when this process is told to end: then no test makes a directory any more.
var ending sync.RWMutex

func dirIn(parent string) string {
	ending.RLock()
	defer ending.RUnlock()
	dir := filepath.Join(parent, dirPrefix+strconv.Itoa(os.Getpid()))
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, spaceFile), []byte(pidSpace()), 0o644)
	}
	if err != nil {
		panic(err)
	}
	return dir
}

// spaceFile is the file in a directory of a test process that names the name space of its process
// id. A test in another name space must not take that id for a dead process.
const spaceFile = ".pid-namespace"

func pidSpace() string {
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return err.Error()
	}
	return space
}

// processDir returns the directory for mount points, logs and binaries.
func processDir() string { return dirIn(parents[0]) }

// memoryDir returns the directory for memory tiers; it is on tmpfs where
// possible.
func memoryDir() string {
	if _, err := os.Stat(parents[1]); err != nil {
		return processDir()
	}
	return dirIn(parents[1])
}

func removeProcessDirs() {
	for _, p := range parents {
		removeTree(filepath.Join(p, dirPrefix+strconv.Itoa(os.Getpid())))
	}
}

func hasProcessDirs() bool {
	return slices.ContainsFunc(parents, func(p string) bool {
		_, err := os.Lstat(filepath.Join(p, dirPrefix+strconv.Itoa(os.Getpid())))
		return err == nil
	})
}

// removeOnSignal makes SIGTERM and SIGINT end this process after removing everything that it
// started or made.
func removeOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	go func() { // ends with the process
		sig := (<-signals).(syscall.Signal)
		ending.Lock()
		// The test goes on meanwhile: it may start a daemon when another one has died.
		deadline := time.Now().Add(Deadline)
		for again := true; again && time.Now().Before(deadline); {
			for killChildren() && time.Now().Before(deadline) {
				time.Sleep(time.Millisecond)
			}
			removeProcessDirs()
			if err := netns.SweepOwn(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			again = killChildren() || hasProcessDirs()
		}
		os.Exit(128 + int(sig))
	}()
}

// killChildren kills the children of this process, whose own children die with them. It reports whether there was one.
func killChildren() (found bool) {
	files, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	for _, name := range files {
		pids, _ := os.ReadFile(name) // the thread may have ended
		for _, text := range strings.Fields(string(pids)) {
			pid, err := strconv.Atoi(text)
			stat, _ := os.ReadFile("/proc/" + text + "/stat") // it may have ended
			if err != nil || len(stat) == 0 || bytes.Contains(stat, []byte(") Z ")) {
				continue
			}
			found = true
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	return found
}

// sweep removes the files of dead test processes.
func sweep() {
	for _, p := range parents {
		dirs, _ := filepath.Glob(filepath.Join(p, dirPrefix+"*"))
		for _, d := range dirs {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(d), dirPrefix))
			space, _ := os.ReadFile(filepath.Join(d, spaceFile))
			if err == nil && string(space) == pidSpace() && unix.Kill(pid, 0) == unix.ESRCH {
				removeTree(d)
			}
		}
	}
}

// removeTree unmounts everything below dir, deepest first, and removes it.
func removeTree(dir string) {
	for _, p := range slices.Backward(MountPoints(dir)) {
		unmount(p)
	}
	if len(MountPoints(dir)) == 0 {
		os.RemoveAll(dir)
	}
}

// Skips.

var skips struct {
	sync.Mutex
	count map[string]int
}

// Skip skips the test and counts the reason.
func Skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	reason := fmt.Sprintf(format, args...)
	skips.Lock()
	if skips.count == nil {
		skips.count = make(map[string]int)
	}
	skips.count[reason]++
	skips.Unlock()
	tb.Skip(reason)
}

func printSkips() {
	skips.Lock()
	defer skips.Unlock()
	var total int
	var lines []string
	for reason, n := range skips.count {
		total += n
		lines = append(lines, fmt.Sprintf("  %4d %s", n, reason))
	}
	if total > 0 {
		slices.Sort(lines)
		fmt.Printf("skipped %d:\n%s\n", total, strings.Join(lines, "\n"))
	}
}

// Reference reports whether Mount gives plain directories instead of kvfs.
func Reference() bool { return os.Getenv("KVFS_TEST_REFERENCE") == "1" }

// KvfsOnly skips the test in reference mode: the test shows a promise of kvfs beyond POSIX.
func KvfsOnly(tb testing.TB, promise string) {
	tb.Helper()
	if Reference() {
		Skip(tb, "reference mode: %s", promise)
	}
}
