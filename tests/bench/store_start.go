package main

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

const (
	// startGoal is how long kvfs run may take besides the command, in milliseconds.
	startGoal = 300
	// startCommand is the command.
	startCommand = "/bin/true"

	aloneName         = "alone"
	runName           = "kvfs run"
	runStandaloneName = "kvfs run --mode standalone-store"
)

// starts measures how long a command takes alone and with kvfs run, which mounts for it. Memory has
// its default size, as for users.
func (s *storeBench) starts(ctx context.Context) error {
	run := append([]string{s.kvfsPath, "run"}, s.config.kvfsArgs...)
	cases := []struct {
		name string
		argv []string
	}{
		{aloneName, []string{startCommand}},
		{runName, append(run[:len(run):len(run)], "--", startCommand)},
		{runStandaloneName, append(append(run[:len(run):len(run)], s.standalone()...), "--", startCommand)},
	}
	s.say("store: starts of %s", startCommand)
	took := series{} // milliseconds
	for round := range 1 + s.pair.config.rounds {
		for i := range cases {
			c := cases[(round+i)%len(cases)]
			ms, err := s.timed(ctx, c.argv)
			if err != nil {
				return err
			}
			if round > 0 { // The first one warms up.
				took[c.name] = append(took[c.name], ms)
			}
		}
	}
	s.report.add(row{Topic: "store", Target: aloneName, Value: median(took[aloneName]), Unit: "ms", Samples: took[aloneName]})
	for _, c := range cases[1:] {
		s.startRow(c.name, took)
	}
	return nil
}

// timed runs a command to its end, in milliseconds.
func (s *storeBench) timed(ctx context.Context, argv []string) (float64, error) {
	printed := &tail{echo: s.config.verbose}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = printed, printed, plainEnv()
	// As for a server: kvfs run unmounts when it is asked to end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	begin := time.Now()
	err := cmd.Run()
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("%q: %w%s", argv, err, printed.quote())
	}
	return took.Seconds() * 1000, nil
}

// startRow reports how much one way to start the command adds to it.
func (s *storeBench) startRow(name string, took series) {
	alone := median(took[aloneName])
	r := row{Topic: "store", Target: name, Value: median(took[name]) - alone, Unit: "ms added to " + startCommand}
	for _, ms := range took[name] {
		r.Samples = append(r.Samples, ms-alone)
	}
	verdict := s.report.judge(&r, startGoal, r.Value < startGoal)
	s.report.add(r)
	s.table.add(name+" -- "+startCommand, fmt.Sprintf("%.1f ms", alone), spread(took[aloneName]),
		fmt.Sprintf("%.1f ms", median(took[name])), spread(took[name]), fmt.Sprintf("+%.1f ms", r.Value), fmt.Sprintf("< %d ms", startGoal), verdict)
}
