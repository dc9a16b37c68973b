package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// build compiles the kvfs that all tests run into dir, with the flags of args, the arguments of a `go test`. It sets
// KVFS_BIN, which package tests/harness reads, and KVFS_TEST_SUM: the go command must not take the results of another
// binary from its cache.
func (s *stopper) build(dir string, args []string) error {
	file := filepath.Join(dir, "kvfs")
	flags := []string{"build", "-buildvcs=false", "-o", file}
	for _, a := range args {
		if a == "-race" || strings.HasPrefix(a, "-tags=") || strings.HasPrefix(a, "-ldflags=") {
			flags = append(flags, a)
		}
	}
	cmd := exec.Command("go", append(flags, "./cmd/kvfs")...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := s.run(cmd, func() {}); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	binary, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	os.Setenv("KVFS_BIN", file)
	return os.Setenv("KVFS_TEST_SUM", fmt.Sprintf("%x", sha256.Sum256(binary)))
}
