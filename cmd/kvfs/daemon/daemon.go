// Package daemon is a process that holds a mount, or owns memory and disk for the mounts of
// other processes. It opens the tiers, the cluster, the engine, the FUSE front and the control
// files and events (surface), serves, and closes all of it. There are three:
//
//	Mount     a mount with an engine of its own (embedded), or, in mode standalone-store, one that
//	          an owner answers (attachment)
//	TakeOver  the same for a mount that another daemon serves: embedded again
//	Serve     the owner of many mounts (owner)
//
// A start opens from the bottom up (openDaemon), mounts, and tells the waiting processes (Readiness). A
// stop goes the other way. A small child watches each process with a mount, in case it is killed
// (Watcher). Package handoff has the messages between these processes, package status their status. A
// daemon does not read its settings again: another daemon takes the mount over with new ones.
package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/otlp"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs"
	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/mem"
)

// Program describes this program. Its methods are the lives of daemons.
type Program struct {
	Version string // sent to peers, mounts, other daemons, and in the status
}

// daemon runs behind one mount, or, as the owner of a store, behind many.
type daemon struct {
	program Program
	dir     string // mount point; for an owner, its socket
	cfg     *config.Config
	log     *zap.Logger
	started time.Time
	memory  *mem.Store
	peers   *peers // nil without a cluster
	engine  *tiers.Engine
	surface *surface
	server  *fs.Server                // set when mounted; nil for an owner, whose guests have their own
	serving atomic.Pointer[fs.Server] // server, for requests before it is set
	owner   *owner                    // nil unless it serves the mounts of others

	traces    *otlp.Exporter   // nil: off
	page      *metrics.Page    // for Prometheus
	view      *metrics.Page    // for the web page
	latencies device.Latencies // of all mounts
	files     *fs.Descriptors  // of the clients of all mounts
	web       *web

	endsWith int                           // the kvfs run whose end unmounts the mount; 0: none
	asleep   context.CancelFunc            // ends keepAlive; nil before that runs
	offer    atomic.Pointer[handoff.Offer] // to the process that takes the mount over, or nil
	noOffer  atomic.Pointer[string]        // why there is no offer; nil: not known yet
}

// keepAlive tells systemd that the engine works, until closeTiers.
func (d *daemon) keepAlive() {
	var ctx context.Context
	ctx, d.asleep = context.WithCancel(context.Background())
	keepAlive(ctx, func() { d.engine.Stats() })
}

// adopted reports whether memory has blocks of an earlier process, which a failed start must not lose.
func (d *daemon) adopted() bool { return d.engine.Stats().Counters.Adopted > 0 }

// status makes the text of .kvfs/status, or of the socket of an owner.
func (d *daemon) status() []byte {
	if d.owner != nil {
		return d.owner.Status()
	}
	doc := d.document()
	if s := d.serving.Load(); s != nil {
		doc.Mount = status.Mounted(s)
		doc.Mount.Dir, doc.Mount.Mode, doc.Mount.PID, doc.Mount.Epoch = d.dir, config.ModeEmbedded, os.Getpid(), s.Epoch()
		doc.Mount.Takeover, doc.Mount.TakeoverReason = d.takeover()
		doc.Mount.EndsWith = d.endsWith
	}
	return doc.Text()
}

// document returns the status without the part about the mount.
func (d *daemon) document() *status.Document {
	from := status.Source{Version: d.program.Version, Started: d.started, Config: d.cfg, Memory: d.memory, Engine: d.engine}
	doc := from.Collect()
	doc.Cluster, doc.Events = d.peers.status(&doc.Reads), d.surface.status()
	return doc
}

// health is what a process tells about itself from its start to its end. Its methods may be called in parallel.
type health struct {
	step   atomic.Pointer[string] // what the start or the stop does now; nil: the daemon works
	daemon atomic.Pointer[daemon] // set when the start is over

	steps  *atomic.Int64 // counts calls of at; nil: nobody counts
	asking atomic.Int64  // calls of lacks that wait for the daemon
}

func (h *health) at(step string) {
	h.step.Store(&step)
	if h.steps != nil {
		h.steps.Add(1)
	}
}

func (h *health) works(d *daemon) {
	h.daemon.Store(d)
	h.step.Store(nil)
}

// Limits of lacks: it waits for the daemon for askTime, and no more than maxAsking calls do.
const (
	askTime   = 2 * time.Second
	maxAsking = 8
)

// lacks returns why the process is not ready, a line for each thing. It is empty if the process is ready.
func (h *health) lacks() []string {
	if step := h.step.Load(); step != nil {
		return []string{*step}
	}
	d := h.daemon.Load()
	if d == nil {
		return []string{"starting"}
	}
	hangs := []string{"daemon: does not answer"}
	if h.asking.Add(1) > maxAsking {
		h.asking.Add(-1)
		return hangs
	}
	got := make(chan []string, 1)
	go func() { // ends when the engine answers
		defer h.asking.Add(-1)
		st := d.engine.Stats()
		got <- d.unready(&st)
	}()
	t := time.NewTimer(askTime)
	defer t.Stop()
	select {
	case lines := <-got:
		return lines
	case <-t.C:
		return hangs
	}
}

// openTraces begins to send spans, if the configuration says to where.
func (p Program) openTraces(ctx context.Context, cfg *config.Config, log *zap.Logger) (*otlp.Exporter, error) {
	if cfg.OTLP == "" {
		return nil, nil
	}
	return otlp.Open(ctx, otlp.Options{Endpoint: cfg.OTLP, Node: cfg.NodeName, Version: p.Version, Log: log})
}

