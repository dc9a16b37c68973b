package daemon

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Readiness tells who waits for it that the mount, or the owner of mounts, answers: the reader of
// --ready-fd gets one line, systemd (NOTIFY_SOCKET) gets READY=1. On failure the
// descriptor is closed without a line.
type Readiness struct {
	Quiet bool // nobody reads the log from then on

	file *os.File
}

// NewReadiness returns one for a descriptor, which it takes over; -1: there is none.
func NewReadiness(fd int) *Readiness {
	if fd < 0 {
		return &Readiness{}
	}
	unix.CloseOnExec(fd)
	return &Readiness{file: os.NewFile(uintptr(fd), "ready-fd")}
}

func (r *Readiness) ready(dir string) { r.say(dir, "mounted on "+dir) }

// tookOver is ready, for a mount of which another process was systemd's until now.
func (r *Readiness) tookOver(dir string) {
	r.say(dir, "mounted on "+dir+"\nMAINPID="+strconv.Itoa(os.Getpid()))
}

// serving is ready, for the owner at a socket.
func (r *Readiness) serving(socket string) { r.say(socket, "serving at "+socket) }

func (r *Readiness) say(where, status string) {
	if r.Quiet {
		_ = dropLog() // else its reader waits, as it would have done
	}
	if r.file != nil {
		_, _ = r.file.WriteString("ready " + where + "\n") // nobody may be reading any more
		r.Close()
	}
	notifySystemd("READY=1\nSTATUS=" + status)
}

func (r *Readiness) stopping() { notifySystemd("STOPPING=1") }

// Close says that it will not be ready, where nothing was said yet.
func (r *Readiness) Close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// beatEvery is how often keepAlive speaks where systemd has not said how often it wants to hear that:
// to a process that took the mount over it says nothing, and waits all the same.
const beatEvery = 5 * time.Second

// keepAlive tells systemd that this process works (WatchdogSec=), after each call of works, which does not
// return if it does not, until ctx ends.
func keepAlive(ctx context.Context, works func()) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	every := beatEvery
	if us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
		every = min(every, time.Duration(us)*time.Microsecond/2)
	}
	go func() { // ends with ctx
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				works()
				notifySystemd("WATCHDOG=1")
			}
		}
	}()
}

// notifySystemd sends one datagram, if systemd asked for it. Source: sd_notify(3).
func notifySystemd(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if strings.HasPrefix(name, "@") {
		name = "\x00" + name[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return // systemd will say that it heard nothing
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
