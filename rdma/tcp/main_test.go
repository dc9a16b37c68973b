package tcp

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/sets"
)

func TestMain(m *testing.M) {
	sets.Select()
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
