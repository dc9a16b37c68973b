package csi

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestEngine shows an engine that is not root, in a pod with an ephemeral volume: its directory is there and is its own,
// it stores and reads blocks, and a second pod of the same group reads them.
func TestEngine(t *testing.T) {
	d := start(t)
	a := d.publish(d.request("csi-a", "directory", "team/model", "uid", "4711", "gid", "4712"))
	engine := harness.NewActor(t, &harness.User{UID: 4711, GID: 4712})
	if errno := engine.WriteFile(filepath.Join(a, "team/model/0001"), content("0001")); errno != nil {
		t.Errorf("the engine cannot store: %v", errno)
	}
	r := d.request("csi-b", "directory", "team/model")
	r.VolumeCapability = mount("4712") // fsGroup of the pod
	b := d.publish(r)
	check(t, filepath.Join(b, "team/model"), "0001")
	st, err := os.Stat(filepath.Join(b, "team/model"))
	must(t, err)
	if sys := st.Sys().(*syscall.Stat_t); sys.Uid != 4711 || sys.Gid != 4712 || st.Mode() != os.ModeDir|0o770 {
		t.Errorf("directory of uid %d, gid %d, mode %v", sys.Uid, sys.Gid, st.Mode())
	}
	stats, err := d.NodeGetVolumeStats(d.context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-b", VolumePath: b})
	if err != nil || len(stats.GetUsage()) != 1 || stats.GetUsage()[0].GetTotal() != 64<<20 {
		t.Errorf("stats %v, %v", stats, err)
	}
	d.unpublish("csi-a")
	check(t, filepath.Join(b, "team/model"), "0001")
	d.unpublish("csi-b")
	d.unpublish("csi-b")
	if pids := d.holders(); len(pids) != 0 {
		t.Errorf("%d mounts are left", len(pids))
	}
}

// TestExamples shows that the driver takes the volumes of the examples of the chart, and that the users of their pods can
// write to the directories.
func TestExamples(t *testing.T) {
	d := start(t)
	for _, name := range []string{"engine", "static"} {
		f, err := os.Open(filepath.Join("../../deploy/helm/examples", name+".yaml"))
		must(t, err)
		defer f.Close()
		var given map[string]string
		var user struct {
			RunAsUser  uint32 `yaml:"runAsUser"`
			RunAsGroup uint32 `yaml:"runAsGroup"`
		}
		for docs := yaml.NewDecoder(f); ; {
			var doc struct {
				Kind string
				Spec struct {
					CSI struct {
						VolumeAttributes map[string]string `yaml:"volumeAttributes"`
					}
					Volumes []struct {
						CSI struct {
							VolumeAttributes map[string]string `yaml:"volumeAttributes"`
						}
					}
					SecurityContext yaml.Node `yaml:"securityContext"`
				}
			}
			if err := docs.Decode(&doc); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if doc.Kind == "PersistentVolume" {
				given = doc.Spec.CSI.VolumeAttributes
			}
			if doc.Kind == "Pod" {
				if len(given) == 0 {
					given = doc.Spec.Volumes[0].CSI.VolumeAttributes
				}
				must(t, doc.Spec.SecurityContext.Decode(&user))
			}
		}
		r := d.request(name)
		maps.Copy(r.VolumeContext, given)
		dir := d.publish(r)
		engine := harness.NewActor(t, &harness.User{UID: user.RunAsUser, GID: user.RunAsGroup})
		if err := engine.WriteFile(filepath.Join(dir, given["directory"], "0001"), content("0001")); err != nil || user.RunAsUser == 0 {
			t.Errorf("%s: user %d cannot write to %q: %v", name, user.RunAsUser, given["directory"], err)
		}
	}
}

// TestReadOnly shows that a read-only volume shows blocks and takes none, and that its target cannot be published for
// another volume or with another access.
func TestReadOnly(t *testing.T) {
	d := start(t)
	w := d.publish(d.request("csi-w"))
	store(t, w, "g/0001")
	r := d.request("csi-r", "directory", "new")
	r.Readonly = true
	dir := d.publish(r)
	check(t, dir, "g/0001")
	for name, err := range map[string]error{
		"write": os.WriteFile(filepath.Join(dir, "g/0002"), nil, 0o644), "mkdir": os.Mkdir(filepath.Join(dir, "h"), 0o755),
		"remove": os.Remove(filepath.Join(dir, "g/0001")),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", name, err)
		}
	}
	d.publish(r) // again
	other := d.request("csi-other")
	other.TargetPath = r.GetTargetPath()
	for what, r := range map[string]*csi.NodePublishVolumeRequest{
		"another access": {VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath(), VolumeCapability: mount("")}, "another volume": other,
	} {
		if _, err := d.NodePublishVolume(d.context(), r); status.Code(err) != codes.AlreadyExists {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRefused shows that a request with anything that the driver does not know is refused, with the name of it, and
// leaves nothing behind.
func TestRefused(t *testing.T) {
	d := start(t)
	for _, c := range []struct {
		attributes []string
		want       string
	}{
		{[]string{"sockets", "/run/kvfs/0/store.sock"}, `"sockets" is unknown`},
		{[]string{"csi.storage.k8s.io", "x"}, `"csi.storage.k8s.io" is unknown`},
		{[]string{"socket", "/run/other/store.sock"}, "is not a socket in"},
		{[]string{"socket", filepath.Dir(d.owner.Socket) + "/../store.sock"}, "is not a socket in"},
		{[]string{"socket", ""}, "is not a socket in"},
		{[]string{"directory", "../x"}, "directory"},
		{[]string{"directory", "/x"}, "directory"},
		{[]string{"directory", "."}, "directory"},
		{[]string{"directory", ""}, "directory"},
		{[]string{"directory", ".kvfs/x"}, "directory"},
		{[]string{"uid", "1000"}, "uid is for a directory"},
		{[]string{"gid", "1000"}, "gid is for a directory"},
		{[]string{"directory", "x", "uid", "-1"}, `uid: "-1"`},
		{[]string{"directory", "x", "gid", "staff"}, `gid: "staff"`},
	} {
		_, err := d.NodePublishVolume(d.context(), d.request("csi-x", c.attributes...))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.attributes, err, c.want)
		}
	}
	for want, change := range map[string]func(r *csi.NodePublishVolumeRequest){
		"block devices": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		},
		"fs_type": func(r *csi.NodePublishVolumeRequest) { r.GetVolumeCapability().GetMount().FsType = "ext4" },
		"mount option": func(r *csi.NodePublishVolumeRequest) {
			r.GetVolumeCapability().GetMount().MountFlags = []string{"noatime"}
		},
		"mount_group":    func(r *csi.NodePublishVolumeRequest) { r.GetVolumeCapability().GetMount().VolumeMountGroup = "staff" },
		"absolute path":  func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "pods/x" },
		"volume_id":      func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "a b" },
		"no access mode": func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessMode = nil },
	} {
		r := d.request("csi-x")
		change(r)
		if _, err := d.NodePublishVolume(d.context(), r); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if entries, err := os.ReadDir(d.dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	st, err := os.Stat(d.socket)
	if err != nil || st.Mode().Perm() != 0o700 && st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v, %v", st.Mode(), err)
	}
}

