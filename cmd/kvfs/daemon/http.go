package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Limits of the HTTP server, to which any reachable client may connect.
const (
	httpConns = 64               // at a time
	httpIdle  = 5 * time.Second  // for the head of a request, and between two of them
	httpReply = 30 * time.Second // for all of a request and its answer
)

// listenHTTP listens at addr; nil if that is empty.
func listenHTTP(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("http: %w", err)
	}
	return l, nil
}

// serveHTTP answers /readyz and /status at l, which may be nil. stop ends it.
func serveHTTP(l net.Listener, d *daemon, log *zap.Logger) (stop func() error) {
	if l == nil {
		return func() error { return nil }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ready\n")) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(d.status())
	})
	log = log.Named("http")
	var conns atomic.Int64
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: httpIdle, IdleTimeout: httpIdle, ReadTimeout: httpReply, WriteTimeout: httpReply,
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
	go func() { // ends with Close
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve", zap.Error(err))
		}
	}()
	return srv.Close
}
