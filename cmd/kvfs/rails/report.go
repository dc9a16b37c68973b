package rails

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/rdma/fabric"
	"github.com/kvfs/kvfs/rdma/nic"
)

// Report is the result of kvfs doctor rdma. Fields may be added.
type Report struct {
	Usable    bool   `json:"usable"`
	Error     string `json:"error,omitempty"`    // why not
	Transport string `json:"transport"`          // peer.transport
	Provider  string `json:"provider,omitempty"` // as the library calls it, if it was asked
	Library   string `json:"library,omitempty"`  // version and file of libfabric, or why there is none

	Memlock  int64        `json:"memlock"` // bytes that this process may pin; -1: no limit
	Devices  []nic.Device `json:"devices"`
	GPUs     []nic.GPU    `json:"gpus"`
	GPUError string       `json:"gpu_error,omitempty"`

	Plan     *nic.Plan `json:"plan,omitempty"`
	Problems []string  `json:"problems,omitempty"` // each with a remedy
	Rails    []Rail    `json:"rails,omitempty"`    // without a mount
	Peers    []Peer    `json:"peers,omitempty"`    // of a mount
}

// Rail is the outcome of a read over one card, from this machine to itself.
type Rail struct {
	Device  string  `json:"device"` // empty: whatever the library takes
	Bytes   int64   `json:"bytes,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// Peer is the path by which blocks come from a peer.
type Peer struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Path   string `json:"path"`
	Reason string `json:"reason,omitempty"`
}

// Sizes and limits of the read over each card.
const (
	trialBytes   = 16 << 20
	trialTimeout = 20 * time.Second
)

// Look adds the cards and GPUs of the machine to a report about a mount.
func (m *Machine) Look(r *Report) {
	inventory, err := nic.Discover(m.nic)
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	r.see(m, inventory)
}

func (r *Report) see(m *Machine, inventory *nic.Inventory) {
	limit, all := m.memlock()
	if r.Memlock = limit; all {
		r.Memlock = -1
	}
	if inventory != nil {
		r.Devices, r.GPUs, r.GPUError = inventory.Devices, inventory.GPUs, inventory.GPUError
	}
}

func (m *Machine) examine(ctx context.Context, cfg *config.Config, log *zap.Logger) *Report {
	r := &Report{Transport: cfg.Peer.Transport}
	found, err := m.findRails(cfg)
	inventory := found.inventory
	if inventory == nil { // the report says so in any case
		inventory, _ = nic.Discover(m.nic)
	}
	r.see(m, inventory)
	r.Provider, r.Plan, r.Library = found.provider, found.plan, m.describeLibrary()
	if err != nil {
		r.Error = oneLine(err).Error()
		return r
	}
	obstacles := m.obstacles(found, cfg)
	if r.Transport != config.TransportTCP {
		obstacles = append(obstacles, found.exposure(cfg))
	}
	for _, o := range obstacles {
		if o != nil {
			r.Problems = append(r.Problems, o.Error())
		}
	}
	r.tryRails(ctx, m, found.options(cfg, log))
	if r.Error == "" && len(r.Problems) > 0 {
		r.Error = r.Problems[0]
	}
	if r.Error == "" && r.Transport == config.TransportTCP {
		r.Error = "it is turned off by peer.transport " + config.TransportTCP
	}
	r.Usable = r.Error == ""
	return r
}

func (m *Machine) describeLibrary() string {
	l, err := m.library()
	if err != nil {
		return "none: " + oneLine(err).Error()
	}
	return fmt.Sprintf("libfabric %s (%s)", l.Version, l.Path)
}

func (r *Report) tryRails(ctx context.Context, m *Machine, o fabric.Options) {
	devices := o.Devices
	if len(devices) == 0 {
		devices = []string{""} // whichever the library takes
	}
	for _, device := range devices {
		o.Devices, o.Stripe = nil, 0
		if device != "" {
			o.Devices = []string{device}
		}
		rail, caps, err := m.tryRail(ctx, o)
		rail.Device = cmp.Or(device, strings.Join(caps.Rails, "+"))
		if caps.Provider != "" {
			r.Provider = caps.Provider
		}
		if err != nil {
			rail.Error = oneLine(err).Error()
			r.Error = cmp.Or(r.Error, strings.TrimPrefix(device+": ", ": ")+rail.Error)
		}
		r.Rails = append(r.Rails, rail)
	}
}

// tryRail opens two transports on a card and reads from one to the other.
func (m *Machine) tryRail(ctx context.Context, o fabric.Options) (rail Rail, caps rdma.Caps, err error) {
	holder, err := m.open(o)
	if err != nil {
		return rail, caps, err
	}
	defer closing(holder, &err)
	caps = holder.Caps()
	reader, err := m.open(o)
	if err != nil {
		return rail, caps, err
	}
	defer closing(reader, &err)
	file, sum, err := trialFile(trialBytes)
	if err != nil {
		return rail, caps, err
	}
	defer file.Close()
	region, err := holder.Register(file, trialBytes)
	if err != nil {
		return rail, caps, fmt.Errorf("registering memory: %w", err)
	}
	defer closing(region, &err)
	rail.Bytes = trialBytes
	rail.Seconds, err = readTrial(ctx, reader, holder.Addr(), region.Remote(), sum)
	return rail, caps, err
}

// closing closes c and joins its error to *err.
func closing(c io.Closer, err *error) { *err = errors.Join(*err, c.Close()) }

// trialTable is the table for the checksum of the trial.
var trialTable = crc64.MakeTable(crc64.ECMA)

// trialFile makes a memory file of random bytes, and returns their checksum.
func trialFile(size int) (*os.File, uint64, error) {
	file, err := memoryFile("kvfs-doctor")
	if err != nil {
		return nil, 0, err
	}
	var seed [32]byte
	bytes := make([]byte, size)
	rand.NewChaCha8(seed).Read(bytes)
	if _, err := file.WriteAt(bytes, 0); err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, crc64.Checksum(bytes, trialTable), nil
}

// memoryFile makes a file in memory, as those of blocks are.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readTrial reads a region twice, the first time to connect. It returns the time of the second read.
func readTrial(ctx context.Context, reader rdma.Transport, addr string, remote rdma.RemoteRegion, want uint64) (seconds float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	peer, err := reader.Connect(addr)
	if err != nil {
		return 0, err
	}
	defer closing(peer, &err)
	file, err := memoryFile("kvfs-doctor-copy")
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if err := file.Truncate(remote.Size); err != nil {
		return 0, err
	}
	for range 2 {
		sum := crc64.New(trialTable)
		begin := time.Now()
		if err := peer.Read(ctx, remote, 0, remote.Size, rdma.Dest{File: file, Hash: sum}); err != nil {
			return 0, fmt.Errorf("reading: %w", err)
		}
		if seconds = time.Since(begin).Seconds(); sum.Sum64() != want {
			return 0, errors.New("reading: the received bytes differ from the sent ones")
		}
	}
	return seconds, nil
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "transport\t%s\n", show.OrDash(r.Transport))
	if r.Library != "" {
		fmt.Fprintf(t, "library\t%s\n", r.Library)
	}
	fmt.Fprintf(t, "provider\t%s\n", show.OrDash(r.Provider))
	memlock := "no limit"
	if r.Memlock >= 0 {
		memlock = show.Bytes(r.Memlock)
	}
	fmt.Fprintf(t, "locked memory\t%s\n", memlock)
	fmt.Fprintf(t, "devices\t%d\n", len(r.Devices))
	fmt.Fprintf(t, "GPUs\t%d%s\n", len(r.GPUs), strings.TrimSuffix(" ("+r.GPUError+")", " ()"))
	r.printInventory(t)
	r.printPlan(t)
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Plan != nil {
		for _, note := range r.Plan.Notes {
			fmt.Fprintf(w, "note: %s\n", note)
		}
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", problem)
	}
	if r.Usable {
		fmt.Fprintln(w, "\nRDMA works.")
	}
	return nil
}

func (r *Report) printInventory(w io.Writer) {
	if len(r.Devices) > 0 {
		fmt.Fprintf(w, "\nDEVICE\tPORT\tDRIVER\tSTATE\tLINK\tRATE\tPCI\tNUMA\tNETDEV\tGID\n")
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		gid := "-"
		if d.GIDIndex >= 0 {
			gid = strings.TrimSpace(fmt.Sprintf("%d %s", d.GIDIndex, d.GID))
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", d.Name, d.Port, show.OrDash(d.Driver), show.OrDash(d.State), show.OrDash(d.LinkLayer),
			show.OrDash(d.Rate), show.OrDash(d.PCI), d.NUMA, show.OrDash(d.Netdev), gid)
	}
	if len(r.GPUs) > 0 {
		fmt.Fprintf(w, "\nGPU\tNAME\tPCI\tNUMA\tVISIBLE\n")
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%v\n", g.Index, show.OrDash(g.Name), show.OrDash(g.PCI), g.NUMA, g.Visible)
	}
}

// printPlan writes the planned cards with the results of the reads over them, and the peers.
func (r *Report) printPlan(w io.Writer) {
	if r.Plan != nil {
		fmt.Fprintf(w, "\nPOLICY\tSTRIPED\tRAILS\n%s\t%v\t%s\n", r.Plan.Policy, r.Plan.Striped, show.OrDash(strings.Join(Describe(r.Plan), "; ")))
	}
	if len(r.Rails) > 0 {
		fmt.Fprintf(w, "\nRAIL\tREAD FROM ITSELF\n")
	}
	for _, rail := range r.Rails {
		text := rail.Error
		if text == "" {
			text = fmt.Sprintf("%s in %.2f ms, %.1f GB/s", show.Bytes(rail.Bytes), rail.Seconds*1e3, float64(rail.Bytes)/rail.Seconds/1e9)
		}
		fmt.Fprintf(w, "%s\t%s\n", cmp.Or(rail.Device, "(any)"), text)
	}
	if len(r.Peers) > 0 {
		fmt.Fprintf(w, "\nPEER\tSTATE\tPATH\tREASON\n")
	}
	for _, p := range r.Peers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", show.Text(p.Name), show.OrDash(p.State), show.OrDash(p.Path), show.Text(show.OrDash(p.Reason)))
	}
}

// doctorBind is the address for a configuration without one: settings of RDMA need one.
const doctorBind = "KVFS_BIND=127.0.0.1:0"

// Report tries what a daemon with the settings of src would do. load reads the settings.
func (m *Machine) Report(ctx context.Context, load func(config.Sources) (*config.Config, error), src config.Sources) (*Report, error) {
	cfg, err := load(src)
	if err != nil || cfg.Bind == "" {
		src.Environ = append(src.Environ, doctorBind)
		if again, other := load(src); other == nil {
			cfg, err = again, nil
			cfg.Insecure = true // the bytes of the trial are worthless
		}
	}
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	return m.examine(ctx, cfg, zap.NewNop()), nil
}

// Verdict is the error with which the command ends, or nil.
func (r *Report) Verdict() error {
	if r.Usable {
		return nil
	}
	return exit.With(exit.Runtime, fmt.Errorf("RDMA %s: %s", map[bool]string{false: "cannot be used", true: "is not used with all peers"}[len(r.Peers) > 0], r.Error))
}
