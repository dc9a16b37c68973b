package run

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Names of helpers, which kvfs run starts as its commands.
const (
	targetHelper = "target"
	holderHelper = "holder"
)

// target is a command that reports its events: "ready" with its process, then each signal, and "byte" for each byte
// at its standard input. "qN" there ends it with N. With the argument "quiet" it does not wait for the end of its
// input.
func target(args []string) int {
	signals := make(chan os.Signal, 64)
	for s := unix.SIGHUP; s <= unix.SIGSYS; s++ {
		switch s {
		// Those of a terminal's job control keep their effect, those of faults, of
		// the Go runtime and of profilers are not sent.
		case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCHLD, unix.SIGURG, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGPROF, unix.SIGPIPE:
		default:
			signal.Notify(signals, s)
		}
	}
	fmt.Println("ready", os.Getpid(), os.Getenv("KVFS_MOUNT"))
	lines := make(chan string)
	go func() { // ends with the input
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			lines <- in.Text()
		}
		close(lines)
	}()
	for {
		select {
		case s := <-signals:
			fmt.Println("signal", unix.SignalName(s.(unix.Signal)))
		case line, more := <-lines:
			if !more {
				return 0
			}
			if code, quit := strings.CutPrefix(line, "q"); quit {
				n, err := strconv.Atoi(code)
				if err != nil {
					return 99
				}
				return n
			}
			fmt.Println("line", line)
		}
	}
}

// holder opens the file that it is to make in the mount, starts itself again with that
// file open, prints the process of that, and ends.
func holder(args []string) int {
	if len(args) == 2 { // the one that stays
		fmt.Println("held")
		os.Stdout.Close()
		select {}
	}
	f, err := os.Create(os.Getenv("KVFS_MOUNT") + "/" + args[0])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe", args[0], "stay")
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = bufio.NewReader(out).ReadString('\n') // it has come up
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(cmd.Process.Pid)
	return 5
}
