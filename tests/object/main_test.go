// Package object holds the black-box tests of the tier on object storage: real daemons, a real S3 server, and a proxy before
// it that fails.
package object

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	os.Exit(harness.Main(m))
}
