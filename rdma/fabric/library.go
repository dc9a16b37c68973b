//go:build ofi && cgo

package fabric

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// libraryVar names the library to open in place of those of libraryPaths.
const libraryVar = "KVFS_LIBFABRIC"

// libraryPaths are tried in their order. The soname is the same for 1.x and 2.x.
func libraryPaths() []string {
	if path := os.Getenv(libraryVar); path != "" {
		return []string{path}
	}
	return []string{"libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1"}
}

// setup is what the library reads from the environment, unless the user has set it.
//
// The registration cache of the library does not see that Go unmaps memory, and then hands
// out what was mapped there before. The look for GPUs takes memory of theirs. The queues are
// sized for one peer each: with the defaults an endpoint of 1.17 takes 68 MiB and 70 ms.
func setup() [][2]string {
	return [][2]string{
		{"FI_MR_CACHE_MAX_COUNT", "0"},
		{"FI_HMEM", "system"},
		{"FI_UNIVERSE_SIZE", "8"},
		{"FI_OFI_RXM_MSG_TX_SIZE", "128"},
		{"FI_OFI_RXM_MSG_RX_SIZE", "128"},
	}
}

// load opens the library once per process; it stays. Without one it says so each time.
var load = sync.OnceValues(func() (Library, error) {
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
			return Library{Path: path, Version: fmt.Sprintf("%d.%d", major, minor)}, nil
		}
		tried = append(tried, err.Error())
	}
	hint := "install the package libfabric1 (Debian, Ubuntu), libfabric (Fedora, RHEL) or the EFA installer, or set " + libraryVar
	if os.Getenv(libraryVar) != "" {
		hint = "it is what " + libraryVar + " names"
	}
	return Library{}, fmt.Errorf("%w: libfabric cannot be opened: %s: %s", ErrUnavailable, strings.Join(tried, "; "), hint)
})

// Probe opens the library, if that has not been done, and says which one it is.
func Probe() (Library, error) { return load() }
