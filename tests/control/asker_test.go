package control

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

const askerHelper = "asker"

// asker opens the control file args[0], writes the request args[1], prints its thread,
// and reads the answer, which it prints. Each time that a read is interrupted it says
// so and reads on.
func asker(args []string) int {
	runtime.LockOSThread() // Signals are sent to the thread that reads.
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1)
	fd, err := openFile(args[0], unix.O_RDWR)
	if err == nil {
		err = sendAll(fd, []byte(args[1]))
	}
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("thread", unix.Gettid())
	buf := make([]byte, 64*kib)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			fmt.Println("interrupted")
		case err != nil:
			fmt.Println("error", err)
			return 1
		case n == 0:
			return 0
		default:
			os.Stdout.Write(buf[:n])
		}
	}
}

// askingProcess is an asker.
type askingProcess struct {
	*harness.Process
	thread int
	lines  <-chan string // what it prints after its thread; closed at the end
}

// startAsker starts another process that asks and waits for the answer.
func startAsker(t testing.TB, control, request string) *askingProcess {
	t.Helper()
	p := &askingProcess{Process: harness.StartHelper(t, harness.ProcessOptions{}, askerHelper, control, request)}
	lines := make(chan string, 16)
	go func() { // Ends with the process.
		defer close(lines)
		in := bufio.NewReader(p.Stdout)
		for {
			line, err := in.ReadString('\n')
			if line != "" {
				lines <- strings.TrimSuffix(line, "\n")
			}
			if err != nil {
				return
			}
		}
	}()
	p.lines = lines
	first := receive(t, "the thread of the asker", p.lines)
	if _, err := fmt.Sscanf(first, "thread %d", &p.thread); err != nil {
		t.Fatalf("asker: %s", first)
	}
	return p
}
