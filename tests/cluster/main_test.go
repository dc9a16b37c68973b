// Package cluster holds the black-box tests of peers: real daemons in network namespaces that share files, lose each
// other, die, stop and come back.
//
// Every test also shows two things. A read returns the bytes that a writer committed under that name, whole, or there
// is no such file. No operation takes longer than its deadline and a second.
//
// The tests need root, ip and nft, and are skipped without.
package cluster

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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
