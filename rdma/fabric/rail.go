//go:build ofi && cgo

package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"go.uber.org/zap"
)

// messageLimit is the longest message. Progress shows when messages are over.
const messageLimit = 4 << 20

// servePoll is the longest sleep, in milliseconds, of the endpoint that peers read from. It wakes
// earlier when there is something to do.
const servePoll = 1000

// lookupTime limits the look-up of this host's name that explains why there is no device.
const lookupTime = 2 * time.Second

// rail is one device, and the endpoint on it that peers read from.
type rail struct {
	index  int
	name   string
	info   *info
	domain *domain
	serve  queue
	addr   []byte // of serve
	open   struct{ domain, serve bool }

	reading atomic.Int64 // bytes that reads by this rail have under way, of all peers

	stop   chan struct{} // closed to end the serving
	served chan struct{} // closed when it has ended
}

// openRail opens a device.
func openRail(o Options, index int, device string) (*rail, error) {
	i, err := findDevice(o, device)
	if err != nil {
		return nil, err
	}
	r := &rail{index: index, name: device, info: i, stop: make(chan struct{}), served: make(chan struct{})}
	if r.name == "" {
		r.name = i.domain
	}
	if r.domain, err = openDomain(i, o.Provider == TCP); err != nil {
		r.close()
		return nil, fmt.Errorf("%w: %s: open the device: %w", ErrUnavailable, r.name, err)
	}
	r.open.domain = true
	if r.serve, err = openQueue(r.domain, i, nil, o.pollOnly, false); err != nil {
		r.close()
		if o.Host != "" {
			err = fmt.Errorf("%w (is %s its address?)", err, o.Host)
		}
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, r.name, whyNoMemory("open an endpoint", err))
	}
	r.open.serve = true
	if r.addr, err = r.serve.name(); err != nil {
		close(r.served)
		r.close()
		return nil, fmt.Errorf("%w: %s: address of the endpoint: %w", ErrUnavailable, r.name, err)
	}
	go r.run(o.Logger) // ends with stop, which close closes and waits for
	return r, nil
}

// run lets the provider serve peers, as far as the card does not do that alone.
func (r *rail) run(log *zap.Logger) {
	defer close(r.served)
	var room [batch]done
	failed := false
	for {
		select {
		case <-r.stop:
			return
		default:
		}
		over, err := r.serve.poll(room[:0], servePoll)
		for _, d := range over {
			log.Debug("a peer's connection ended", zap.String("rail", r.name), zap.Error(d.err))
		}
		if err == nil {
			continue
		}
		if !failed {
			log.Error("peers cannot read by this rail", zap.String("rail", r.name), zap.Error(err))
			failed = true
		}
		r.serve.pause(servePoll)
	}
}

// close closes everything that is open. All registrations must be closed before their domain.
func (r *rail) close() error {
	errs := []error{r.closeServing()}
	if r.open.domain {
		errs = append(errs, r.domain.close())
	}
	r.info.free()
	return errors.Join(errs...)
}

// closeServing closes the endpoint that peers read from.
func (r *rail) closeServing() error {
	if !r.open.serve {
		return nil
	}
	r.open.serve = false
	close(r.stop)
	r.serve.wake()
	<-r.served
	return r.serve.close()
}

// spotOf returns where peers find the memory mapped at p.
func (r *rail) spotOf(p []byte, m memory) spot {
	s := spot{key: m.key}
	if r.info.virtual {
		s.base = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p))))
	}
	return s
}

// findDevice asks the provider for a device, or says why there is none.
func findDevice(o Options, device string) (*info, error) {
	for _, provider := range providerNames(o.Provider) {
		i, err := find(o, provider, device)
		if !errors.Is(err, errNoProvider) {
			return i, err
		}
	}
	return nil, fmt.Errorf("%w: libfabric has no device for the provider %s%s", ErrUnavailable, o.Provider, whatItNeeds(o))
}

// providerNames returns the library's names for a provider. Sockets are net in the versions whose
// tcp crashes when an endpoint is closed while bytes flow in. In those versions tcp goes through
// the utility ofi_rxm, which fails when an operation is reported twice.
func providerNames(provider string) []string {
	major, minor := libraryVersion()
	if provider == TCP && major == 1 && minor < 18 {
		return []string{"net", TCP}
	}
	return []string{provider}
}

// errNoProvider: there is no provider of that name.
var errNoProvider = errors.New("no such provider")

// find is findDevice for one name of the provider.
func find(o Options, provider, device string) (*info, error) {
	name := device
	if provider == EFA && device != "" {
		name += "-rdm" // the kind of endpoint is a part of the name
	}
	manual := o.Provider == TCP
	i, _, err := getInfo(provider, name, o.Host, manual)
	if errors.Is(err, codeNoData) && o.Host != "" && len(o.Devices) > 1 {
		i, _, err = getInfo(provider, name, "", manual) // the address is that of another rail
	}
	if err == nil {
		return i, nil
	}
	if !errors.Is(err, codeNoData) {
		return nil, fmt.Errorf("%w: provider %s: %w", ErrUnavailable, provider, err)
	}
	other, names, anyErr := getInfo(provider, "", "", manual)
	if anyErr != nil {
		return nil, errNoProvider
	}
	other.free()
	if o.Host != "" {
		if i, _, err := getInfo(provider, name, "", manual); err == nil {
			i.free()
			return nil, fmt.Errorf("%w: no device of the provider %s has the address %s", ErrUnavailable, o.Provider, o.Host)
		}
	}
	return nil, fmt.Errorf("%w: the provider %s has no device %s: it has %s", ErrUnavailable, o.Provider, device, names)
}

// whatItNeeds says what a provider needs to find its devices.
func whatItNeeds(o Options) string {
	switch o.Provider {
	case Verbs:
		return ": it needs an active port with an IP address, the package ibverbs-providers, and /dev/infiniband" + ownName(o, os.Hostname)
	case EFA:
		return ": it needs an instance with EFA and the EFA installer's driver"
	}
	return ""
}

// ownName says that the name of this host does not resolve. The provider verbs asks for it unless
// it is given an address. The result is empty if the name resolves.
func ownName(o Options, hostname func() (string, error)) string {
	name, err := hostname()
	if o.Host != "" || err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, name); err == nil {
		return ""
	}
	return fmt.Sprintf("; the name of this host, %s, does not resolve, which it asks for: put it into /etc/hosts, or give the address that peers reach it at", name)
}
