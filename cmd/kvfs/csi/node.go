package csi

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/daemon"
	"github.com/kvfs/kvfs/cmd/kvfs/handoff"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/tiers/block"
)

type node struct {
	spec.UnimplementedNodeServer
	o Options

	mu struct {
		sync.Mutex
		held map[string]*daemon.Held // by target path
		busy map[string]bool         // target paths that a request is about
	}
}

// NodeGetInfo implements spec.NodeServer.
func (n *node) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: n.o.NodeID, MaxVolumesPerNode: handoff.MaxMounts}, nil
}

// NodeGetCapabilities implements spec.NodeServer.
func (n *node) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	r := &spec.NodeGetCapabilitiesResponse{}
	for _, t := range []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_GET_VOLUME_STATS, spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	} {
		r.Capabilities = append(r.Capabilities, &spec.NodeServiceCapability{
			Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return r, nil
}

// begin claims a target path. It fails while another request has it.
func (n *node) begin(target string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.busy[target] {
		return status.Errorf(codes.Aborted, "%s: an earlier request is under way", target)
	}
	n.mu.busy[target] = true
	return nil
}

func (n *node) end(target string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mu.busy, target)
}

// heldAt returns the live mount that this process holds at target, or nil.
func (n *node) heldAt(target string) *daemon.Held {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.mu.held[target]
	if h == nil {
		return nil
	}
	select {
	case <-h.Done():
		delete(n.mu.held, target)
		return nil
	default:
		return h
	}
}

func (n *node) hold(target string, h *daemon.Held) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.held[target] = h
}

// NodePublishVolume implements spec.NodeServer.
func (n *node) NodePublishVolume(ctx context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	v, err := parseVolume(r, n.o.Config.Store.Socket)
	if err != nil {
		return nil, err
	}
	if err := n.begin(v.target); err != nil {
		return nil, err
	}
	defer n.end(v.target)
	done, err := n.published(v)
	if err != nil || done {
		return &spec.NodePublishVolumeResponse{}, err
	}
	if err := os.MkdirAll(v.target, 0o750); err != nil {
		return nil, failed(err)
	}
	h, err := n.o.Program.Hold(ctx, n.configOf(v.id, v.socket), v.target, v.readOnly, n.o.Logger)
	if err != nil {
		return nil, failed(err)
	}
	if err := v.makeDirectory(); err != nil {
		return nil, failed(errors.Join(err, h.Unmount()))
	}
	n.hold(v.target, h)
	return &spec.NodePublishVolumeResponse{}, nil
}

