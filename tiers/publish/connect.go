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

// Limits of connecting to bound subscribers.
const (
	maxConnect   = 64                     // endpoints
	dialTimeout  = 10 * time.Second       // for one attempt
	connectPause = 100 * time.Millisecond // after the first failure, as with libzmq; then twice as long each time
	connectLimit = 5 * time.Second        // at most
)

// connect keeps a connection to an endpoint until the server is stopped, however long the endpoint
// is absent.
func (s *server) connect(endpoint string) {
	defer s.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with this function, or earlier
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
		if err == nil && time.Since(began) > connectLimit { // else the peer may always hang up
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

// connectOnce connects and serves the connection until it ends. It fails without a connection or a
// handshake.
func (s *server) connectOnce(ctx context.Context, endpoint string) error {
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: dialTimeout} // and keep-alive, which detects a peer that vanished
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	if c := s.add(nc, endpoint); c != nil {
		return s.run(c)
	}
	return nil
}

// checkConnect fails if kvfs cannot connect to the endpoint.
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