// TestDriverEnds shows that volumes outlive their driver, killed or stopped, and that the next driver holds them again:
// it unpublishes them, and they outlive the owner as before.
func TestDriverEnds(t *testing.T) {
	d := start(t)
	dir := d.publish(d.request("csi-a"))
	store(t, dir, "g/0001")
	open, err := os.Open(filepath.Join(dir, "g/0001"))
	must(t, err)
	defer open.Close()
	for i, end := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGKILL} {
		must(t, unix.Kill(d.pid, end))
		<-d.exited
		harness.Poll(t, "nobody holds the mount", func() bool { pids := d.holders(); return len(pids) == 1 && pids[0] == 0 })
		name := "g/without-" + string(rune('0'+i))
		store(t, dir, name)
		check(t, dir, name)
		check(t, dir, "g/0001")
		d.run()
		if pids := d.holders(); len(pids) != 1 || pids[0] != d.pid {
			t.Fatalf("the mounts are held by %v, the driver is %d", pids, d.pid)
		}
		d.publish(d.request("csi-a")) // the kubelet asks again
		d.owner.Kill()
		d.owner.Restart()
		check(t, dir, name)
		if got := make([]byte, 4); true {
			if _, err := open.ReadAt(got, 0); err != nil {
				t.Errorf("a file open from before: %v", err)
			}
		}
	}
	d.unpublish("csi-a")
	harness.Poll(t, "the owner has no mounts", func() bool { return len(d.holders()) == 0 })
}

