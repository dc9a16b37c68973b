package main

import (
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/sets"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "" {
		sets.Select()
	}
	os.Exit(m.Run())
}
