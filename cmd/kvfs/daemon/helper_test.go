package daemon

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
)

// The main thread stays with the main goroutine, as in kvfs, whose main.go says why.
func init() { runtime.LockOSThread() }

// TestMain makes this program the watcher that mounts of the tests start.
func TestMain(m *testing.M) {
	if code, is := Watcher(os.Args); is {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// shownStatus returns the status of the mount at dir as people read it.
func shownStatus(dir string) (string, error) {
	text, err := client.Status(dir, mounts.Timeout)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = status.Print(&out, text)
	return out.String(), err
}

// loadConfig returns the configuration that the JSON text describes.
func loadConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Load(config.Sources{Environ: []string{"KVFS_CONFIG_JSON=" + text}})
	must(t, err)
	return cfg
}