// snapshot collects what the metrics tell. No part of it waits for I/O or walks over blocks.
func (d *daemon) snapshot() *metrics.Snapshot {
	st := d.engine.Stats()
	_, loading := d.engine.Jobs()
	s := &metrics.Snapshot{
		Time: time.Now(), Version: d.program.Version, Unready: d.unready(&st),
		Engine: st, Groups: d.engine.Accounts().Groups(), Quotas: d.engine.Accounts().Quotas(), Loading: loading, Evictions: d.engine.Events().Evictions(),
		Adoptable: d.memory.Status().Adoptable, Mounts: d.mounts(), Requests: &d.latencies,
		Events: d.engine.Events().Next(), Cluster: d.peers.snapshot(),
	}
	if e := d.surface.status(); e != nil {
		s.ZMQ = e.ZMQ
	}
	return s
}

func (d *daemon) mounts() (list []status.Mount) {
	if d.owner != nil {
		for _, g := range d.owner.list() {
			list = append(list, g.mount())
		}
		return list
	}
	if s := d.serving.Load(); s != nil {
		list = append(list, status.Mounted(s))
	}
	return list
}

func (p *peers) snapshot() *metrics.Cluster {
	if p == nil {
		return nil
	}
	return &metrics.Cluster{Members: p.node.Members(), Node: p.node.Stats(), Bulk: p.transport.Stats(), RDMA: p.memory.Status()}
}

// unready returns what the daemon lacks to do its work, a line for each thing. st is of the engine.
func (d *daemon) unready(st *tiers.Stats) (lines []string) {
	for i := range st.Secondaries {
		if t := &st.Secondaries[i]; t.State == "offline" {
			lines = append(lines, fmt.Sprintf("tier %s: offline: %s", t.Name, strings.Join(strings.Fields(t.Reason), " "))) // in one line
		}
	}
	if d.peers != nil && !d.peers.node.Stats().Gossip.Joined {
		lines = append(lines, "cluster: not joined: no address of join has answered")
	}
	if d.owner != nil {
		return lines
	}
	s := d.serving.Load()
	if s == nil {
		return append(lines, "mount "+d.dir+": not serving")
	}
	select {
	case <-s.Served():
		lines = append(lines, "mount "+d.dir+": gone")
	default:
	}
	return lines
}

// Readiness tells waiting processes that the mount, or the owner of mounts, answers. The reader of --ready-fd gets one line,
// systemd (NOTIFY_SOCKET) gets READY=1. On failure the descriptor is closed without a line.
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

// NewLogger returns a logger to standard error.
func NewLogger(cfg *config.Config) (*zap.Logger, error) {
	c := zap.NewProductionConfig()
	if cfg.Log.Format == "console" {
		c = zap.NewDevelopmentConfig()
		c.Development = false
	}
	c.DisableStacktrace, c.DisableCaller, c.Sampling = true, true, nil
	level, err := zapcore.ParseLevel(cfg.Log.Level)
	if err != nil {
		return nil, err
	}
	c.Level = zap.NewAtomicLevelAt(level)
	if m, err := mounts.Holds(int(os.Stderr.Fd())); err != nil || m == nil {
		return c.Build()
	}
	encoder := zapcore.NewJSONEncoder
	if cfg.Log.Format == "console" {
		encoder = zapcore.NewConsoleEncoder
	}
	later := startLater(os.Stderr)
	return c.Build(zap.WrapCore(func(zapcore.Core) zapcore.Core {
		return zapcore.NewCore(encoder(c.EncoderConfig), zapcore.AddSync(later), c.Level)
	}))
}

// later writes to a file that may not answer, as one of the mount that this process serves, without waiting for it.
type later chan []byte

// maxLater bounds the lines that wait.
const maxLater = 1024

// startLater returns a later for f, for as long as the process lives.
func startLater(f *os.File) later {
	l := make(later, maxLater)
	go func() {
		for line := range l {
			_, _ = f.Write(line) // nothing is left that could be told
		}
	}()
	return l
}

// Write never waits. It drops p if too many lines wait.
func (l later) Write(p []byte) (int, error) {
	select {
	case l <- bytes.Clone(p):
	default:
	}
	return len(p), nil
}

// Warn logs the oddities of the configuration.
func Warn(cfg *config.Config, log *zap.Logger) {
	for _, line := range cfg.Warnings {
		log.Warn(line)
	}
	warnOutput(log)
}

// hearHangup handles SIGHUP, which would end the process: it logs how settings are changed. stop ends that.
func hearHangup(log *zap.Logger) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP)
	go func() { // ends with stop
		for range signals {
			log.Info("SIGHUP: settings are not read again. To use new ones, run: kvfs mount --takeover. Changed files of certificates and keys are read without it")
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

const retryEvery = 100 * time.Millisecond

// Pace paces the search for an owner and remembers what was logged. It polls: the directory of
// the socket may be absent, or bound from another mount name space. The zero value is ready.
type Pace struct{ said string }

// note logs the awaited thing and the reason, unless it was the last to be logged.
func (p *Pace) note(log *zap.Logger, what string, err error) {
	if why := fmt.Sprint(err); why != p.said {
		p.said = why
		log.Info(what, zap.Error(err))
	}
}

// Wait waits for one pace and reports whether ctx is still alive.
func (p *Pace) Wait(ctx context.Context) bool {
	t := time.NewTimer(retryEvery)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil // both may have ended
}
