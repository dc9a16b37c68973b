package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	lookTime = 300 * time.Millisecond // for which the machine is watched before a run
	busyFrom = 0.2                    // share of the CPUs from which on a machine is busy
)

// cpuTime is what the CPUs of a machine have done, in ticks.
type cpuTime struct{ busy, all uint64 }

// parseCPU reads the first line of /proc/stat: see proc_stat(5). What another virtual machine took counts as busy.
func parseCPU(text string) (t cpuTime, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, field := range fields[1:9] { // user, nice, system, idle, iowait, irq, softirq, steal
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return t, err
		}
		t.all += n
		if i != 3 && i != 4 {
			t.busy += n
		}
	}
	return t, nil
}

// since returns the share of the time after an earlier look in which the CPUs were busy.
func (t cpuTime) since(earlier cpuTime) float64 {
	if t.all <= earlier.all || t.busy < earlier.busy {
		return 0
	}
	return float64(t.busy-earlier.busy) / float64(t.all-earlier.all)
}

// watch returns the share of the CPUs that others use now. It is 0 if that cannot be seen.
func watch() float64 {
	look := func() (t cpuTime) {
		if text, err := os.ReadFile("/proc/stat"); err == nil {
			t, _ = parseCPU(string(text))
		}
		return t
	}
	before := look()
	time.Sleep(lookTime)
	return look().since(before)
}

// busyNote warns of a machine whose CPUs others use, "" if it is idle.
func busyNote(share float64) string {
	if share < busyFrom {
		return ""
	}
	return fmt.Sprintf("warning: other processes use %.0f%% of the CPUs: the figures are lower than those of an idle machine, and not to be compared", 100*share)
}
