//go:build !(ofi && cgo)

package fabric

import (
	"fmt"
	"os"

	"github.com/kvfs/kvfs/rdma"
)

// errNotBuilt is the error of all calls.
var errNotBuilt = fmt.Errorf("%w: built without libfabric: build with cgo and -tags ofi", ErrUnavailable)

// Probe opens the library, unless it is open, and returns which one it is.
func Probe() (Library, error) { return Library{}, errNotBuilt }

// Open fails: the program was built without libfabric.
func Open(o Options) (*Transport, error) {
	if _, err := o.withDefaults(); err != nil {
		return nil, err
	}
	return nil, errNotBuilt
}

// Transport would implement rdma.Transport; Open returns none.
type Transport struct{}

var _ rdma.Transport = (*Transport)(nil)

// Caps implements rdma.Transport.
func (t *Transport) Caps() rdma.Caps { return rdma.Caps{} }

// Addr implements rdma.Transport.
func (t *Transport) Addr() string { return "" }

// Register implements rdma.Transport.
func (t *Transport) Register(*os.File, int64) (rdma.Region, error) { return nil, errNotBuilt }

// Connect implements rdma.Transport.
func (t *Transport) Connect(string) (rdma.Peer, error) { return nil, errNotBuilt }

// Forget ends the cache's registrations of a file with these numbers.
func (t *Transport) Forget(dev, ino uint64) {}

// Stats returns the counts of the transport.
func (t *Transport) Stats() Stats { return Stats{} }

// Close implements rdma.Transport.
func (t *Transport) Close() error { return nil }
