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

// Readiness tells waiting processes that the mount, or the owner of mounts, answers. The reader
// of --ready-fd gets one line, systemd (NOTIFY_SOCKET) gets READY=1. On failure the descriptor
// is closed without a line.
type Readiness struct {
	file *os.File
}

// NewReadiness returns a Readiness that owns descriptor fd; -1 means no descriptor.
func NewReadiness(fd int) *Readiness {
	if fd < 0 {
		return &Readiness{}
	}
	unix.CloseOnExec(fd)
	return &Readiness{file: os.NewFile(uintptr(fd), "ready-fd")}
}

func (r *Readiness) ready(dir string) { r.say(dir, "mounted on "+dir) }

// tookOver is ready, for a mount whose earlier process systemd knew.
func (r *Readiness) tookOver(dir string) {
	r.say(dir, "mounted on "+dir+"\nMAINPID="+strconv.Itoa(os.Getpid()))
}

// Serving is ready, for what serves at a socket.
func (r *Readiness) Serving(socket string) { r.say(socket, "serving at "+socket) }

func (r *Readiness) say(where, status string) {
	if r.file != nil {
		_, _ = r.file.WriteString("ready " + where + "\n") // the reader may be gone
		r.Close()
	}
	notifySystemd("READY=1\nSTATUS=" + status)
}

func (r *Readiness) stopping() { notifySystemd("STOPPING=1") }

// Close reports that this process will not be ready, unless it was.
func (r *Readiness) Close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// beatEvery is the interval of keepAlive if systemd has announced none. systemd announces none
// to a process that took the mount over, but expects signs of life all the same.
const beatEvery = 5 * time.Second

// keepAlive tells systemd that this process works (WatchdogSec=) after each call of works,
// until ctx ends. works does not return if the process hangs.
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
		return // systemd will log the missing message
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
