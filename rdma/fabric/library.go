//go:build ofi && cgo

package fabric

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// libraryVar names the library to open instead of libraryPaths.
const libraryVar = "KVFS_LIBFABRIC"

// libraryPaths are tried in their order. The soname is the same for 1.x and 2.x.
func libraryPaths() []string {
	if path := os.Getenv(libraryVar); path != "" {
		return []string{path}
	}
	return []string{"libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1"}
}

// cacheVar and cacheOff turn off the library's cache of registrations, whatever the user has set.
// The cache does not see that Go unmaps memory. It would let peers read what was mapped there
// before, and write what this node reads over one of its blocks.
const (
	cacheVar = "FI_MR_CACHE_MAX_COUNT"
	cacheOff = "0"
)

// setup returns variables for the library that are used unless the user has set them.
//
// The library's search for GPUs takes GPU memory. The queues are sized for one peer each: with the
// defaults an endpoint of 1.17 takes 68 MiB and 70 ms.
func setup() [][2]string {
	return [][2]string{
		{"FI_HMEM", "system"},
		{"FI_UNIVERSE_SIZE", "8"},
		{"FI_OFI_RXM_MSG_TX_SIZE", "128"},
		{"FI_OFI_RXM_MSG_RX_SIZE", "128"},
	}
}

// loaded is the result of load.
type loaded struct {
	Library
	overridden string // the variables of the environment that were overridden; empty: none
}

// load opens the library once per process. It stays open. Without a library each call fails.
var load = sync.OnceValues(func() (loaded, error) {
	var l loaded
	if was, set := os.LookupEnv(cacheVar); set && was != cacheOff {
		l.overridden = fmt.Sprintf("%s=%s", cacheVar, was)
	}
	os.Setenv(cacheVar, cacheOff)
	for _, kv := range setup() {
		if _, set := os.LookupEnv(kv[0]); !set {
			os.Setenv(kv[0], kv[1])
		}
	}
	var tried []string
	for _, path := range libraryPaths() {
		err := loadLibrary(path)
		if err == nil {
			major, minor := libraryVersion()
			l.Library = Library{Path: path, Version: fmt.Sprintf("%d.%d", major, minor)}
			return l, nil
		}
		tried = append(tried, err.Error())
	}
	hint := "install the package libfabric1 (Debian, Ubuntu), libfabric (Fedora, RHEL) or the EFA installer, or set " + libraryVar
	if os.Getenv(libraryVar) != "" {
		hint = "it is what " + libraryVar + " names"
	}
	return loaded{}, fmt.Errorf("%w: libfabric cannot be opened: %s: %s", ErrUnavailable, strings.Join(tried, "; "), hint)
})

// Probe opens the library, unless it is open, and returns which one it is.
func Probe() (Library, error) {
	l, err := load()
	return l.Library, err
}
