package publish

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of connecting to subscribers that are bound.
const (
	maxConnect   = 64                     // endpoints
	dialTimeout  = 10 * time.Second       // for one attempt
	connectPause = 100 * time.Millisecond // after the first failure, as with libzmq; then twice as long each time
	connectLimit = 5 * time.Second        // at most
)

// connect keeps a connection to an endpoint until the server is stopped, however long nobody is there.
func (s *server) connect(endpoint string) {
	defer s.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with this function, or before
		select {
		case <-s.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	pause, warned := connectPause, false
	for {
		began := time.Now()
		err := s.connectOnce(ctx, endpoint)
		select {
		case <-s.done:
			return
		default:
		}
		if err == nil && time.Since(began) > connectLimit { // else it may be one that always hangs up
			pause = connectPause
		}
		switch {
		case err == nil:
			s.log.Info("a subscriber disconnected: connecting again", zap.String("endpoint", endpoint))
			warned = false
		case !warned: // once, not each time
			warned = true
			s.log.Warn("cannot connect to a subscriber: trying again", zap.String("endpoint", endpoint), zap.Error(err))
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, connectLimit)
	}
}

// connectOnce connects and serves the connection until it ends. It fails if there was none, or the handshake failed.
func (s *server) connectOnce(ctx context.Context, endpoint string) error {
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: dialTimeout} // and keep-alive: who vanished without a word is noticed
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	if c := s.add(nc, endpoint); c != nil {
		return s.run(c)
	}
	return nil
}

// checkConnect wants an endpoint that can be connected to.
func checkConnect(endpoint string) error {
	network, address, err := parseEndpoint(endpoint)
	if err != nil || network == "unix" {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() || strings.TrimLeft(port, "0") == "" {
		return fmt.Errorf("endpoint %q: want a host and a port to connect to: %w", endpoint, block.ErrInvalid)
	}
	return nil
}
