package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
	"github.com/kvfs/kvfs/cmd/kvfs/page"
)

// Limits of the HTTP server, to which any reachable client may connect.
const (
	httpConns = 64               // at a time
	httpIdle  = 5 * time.Second  // for the head of a request, and between two of them
	httpReply = 30 * time.Second // for all of a request and its answer
)

// web is the HTTP server of a process, from its start to its end.
type web struct {
	health
	page page.Handler
	l    net.Listener // nil: there is none
	srv  *http.Server
	done chan struct{} // closed when srv has ended
}

// openWeb listens at addr and answers. With a file for the token it has the page. Without an address it does nothing.
func openWeb(addr, tokenFile string, log *zap.Logger) (*web, error) {
	w := &web{done: make(chan struct{})}
	if addr == "" && tokenFile == "" {
		return w, nil
	} else if addr == "" {
		return nil, exit.With(exit.Config, errors.New("http_token_file: it needs http"))
	}
	var err error
	if w.page.Token, err = page.Token(tokenFile); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	w.page.Host, _, _ = net.SplitHostPort(addr) // of an address without a host: empty
	w.page.Data = w.numbers
	if w.l, err = net.Listen("tcp", addr); err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	log = log.Named("http")
	w.tell(tokenFile, log)
	var conns atomic.Int64
	w.srv = &http.Server{
		Handler: w.handler(), ReadHeaderTimeout: httpIdle, IdleTimeout: httpIdle, ReadTimeout: httpReply, WriteTimeout: httpReply,
		MaxHeaderBytes: 16 << 10, ErrorLog: zap.NewStdLog(log),
		ConnState: func(c net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				if conns.Add(1) > httpConns {
					c.Close()
				}
			case http.StateClosed:
				conns.Add(-1)
			}
		},
	}
	go func() { // ends with close
		defer close(w.done)
		if err := w.srv.Serve(w.l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve", zap.Error(err))
		}
	}()
	return w, nil
}

// handler answers /healthz and /readyz at any time, and the rest once there is a daemon.
func (w *web) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(to http.ResponseWriter, _ *http.Request) { to.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(to http.ResponseWriter, _ *http.Request) {
		lines := w.lacks()
		if len(lines) == 0 {
			to.Write([]byte("ready\n"))
			return
		}
		http.Error(to, strings.Join(lines, "\n"), http.StatusServiceUnavailable)
	})
	w.page.Register(mux)
	text := func(path, form string, collect func(d *daemon) []byte) {
		mux.HandleFunc("GET "+path, func(to http.ResponseWriter, _ *http.Request) {
			var body []byte
			if d := w.daemon.Load(); d != nil {
				body = collect(d)
			}
			if body == nil {
				http.Error(to, "not ready", http.StatusServiceUnavailable)
				return
			}
			to.Header().Set("Content-Type", form)
			to.Write(body)
		})
	}
	text("/status", "application/json", (*daemon).status)
	text("/metrics", metrics.ContentType, func(d *daemon) []byte { return d.page.Text() })
	return mux
}

// numbers returns what the page shows; nil: there is no daemon yet.
func (w *web) numbers() []byte {
	if d := w.daemon.Load(); d != nil {
		return d.view.Text()
	}
	return nil
}

func (w *web) tell(tokenFile string, log *zap.Logger) {
	if tokenFile == "" {
		return
	}
	log.Info("page", zap.String("url", "http://"+w.l.Addr().String()+"/"), zap.String("token_file", tokenFile))
	if at, ok := w.l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
		log.Warn("the page is on an address that is not loopback, and HTTP is not encrypted: everyone who reads the network learns the token. Use a loopback address and ssh -L", zap.Stringer("address", at))
	}
}

func (w *web) close() error {
	w.at("stopping")
	if w.srv == nil {
		return nil
	}
	err := w.srv.Close()
	<-w.done
	return err
}

const debugPrefix = "debug-"

// DebugSocket returns the socket for pprof of a daemon of the user of this process; "" if that user has none.
func DebugSocket(pid int) string {
	near := handoff.DefaultPath(os.Getenv("XDG_RUNTIME_DIR"))
	if near == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(near), debugPrefix+strconv.Itoa(pid)+".sock")
}

// serveDebug serves pprof at a unix socket for root and the user of this process, from the start to the end of the
// process. stop removes the socket. A process without the socket works as well.
func serveDebug(log *zap.Logger) (stop func()) {
	near := handoff.DefaultPath(os.Getenv("XDG_RUNTIME_DIR"))
	if near == "" {
		return func() {}
	}
	l, err := handoff.ListenPrivate(near, debugPrefix, debugPrefix+strconv.Itoa(os.Getpid()))
	if err != nil {
		log.Info("no socket for pprof", zap.Error(err))
		return func() {}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: httpIdle, IdleTimeout: httpIdle, MaxHeaderBytes: 16 << 10, ErrorLog: zap.NewStdLog(log)}
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("serve pprof", zap.Error(err))
		}
	}()
	log.Debug("pprof", zap.String("socket", l.Path()))
	return func() {
		err := srv.Close()
		<-done
		if err = errors.Join(err, l.Remove()); err != nil {
			log.Warn("remove the socket for pprof", zap.Error(err))
		}
	}
}
