package rails

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/rdma/nic"
)

// Machine is the machine whose RDMA is used.
type Machine struct {
	nic     nic.Options
	devices string                         // directory of the character devices
	memlock func() (limit int64, all bool) // how much may be pinned; all: without limit
	open    func(fabric.Options) (transport, error)
	library func() (fabric.Library, error)
}

// ThisMachine returns the machine that the program runs on.
func ThisMachine() *Machine {
	return &Machine{devices: "/dev/infiniband", memlock: memlock, open: openTransportOf, library: fabric.Probe}
}

// openTransportOf is fabric.Open. It avoids an interface that holds a nil pointer.
func openTransportOf(o fabric.Options) (transport, error) {
	t, err := fabric.Open(o)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// pinned is the least memory to pin beside the cache: blocks that are being read, and queues.
const pinned = 64 * scalar.MiB

// obstacles lists the reasons why this process cannot use the cards, each with a remedy.
func (m *Machine) obstacles(r *set, cfg *config.Config) []error {
	if r.provider == fabric.TCP {
		return nil // sockets need no permission
	}
	return append(m.closedDevices(r), m.checkMemlock(cfg))
}

// closedDevices lists the character devices that cannot be opened.
func (m *Machine) closedDevices(r *set) []error {
	var errs []error
	if _, err := os.Stat(m.devices); errors.Is(err, os.ErrNotExist) {
		return []error{fmt.Errorf("%s is not there: load the modules ib_uverbs and rdma_ucm; into a container it comes by --device=%[1]s", m.devices)}
	}
	for _, device := range r.devices() {
		node, err := m.characterDevice(device)
		if err == nil {
			err = tryOpen(node)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", device, err))
		}
	}
	if r.provider == fabric.Verbs {
		if err := tryOpen(filepath.Join(m.devices, "rdma_cm")); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// characterDevice returns the path of the device through which programs talk to a card.
func (m *Machine) characterDevice(device string) (string, error) {
	root := m.nic.Sysfs
	if root == "" {
		root = "/sys"
	}
	found, err := filepath.Glob(filepath.Join(root, "class/infiniband_verbs/uverbs*/ibdev"))
	if err != nil {
		return "", err
	}
	for _, file := range found {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == device {
			return filepath.Join(m.devices, filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", errors.New("it has no device for programs: load the module ib_uverbs")
}

// tryOpen opens a device as the library would. Its error names the remedy.
func tryOpen(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: give this user the right to read and write it (a udev rule with MODE=\"0666\"); in a container, --device=%s", err, filepath.Dir(path))
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: load the modules ib_uverbs and rdma_ucm; into a container it comes by --device=%s", err, filepath.Dir(path))
	}
	return err
}

// PinnedBytes returns how much memory RDMA has to pin with these settings.
func PinnedBytes(cfg *config.Config) int64 { return int64(cfg.RDMA.Cache + pinned) }

// checkMemlock fails if this process may pin less than it needs.
func (m *Machine) checkMemlock(cfg *config.Config) error {
	limit, all := m.memlock()
	need := PinnedBytes(cfg)
	if all || limit >= need {
		return nil
	}
	return fmt.Errorf("the limit of locked memory is %s, and RDMA needs %s (rdma.cache and %s): ulimit -l unlimited, LimitMEMLOCK=infinity in a unit of systemd, "+
		"or --ulimit memlock=-1 of a container", show.Bytes(limit), show.Bytes(need), show.Bytes(int64(pinned)))
}

// leaseBytes returns how much may be registered for peers at a time: half of memory.size, and
// at most half of what may be pinned beside the cache, because reads of this node are pinned,
// too.
func (m *Machine) leaseBytes(r *set, cfg *config.Config) int64 {
	n := int64(cfg.Memory.Size / 2)
	if limit, all := m.memlock(); !all && r.provider != fabric.TCP {
		n = min(n, (limit-int64(cfg.RDMA.Cache))/2)
	}
	return max(n, 1)
}

// memlock returns how much this process may pin. The kernel requires CAP_IPC_LOCK beyond the
// limit.
func memlock() (limit int64, all bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil || r.Cur > 1<<62 {
		return 0, true
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return int64(r.Cur), false
	}
	return int64(r.Cur), data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
