package daemon

import (
	"errors"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strconv"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
)

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
