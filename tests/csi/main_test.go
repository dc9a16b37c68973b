// Package csi holds the tests of the CSI driver, kvfs csi, with real owners and real mounts. It is a module of its own
// for the suite of Kubernetes that it runs.
package csi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// driver is a process of kvfs csi, and the directory in which it mounts.
type driver struct {
	csi.NodeClient
	csi.IdentityClient
	socket string
	dir    string // with the targets
	pid    int

	tb     testing.TB
	owner  *harness.Daemon
	logs   string
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has been waited for
}

// start starts an owner and a driver. Both end with the test, with all mounts.
func start(tb testing.TB) *driver {
	tb.Helper()
	o := harness.Serve(tb, harness.Options{MemorySize: "64MiB"})
	base := filepath.Dir(o.Dir) // the harness removes it, also upon SIGTERM
	d := &driver{tb: tb, owner: o, socket: filepath.Join(base, "csi.sock"), dir: filepath.Join(base, "pods"), logs: filepath.Join(base, "csi.log")}
	must(tb, os.Mkdir(d.dir, 0o755))
	conn, err := grpc.NewClient("unix://"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(tb, err)
	d.NodeClient, d.IdentityClient = csi.NewNodeClient(conn), csi.NewIdentityClient(conn)
	tb.Cleanup(func() {
		if d.exited != nil {
			d.kill()
		}
		if tb.Failed() {
			text, _ := os.ReadFile(d.logs)
			tb.Logf("log of the driver:\n%s", text)
		}
		err := conn.Close()
		for _, point := range harness.MountPoints(d.dir) {
			err = errors.Join(err, unix.Unmount(point, unix.MNT_DETACH))
		}
		if err != nil {
			tb.Error(err)
		}
	})
	d.run()
	return d
}

// run starts the driver, also one that has ended.
func (d *driver) run() {
	d.tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		d.tb.Fatal(err)
	}
	defer r.Close()
	log, err := os.OpenFile(d.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command(harness.Binary(d.tb), "csi", "--ready-fd", "3", "--endpoint", "unix://"+d.socket, "--node-id", "node-1",
		"--store-socket", d.owner.Socket)
	d.cmd.Stdout, d.cmd.Stderr, d.cmd.ExtraFiles = log, log, []*os.File{w}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = d.cmd.Start()
	w.Close()
	if err != nil {
		d.tb.Fatal(err)
	}
	d.pid, d.exited = d.cmd.Process.Pid, make(chan struct{})
	go func() { d.cmd.Wait(); close(d.exited) }() // ends with the driver
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "ready "+d.socket+"\n" {
		text, _ := os.ReadFile(d.logs)
		d.tb.Fatalf("the driver said %q, %v\n%s", line, err, text)
	}
}

// kill kills the driver.
func (d *driver) kill() {
	_ = unix.Kill(d.pid, unix.SIGKILL) // it may have ended
	<-d.exited
}

// mount is the access of an engine to a volume.
func mount(group string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: group}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// request asks for an ephemeral volume as the kubelet does.
func (d *driver) request(id string, attributes ...string) *csi.NodePublishVolumeRequest {
	with := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "engine-0", "csi.storage.k8s.io/pod.namespace": "default",
		"csi.storage.k8s.io/pod.uid": "0f0b", "csi.storage.k8s.io/serviceAccount.name": "default",
	}
	for i := 0; i < len(attributes); i += 2 {
		with[attributes[i]] = attributes[i+1]
	}
	return &csi.NodePublishVolumeRequest{
		VolumeId: id, TargetPath: filepath.Join(d.dir, id, "mount"), VolumeCapability: mount(""), VolumeContext: with,
	}
}

// publish mounts a volume and returns its directory.
func (d *driver) publish(r *csi.NodePublishVolumeRequest) string {
	d.tb.Helper()
	if err := os.MkdirAll(filepath.Dir(r.GetTargetPath()), 0o755); err != nil { // the kubelet's part
		d.tb.Fatal(err)
	}
	if _, err := d.NodePublishVolume(d.context(), r); err != nil {
		d.tb.Fatal(err)
	}
	return r.GetTargetPath()
}

// unpublish unmounts a volume.
func (d *driver) unpublish(id string) {
	d.tb.Helper()
	target := filepath.Join(d.dir, id, "mount")
	if _, err := d.NodeUnpublishVolume(d.context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}); err != nil {
		d.tb.Error(err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		d.tb.Errorf("the target of a volume that is not published any more: %v", err)
	}
}

func (d *driver) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Deadline)
	d.tb.Cleanup(cancel)
	return ctx
}

// holders returns the processes that hold the mounts of the owner.
func (d *driver) holders() (pids []int) {
	d.tb.Helper()
	out, errs, code := harness.Kvfs(d.tb, "status", "--json", "--store", d.owner.Socket)
	var s harness.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
		d.tb.Fatalf("%v, exit code %d: %s", err, code, errs)
	}
	for _, m := range s.Store.Mounts {
		pids = append(pids, m.PID)
	}
	return pids
}

// store writes a block as an engine does.
func store(tb testing.TB, dir, name string) {
	tb.Helper()
	path := filepath.Join(dir, name)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".tmp", content(name), 0o644), os.Rename(path+".tmp", path))
	if err != nil {
		tb.Error(err)
	}
}

// check reads a block.
func check(tb testing.TB, dir, name string) {
	tb.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(content(name)) {
		tb.Errorf("%s: %d bytes, %v", name, len(got), err)
	}
}

func content(name string) []byte { return []byte(strings.Repeat(name+"\n", 10_000)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
