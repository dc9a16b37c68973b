// Package csi is the node's part of a CSI driver: Kubernetes asks it over gRPC to mount the blocks of a store, kvfs serve,
// at a directory of a pod, and to unmount them.
//
// Volumes are ephemeral inline ones and static ones; there is nothing to create, so there is no controller service. All
// volumes of a store show the same blocks.
//
// # Who holds the mounts
//
// This process mounts and hands the descriptors to the owner of the store, which serves the mount (package handoff). Both
// have the descriptors, so a mount stays when either of them ends: the owner keeps those of a driver that is gone, and the
// next driver resumes what it finds in the mount table; a driver hands its mounts to the next owner. What both have left at
// one time is lost: the mount answers ENOTCONN. So each waits for the other before it stops.
//
// The mount table is the only state. The first column of a mount is "csi:" and the id of the volume.
package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
)

// Name is the name of the driver.
const Name = "csi.kvfs.io"

const (
	resumeTime = 15 * time.Second // how long an owner may take to give a mount back
	probeTime  = 5 * time.Second  // how long an owner may take to greet
	stopTime   = 5 * time.Second  // how long requests may take when the driver stops
)

// Options configures a driver.
type Options struct {
	Endpoint string // unix:// and the absolute path of the socket
	NodeID   string // the name of this node in Kubernetes
	Program  daemon.Program
	Config   *config.Config // of the mounts
	Logger   *zap.Logger
}

// Serve is the life of a driver: it resumes the mounts of the driver before it, answers requests, and leaves its mounts
// to the owners when ctx ends. Errors have an exit code.
func Serve(ctx context.Context, o Options, ready *daemon.Readiness) error {
	socket, ok := strings.CutPrefix(o.Endpoint, "unix://")
	if !ok || !filepath.IsAbs(socket) {
		return exit.With(exit.Usage, fmt.Errorf("--endpoint %q: want unix:// and an absolute path, such as unix:///csi/csi.sock", o.Endpoint))
	}
	if os.Geteuid() != 0 {
		return exit.With(exit.Mount, errors.New("kvfs csi must run as root, to mount for other users"))
	}
	if o.NodeID == "" {
		return exit.With(exit.Usage, errors.New("--node-id: the name of the node is missing"))
	}
	n := &node{o: o}
	n.mu.held, n.mu.busy = map[string]*daemon.Held{}, map[string]bool{}
	if err := n.resume(ctx); err != nil {
		return err
	}
	l, err := listen(socket)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(n.logged))
	spec.RegisterIdentityServer(s, &identity{o: o})
	spec.RegisterNodeServer(s, n)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }() // ends with s
	o.Logger.Info("serving", zap.String("endpoint", o.Endpoint), zap.String("node", o.NodeID))
	ready.Serving(socket)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	o.Logger.Info("stopping: the mounts stay with their owners")
	late := time.AfterFunc(stopTime, s.Stop)
	s.GracefulStop()
	late.Stop()
	settled, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(o.Config.Store.OwnerTimeout))
	defer cancel()
	n.settle(settled)
	return nil
}

// listen makes a socket for root alone, in place of that of a driver that has ended.
func listen(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("another driver serves at %s", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s exists and is not a socket: name another path, or remove it", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	was := unix.Umask(0o077)
	defer unix.Umask(was)
	return net.Listen("unix", path)
}

func (n *node) logged(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	answer, err := next(ctx, r)
	if err != nil {
		n.o.Logger.Warn("request failed", zap.String("method", info.FullMethod), zap.Stringer("code", status.Code(err)), zap.Error(err))
	}
	return answer, err
}

type identity struct {
	spec.UnimplementedIdentityServer
	o Options
}

// GetPluginInfo implements spec.IdentityServer.
func (i *identity) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: Name, VendorVersion: i.o.Program.Version}, nil
}

// GetPluginCapabilities implements spec.IdentityServer: there is no other service than that of a node.
func (i *identity) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements spec.IdentityServer: the driver is ready if the owner of the store serves.
func (i *identity) Probe(ctx context.Context, _ *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	c, err := handoff.Dial(ctx, i.o.Config.Store.Socket)
	if err == nil {
		err = c.Close()
	}
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(err == nil)}, nil
}
