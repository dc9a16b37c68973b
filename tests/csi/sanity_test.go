package csi

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
)

// administrator is who makes static volumes: it names them, and gives them attributes. The driver has no controller.
type administrator struct {
	csi.UnimplementedControllerServer
	made atomic.Int64
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (*administrator) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

// CreateVolume implements csi.ControllerServer.
func (a *administrator) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	a.made.Add(1)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetName(), VolumeContext: r.GetParameters()}}, nil
}

// DeleteVolume implements csi.ControllerServer.
func (*administrator) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

// TestSanity runs the suite of kubernetes-csi against the driver, with an owner and real mounts.
func TestSanity(t *testing.T) {
	d := start(t)
	address := filepath.Join(filepath.Dir(d.socket), "admin.sock")
	l, err := net.Listen("unix", address)
	must(t, err)
	admin := &administrator{}
	s := grpc.NewServer()
	csi.RegisterControllerServer(s, admin)
	csi.RegisterIdentityServer(s, identity{})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }() // ends with s
	defer func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c := sanity.NewTestConfig()
	c.Address, c.ControllerAddress = "unix://"+d.socket, "unix://"+address
	c.TargetPath, c.StagingPath = filepath.Join(d.dir, "sanity"), filepath.Join(d.dir, "staging")
	c.TestVolumeParameters = map[string]string{"socket": d.owner.Socket, "directory": "team/model", "uid": "1000", "gid": "1000"}
	sc := sanity.GinkgoTest(&c)
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.SkipStrings = append(suite.SkipStrings, "Controller Server") // those would test the administrator
	reporter.NoColor = true
	ginkgo.RunSpecs(t, "kvfs csi", suite, reporter)
	sc.Finalize()
	if admin.made.Load() == 0 {
		t.Error("the suite has used no volume")
	}
	if pids := d.holders(); len(pids) != 0 {
		t.Errorf("the suite left %d mounts", len(pids))
	}
}

// identity is that of the administrator.
type identity struct {
	csi.UnimplementedIdentityServer
}

// GetPluginInfo implements csi.IdentityServer.
func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "administrator"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements csi.IdentityServer.
func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
