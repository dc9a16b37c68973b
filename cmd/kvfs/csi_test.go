package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// TestCSIUsage shows what a command line of kvfs csi that cannot work ends with.
func TestCSIUsage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("without root it ends earlier")
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"--mode embedded", exit.Usage, "kvfs csi has mode standalone-store"},
		{"--endpoint tcp://x", exit.Usage, "want unix:// and an absolute path"},
		{"--endpoint unix://csi.sock", exit.Usage, "want unix:// and an absolute path"},
		{"--node-id=", exit.Usage, "the name of the node is missing"},
		{"--memory-size 1GiB", exit.Config, "contributes no memory"},
		{"extra", exit.Usage, "extra"},
	} {
		var out, errs bytes.Buffer
		code := run(append([]string{"csi"}, strings.Fields(c.args)...), &out, &errs)
		if code != c.code || !strings.Contains(errs.String(), c.want) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: code %d, %q; want %d, %q", c.args, code, errs.String(), c.code, c.want)
		}
	}
}
