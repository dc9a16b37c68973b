package main

import (
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestStatsUsage shows what kvfs stats refuses, and that it does not read the numbers of a daemon whose status it does
// not know.
func TestStatsUsage(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		err  string
	}{
		{"--interval 0s x", exit.Usage, "kvfs: --interval: 0s is less than 10ms (see kvfs stats --help)\n"},
		{"-n -1 x", exit.Usage, "kvfs: invalid argument"},
		{"a b", exit.Usage, "kvfs: accepts at most 1 arg(s), received 2"},
		{t.TempDir(), exit.NotMount, "kvfs: "},
		{statusDir(t, `{"schema": 1}`), exit.Runtime, "kvfs: the daemon of "},
		{statusDir(t, `no json`), exit.Runtime, "kvfs: status of the daemon: "},
	} {
		code, out, errs := runCLI(append([]string{"stats"}, strings.Fields(tc.args)...)...)
		if code != tc.code || out != "" || !strings.HasPrefix(errs, tc.err) || strings.Count(errs, "\n") != 1 {
			t.Errorf("stats %s: exit code %d, %q, %q", tc.args, code, out, errs)
		}
	}
	code, out, errs := runCLI("stats", "-i", "10ms", "-n", "2", statusDir(t, statusExample))
	if code != exit.OK || errs != "" || strings.Count(out, "\n") != 3 || !strings.Contains(out, "1.5 GiB/4.0 GiB") {
		t.Errorf("exit code %d, %q\n%s", code, errs, out)
	}
}
