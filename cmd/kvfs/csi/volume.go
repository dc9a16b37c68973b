package csi

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/tiers/block"
)

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

// capability checks how the volume is to be used.
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
		return fmt.Errorf("mount option %q: kvfs volumes have none", m.GetMountFlags()[0])
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

// attributes reads the attributes of a volume.
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

// parseID reads the number of a user or of a group.
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
