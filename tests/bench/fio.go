package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"syscall"
)

const fioName = "fio"

// fio runs the program fio over one file, the baseline of the disk tier: io_uring with O_DIRECT, a pattern as of --rw,
// some requests in flight. It returns GB/s.
func fio(ctx context.Context, file, pattern string, blockBytes, totalBytes, depth int, flags ...string) float64 {
	cmd := exec.CommandContext(ctx, fioName, append([]string{
		"--name=bench", "--filename=" + file, "--rw=" + pattern, fmt.Sprintf("--bs=%d", blockBytes), fmt.Sprintf("--size=%d", totalBytes),
		"--ioengine=io_uring", "--direct=1", fmt.Sprintf("--iodepth=%d", depth), "--randrepeat=0", "--output-format=json",
	}, flags...)...)
	cmd.Env = plainEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		must(fmt.Errorf("fio --rw=%s: %w: %s%s", pattern, err, complaint.Bytes(), out))
	}
	return parseFio(out, totalBytes) / 1e9
}

// layOut writes a file once, so that no later read finds unwritten extents.
func layOut(ctx context.Context, file string, bytes int) {
	fio(ctx, file, "write", mib, bytes, coldReaders, "--refill_buffers", "--end_fsync=1")
}

// parseFio returns the bytes a second in the output. It fails if fio has not moved all bytes.
func parseFio(output []byte, totalBytes int) float64 {
	type direction struct {
		IOBytes int     `json:"io_bytes"`
		BWBytes float64 `json:"bw_bytes"` // a second
	}
	var doc struct {
		Jobs []struct {
			Error       int
			Read, Write direction
		}
	}
	start := max(bytes.IndexByte(output, '{'), 0) // notes may stand before the document
	if err := json.NewDecoder(bytes.NewReader(output[start:])).Decode(&doc); err != nil || len(doc.Jobs) != 1 || doc.Jobs[0].Error != 0 {
		must(fmt.Errorf("fio: %w: %s", err, output))
	}
	moved := doc.Jobs[0].Read
	if moved.IOBytes == 0 {
		moved = doc.Jobs[0].Write
	}
	if moved.IOBytes != totalBytes || moved.BWBytes <= 0 {
		must(fmt.Errorf("fio: moved %d bytes at %.0f a second, want %d bytes", moved.IOBytes, moved.BWBytes, totalBytes))
	}
	return moved.BWBytes
}