// published reports whether the volume is at its target already. It fails if something else is.
func (n *node) published(v *volume) (bool, error) {
	m, err := mounts.Find(v.target)
	switch {
	case errors.Is(err, iofs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, failed(err)
	case m == nil:
		return false, nil
	case !mounts.IsOurs(m):
		return false, status.Errorf(codes.FailedPrecondition, "%s: a file system of type %s is mounted there", v.target, m.FSType)
	case n.heldAt(v.target) == nil:
		return false, nil // of a dead process, which Hold takes away; or of a living one, which Hold finds out
	case m.Source != source(v.id) || mounts.ReadOnly(m) != v.readOnly:
		return false, status.Errorf(codes.AlreadyExists, "%s: volume %q is published there, or with another access", v.target, m.Source)
	}
	return true, nil
}

func (n *node) configOf(id, socket string) *config.Config {
	cfg := *n.o.Config
	cfg.Store.Socket, cfg.Mount.FSName = socket, source(id)
	return &cfg
}

// failed returns err as an answer. A store without an owner is unavailable.
func failed(err error) error {
	code := codes.Internal
	if errors.Is(err, handoff.ErrNoOwner) {
		code = codes.Unavailable
	}
	return status.Error(code, err.Error())
}

// NodeUnpublishVolume implements spec.NodeServer.
func (n *node) NodeUnpublishVolume(ctx context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	target := r.GetTargetPath()
	if err := checkNames(r.GetVolumeId(), target); err != nil {
		return nil, err
	}
	if err := n.begin(target); err != nil {
		return nil, err
	}
	defer n.end(target)
	if h := n.heldAt(target); h != nil {
		if err := h.Unmount(); err != nil {
			return nil, failed(err)
		}
	}
	if err := n.clear(ctx, target); err != nil {
		return nil, failed(err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, failed(err)
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// clear takes away the kvfs mounts at target that this process does not hold: they are dead, or kept by an owner.
func (n *node) clear(ctx context.Context, target string) error {
	for {
		m, err := mounts.Find(target)
		switch {
		case errors.Is(err, iofs.ErrNotExist):
			return nil
		case err != nil || m == nil:
			return err
		case !mounts.IsOurs(m):
			return fmt.Errorf("%s: a file system of type %s is mounted there", target, m.FSType)
		}
		if err := mounts.GiveUp(ctx, m); err != nil {
			return err
		}
	}
}

// NodeGetVolumeStats implements spec.NodeServer. The numbers are those of the whole store.
func (n *node) NodeGetVolumeStats(_ context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	path := r.GetVolumePath()
	switch {
	case r.GetVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	case path == "":
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	m, err := mounts.Find(path)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, failed(err)
	}
	if !mounts.IsOurs(m) || m.Source != source(r.GetVolumeId()) {
		return nil, status.Errorf(codes.NotFound, "volume %q is not at %s", r.GetVolumeId(), path)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, failed(&os.PathError{Op: "statfs", Path: path, Err: err})
	}
	bytes := func(blocks uint64) int64 { return int64(blocks) * st.Bsize }
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{{
		Unit: spec.VolumeUsage_BYTES, Total: bytes(st.Blocks), Available: bytes(st.Bavail), Used: bytes(st.Blocks - st.Bfree),
	}}}, nil
}

// resume holds the mounts again that an earlier process of this driver held and the owners have kept.
func (n *node) resume(ctx context.Context) error {
	all, err := mounts.List(prefix)
	if err != nil {
		return err
	}
	sockets, err := filepath.Glob(filepath.Join(filepath.Dir(n.o.Config.Store.Socket), "*.sock"))
	if err != nil {
		return err
	}
	for _, m := range all {
		var failures error
		for _, socket := range sockets {
			ctx, cancel := context.WithTimeout(ctx, resumeTime)
			h, err := n.o.Program.Resume(ctx, n.configOf(m.Source[len(prefix):], socket), m.Mountpoint, n.o.Logger)
			cancel()
			if failures = errors.Join(failures, err); err == nil {
				n.hold(m.Mountpoint, h)
				failures = nil
				break
			}
		}
		if failures != nil || len(sockets) == 0 {
			n.o.Logger.Warn("no owner has kept this mount: its pod must be started again", zap.String("dir", m.Mountpoint),
				zap.String("volume", m.Source), zap.Error(failures))
		}
	}
	return nil
}

// settle waits until owners serve all mounts, because a mount without an owner ends with this process.
func (n *node) settle(ctx context.Context) {
	n.mu.Lock()
	var all []*daemon.Held
	for _, h := range n.mu.held {
		all = append(all, h)
	}
	n.mu.Unlock()
	for _, h := range all {
		if !h.Settle(ctx) {
			n.o.Logger.Warn("a mount without an owner ends with this process", zap.String("dir", h.Dir()))
		}
	}
}

// volume is a checked request to mount.
type volume struct {
	id        string
	target    string
	socket    string // of the store
	readOnly  bool
	directory string // to make below the mount; empty: none
	uid, gid  int    // of the directory
	private   bool   // the directory is for this user and group
}

// maxID is the longest id of a volume: CSI's limit of a string.
const maxID = 128

// prefix is how the source of a mount of this driver begins.
const prefix = "csi:"

// source returns the first column of the volume's mount in the mount table.
func source(id string) string { return prefix + id }

// kubernetes is how the attributes begin that Kubernetes adds to those of a volume.
const kubernetes = "csi.storage.k8s.io/"

// parseVolume checks a request. Volumes may have the stores whose sockets are beside own.
func parseVolume(r *spec.NodePublishVolumeRequest, own string) (*volume, error) {
	v := &volume{id: r.GetVolumeId(), target: r.GetTargetPath(), socket: own, readOnly: r.GetReadonly()}
	if err := checkNames(v.id, v.target); err != nil {
		return nil, err
	}
	if err := v.capability(r.GetVolumeCapability()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := v.attributes(r.GetVolumeContext()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return v, nil
}

// checkNames checks what all requests about a volume of this node have.
func checkNames(id, target string) error {
	switch {
	case id == "":
		return status.Error(codes.InvalidArgument, "volume_id is missing")
	case len(id) > maxID || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }):
		return status.Errorf(codes.InvalidArgument, "volume_id %q: want at most %d characters without spaces and backslashes", id, maxID)
	case target == "":
		return status.Error(codes.InvalidArgument, "target_path is missing")
	}
	return nil
}

func (v *volume) capability(c *spec.VolumeCapability) error {
	m := c.GetMount()
	switch {
	case c == nil:
		return errors.New("volume_capability is missing")
	case c.GetBlock() != nil:
		return errors.New("kvfs has no block devices: want volumeMode Filesystem")
	case m == nil:
		return errors.New("volume_capability has no access type")
	case !filepath.IsAbs(v.target) || filepath.Clean(v.target) != v.target:
		return fmt.Errorf("target_path %q is not a clean absolute path", v.target)
	case m.GetFsType() != "" && m.GetFsType() != "kvfs":
		return fmt.Errorf("fs_type %q: want kvfs, or none", m.GetFsType())
	case len(m.GetMountFlags()) > 0:
		return fmt.Errorf("mount option %q: kvfs volumes take none", m.GetMountFlags()[0])
	}
	switch c.GetAccessMode().GetMode() {
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		v.readOnly = true
	case spec.VolumeCapability_AccessMode_UNKNOWN:
		return errors.New("volume_capability has no access mode")
	}
	if group := m.GetVolumeMountGroup(); group != "" {
		gid, err := parseID(group)
		if err != nil {
			return fmt.Errorf("volume_mount_group %w", err)
		}
		v.gid, v.private = gid, true
	}
	return nil
}

func (v *volume) attributes(attributes map[string]string) (err error) {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		switch {
		case name == "socket":
			err = v.setSocket(value)
		case name == "directory":
			err = v.setDirectory(value)
		case name == "uid":
			v.uid, err = parseID(value)
			v.private = true
		case name == "gid":
			v.gid, err = parseID(value)
			v.private = true
		case strings.HasPrefix(name, kubernetes):
		default:
			return fmt.Errorf("volume attribute %q is unknown: want socket, directory, uid or gid", name)
		}
		if err != nil {
			return fmt.Errorf("volume attribute %s: %w", name, err)
		}
	}
	if _, named := attributes["uid"]; named && v.directory == "" {
		return errors.New("volume attribute uid is for a directory: give directory, too")
	}
	if _, named := attributes["gid"]; named && v.directory == "" {
		return errors.New("volume attribute gid is for a directory: give directory, too")
	}
	return nil
}

// setSocket names the store. A pod may have none but those that the node offers.
func (v *volume) setSocket(socket string) error {
	if dir := filepath.Dir(v.socket); filepath.Clean(socket) != socket || filepath.Dir(socket) != dir {
		return fmt.Errorf("%q is not a socket in %s", socket, dir)
	}
	v.socket = socket
	return nil
}

func (v *volume) setDirectory(dir string) error {
	first, _, _ := strings.Cut(dir, "/")
	if !filepath.IsLocal(dir) || filepath.Clean(dir) != dir || dir == "." || first == block.Reserved {
		return fmt.Errorf("%q is not the path of a directory below the mount", dir)
	}
	v.directory = dir
	return nil
}

func parseID(text string) (int, error) {
	id, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not the number of a user or of a group", text)
	}
	return int(id), nil
}

// makeDirectory makes the volume's directory, with those above it. It leaves directories alone that exist.
func (v *volume) makeDirectory() error {
	if v.directory == "" || v.readOnly {
		return nil
	}
	mode := os.FileMode(0o755)
	if v.private {
		mode = 0o770
	}
	at := v.target
	for name := range strings.SplitSeq(v.directory, "/") {
		at = filepath.Join(at, name)
		err := os.Mkdir(at, 0o700)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			err = errors.Join(os.Chown(at, v.uid, v.gid), os.Chmod(at, mode))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
