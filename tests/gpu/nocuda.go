//go:build !(cgo && linux)

package gpu

import "errors"

const registerReadOnly = 0x08

var errNotBuilt = errors.New("built without cgo")

type memory uint64

// device is never opened.
type device struct {
	name                     string
	readOnly, hostPageTables bool
}

func openDevice() (*device, error) { return nil, errNotBuilt }

func (*device) close() error                  { return errNotBuilt }
func (*device) register([]byte, uint) error   { return errNotBuilt }
func (*device) unregister([]byte) error       { return errNotBuilt }
func (*device) allocHost(int) ([]byte, error) { return nil, errNotBuilt }
func (*device) freeHost([]byte) error         { return errNotBuilt }
func (*device) alloc(int) (memory, error)     { return 0, errNotBuilt }
func (*device) free(memory) error             { return errNotBuilt }
func (*device) clear(memory, int) error       { return errNotBuilt }
func (*device) copyTo(memory, []byte) error   { return errNotBuilt }
func (*device) copyFrom([]byte, memory) error { return errNotBuilt }
