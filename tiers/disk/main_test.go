package disk

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/sets"
)

func TestMain(m *testing.M) {
	sets.Select()
	os.Exit(m.Run())
}