// TestAllDead shows that a volume that owner and driver have left at one time is unpublished, and published again.
func TestAllDead(t *testing.T) {
	d := start(t)
	a, b := d.request("csi-a"), d.request("csi-b")
	store(t, d.publish(a), "g/0001")
	d.publish(b)
	d.kill()
	d.owner.Kill()
	if _, err := os.Stat(filepath.Join(a.GetTargetPath(), "g")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("a volume that nobody holds: %v", err)
	}
	d.owner.Restart()
	d.run()
	if _, err := d.NodeGetVolumeStats(d.context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "csi-a", VolumePath: a.GetTargetPath()}); status.Code(err) != codes.Internal {
		t.Errorf("stats of a dead volume: %v", err)
	}
	d.unpublish("csi-a")
	check(t, d.publish(b), "g/0001")
	if len(harness.MountPoints(d.dir)) != 1 {
		t.Errorf("mounts: %q", harness.MountPoints(d.dir))
	}
	d.unpublish("csi-b")
}

// TestOwnerStops shows that an owner that is told to stop while there is no driver waits for one, and that the volumes
// then outlive the owner.
func TestOwnerStops(t *testing.T) {
	d := start(t)
	dir := d.publish(d.request("csi-a"))
	d.kill()
	harness.Poll(t, "nobody holds the mount", func() bool { pids := d.holders(); return len(pids) == 1 && pids[0] == 0 })
	must(t, unix.Kill(d.owner.Pid, unix.SIGTERM))
	harness.Poll(t, "the owner stops", func() bool { return strings.Contains(d.owner.Log(), "stopping") })
	d.run()
	<-d.owner.Exited()
	d.owner.Restart()
	store(t, dir, "g/0001")
	check(t, dir, "g/0001")
}

// TestNoOwner shows what the driver says without an owner, and that a driver that is told to stop waits until there is
// one, because its mounts would end with it.
func TestNoOwner(t *testing.T) {
	d := start(t)
	ready := func() bool {
		r, err := d.Probe(d.context(), &csi.ProbeRequest{})
		must(t, err)
		return r.GetReady().GetValue()
	}
	dir := d.publish(d.request("csi-a"))
	store(t, dir, "g/0001")
	if !ready() {
		t.Error("not ready with an owner")
	}
	d.owner.Kill()
	if ready() {
		t.Error("ready without an owner")
	}
	must(t, unix.Kill(d.pid, unix.SIGTERM))
	harness.Poll(t, "the driver stops", func() bool {
		text, _ := os.ReadFile(d.logs)
		return strings.Contains(string(text), "stopping")
	})
	d.owner.Restart()
	<-d.exited
	check(t, dir, "g/0001")
	d.run()
	if pids := d.holders(); len(pids) != 1 || pids[0] != d.pid {
		t.Errorf("the mounts are held by %v", pids)
	}
}
