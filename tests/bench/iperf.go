package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/kvfs/kvfs/tests/harness/netns"
)

const iperfName = "iperf3"

// iperfLimit is how long the server may take until it has served a client.
const iperfLimit = 30 * time.Second

// iperf runs the program iperf3, the baseline of the network.
type iperf struct {
	path    string
	version string
	missing string // why there are no figures of iperf3; empty: there are
}

func findIperf(ctx context.Context) *iperf {
	path, err := exec.LookPath(iperfName)
	if err != nil {
		return &iperf{missing: "not installed (Debian, Ubuntu: apt-get install iperf3)"}
	}
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return &iperf{missing: fmt.Sprintf("iperf3 --version: %v", err)}
	}
	return &iperf{path: path, version: firstLine(string(version))}
}

// run returns the bytes a second that node 1 receives from node 0, and how many processors both ends use for that. An
// empty congestion means the host's.
func (f *iperf) run(ctx context.Context, n *netns.Net, streams, seconds int, congestion string) (rate, cpu float64, err error) {
	inside := func(i int, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + n.Path(i), f.path}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
		return cmd
	}
	server := inside(0, "--server", "--bind", n.Addr(0))
	if err := server.Start(); err != nil {
		return 0, 0, err
	}
	defer func() { // it goes on until it is stopped
		server.Process.Kill()
		server.Wait()
	}()
	args := []string{"--client", n.Addr(0), "--reverse", "--json", "--time", fmt.Sprint(seconds), "--parallel", fmt.Sprint(streams)}
	if congestion != "" {
		args = append(args, "--congestion", congestion)
	}
	// The server needs a moment before it listens.
	for begin := time.Now(); time.Since(begin) < iperfLimit; {
		var out bytes.Buffer
		client := inside(1, args...)
		client.Stdout = &out
		runErr := client.Run()
		if ctx.Err() != nil {
			return 0, 0, context.Cause(ctx)
		}
		if rate, cpu, err = iperfRate(out.Bytes()); err == nil {
			return rate, cpu, nil
		}
		err = errors.Join(err, runErr)
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return 0, 0, err
		}
	}
	return 0, 0, err
}

// iperfRate returns the bytes a second received, and the processors of both ends, from the document of --json.
func iperfRate(text []byte) (rate, cpu float64, err error) {
	var doc struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
			CPU struct {
				Host   float64 `json:"host_total"`
				Remote float64 `json:"remote_total"`
			} `json:"cpu_utilization_percent"`
		} `json:"end"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return 0, 0, fmt.Errorf("iperf3: %w", err)
	}
	if doc.Error != "" || doc.End.Received.BitsPerSecond == 0 {
		return 0, 0, fmt.Errorf("iperf3: no figure: %s", strings.TrimSpace(doc.Error))
	}
	return doc.End.Received.BitsPerSecond / 8, (doc.End.CPU.Host + doc.End.CPU.Remote) / 100, nil
}
