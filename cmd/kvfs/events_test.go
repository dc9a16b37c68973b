package main

import (
	"bufio"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// eventsText is what a daemon says, and eventsShown how it is printed.
const (
	eventsText = `{"seq":41,"time":1795084800.123456,"event":"stored","tier":"memory","group":"g0","hash":"9f08","size":1048576}` + "\n" +
		`{"seq":42,"time":1795084801,"event":"evicted","tier":"disk","group":"g0","hash":"77aa","size":3,"reason":"capacity"}` + "\n" +
		`{"seq":43,"time":1795084801.000002,"event":"renamed","group":"g0","hash":"new","size":0,"from":"g0/old"}` + "\n" +
		`{"seq":44,"time":1795084801,"event":"renamed","group":"","hash":"g1","size":0,"from":"g0","directory":true}` + "\n" +
		`{"event":"gap","seq":50,"missed":6}` + "\n" + `{"event":"gap","seq":1,"missed":0}` + "\n"
	eventsShown = "2026-11-19T10:40:00.123456Z  stored   memory     1.0 MiB  g0/9f08\n" +
		"2026-11-19T10:40:01.000000Z  evicted  disk           3 B  g0/77aa  capacity\n" +
		"2026-11-19T10:40:01.000002Z  renamed  -              0 B  g0/old -> g0/new\n" +
		"2026-11-19T10:40:01.000000Z  renamed  -              0 B  g0/ -> g1/\n" +
		"-                            gap: 6 events are lost; the next is 50\n" +
		"-                            gap: earlier events are unknown; the next is 1\n"
)

// TestEvents shows what is asked and printed, and what ends it.
func TestEvents(t *testing.T) {
	first, _, _ := strings.Cut(eventsText, "\n")
	checkCLI(t, newEventsCommand, "events", []cliCase{
		{args: "-n 6 /m", answers: []string{eventsText + hold}, asked: []string{"{}"}, out: eventsShown},
		{args: "-n 1 --json --since 41 --group g0 --group g,1 --event stored /m", answers: []string{eventsText + hold},
			asked: []string{`{"since":41,"groups":["g0","g,1"],"events":["stored"]}`}, out: first + "\n"},
		{args: "/m", answers: []string{eventsText}, asked: []string{"{}"}, out: eventsShown, err: "events of /m: the daemon has stopped", code: exit.Runtime},
		{args: "--event x /m", answers: []string{`{"error":"no such event","field":"/events/0"}`}, asked: []string{`{"events":["x"]}`},
			err: "events of /m: no such event (field /events/0)", code: exit.Runtime},
		{args: "/m", answers: []string{"?\n" + hold}, asked: []string{"{}"}, err: "events of /m: event of the daemon: ", code: exit.Runtime},
		{args: "/m/g", err: "/m/g is not a kvfs mount: it is a directory in the mount /m", code: exit.NotMount},
	})
}

// runEventsTo runs kvfs events with its output in a pipe, until it ends.
func runEventsTo(ctx context.Context, t *testing.T, out *os.File) <-chan error {
	t.Helper()
	f := newFakeDaemon("/m", "events", func(string) string { return eventsText + hold })
	cmd := newEventsCommand(f.connect)
	cmd.SetOut(out)
	cmd.SetArgs([]string{"/m"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetContext(ctx)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Execute() }() // ends with ctx or the reader of out; the test waits for it
	return ended
}

// TestEventsEnd shows that what has come is printed at once, while the daemon is
// silent, and that an interrupt and a reader that is gone end the command with
// success.
func TestEventsEnd(t *testing.T) {
	for _, tc := range []string{"interrupt", "reader"} {
		t.Run(tc, func(t *testing.T) {
			r, w, err := os.Pipe()
			must(t, err)
			defer r.Close()
			defer w.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := runEventsTo(ctx, t, w)
			in := bufio.NewReader(r)
			for line := range strings.Lines(eventsShown) {
				if got, err := in.ReadString('\n'); err != nil || got != line {
					t.Fatalf("got %q, %v, want %q", got, err, line)
				}
			}
			if tc == "interrupt" {
				cancel()
			} else {
				r.Close()
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("got %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("it goes on")
			}
		})
	}
}
