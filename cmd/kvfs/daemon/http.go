package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/metrics"
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
	l    net.Listener // nil: there is none
	srv  *http.Server
	done chan struct{} // closed when srv has ended
}

// openWeb listens at addr and answers. Without an address it does nothing.
func openWeb(addr string, log *zap.Logger) (*web, error) {
	w := &web{done: make(chan struct{})}
	if addr == "" {
		return w, nil
	}
	var err error
	if w.l, err = net.Listen("tcp", addr); err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	log = log.Named("http")
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
	page := func(path, form string, text func(d *daemon) []byte) {
		mux.HandleFunc("GET "+path, func(to http.ResponseWriter, _ *http.Request) {
			var body []byte
			if d := w.daemon.Load(); d != nil {
				body = text(d)
			}
			if body == nil {
				http.Error(to, "not ready", http.StatusServiceUnavailable)
				return
			}
			to.Header().Set("Content-Type", form)
			to.Write(body)
		})
	}
	page("/status", "application/json", (*daemon).status)
	page("/metrics", metrics.ContentType, func(d *daemon) []byte { return d.page.Text() })
	return mux
}

// close ends the server and all of its connections.
func (w *web) close() error {
	w.at("stopping")
	if w.srv == nil {
		return nil
	}
	err := w.srv.Close()
	<-w.done
	return err
}
