package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const fioName = "fio"

// fio runs the program fio, the baseline of the disk tier.
type fio struct {
	path    string
	version string
	missing string // why there are no figures of fio; empty: there are
}

// fioJob is one run over one file.
type fioJob struct {
	file       string
	pattern    string // as of --rw
	blockBytes int
	totalBytes int
	depth      int // requests in flight; 0: as coldReaders
	flags      []string
}

// findFio looks for fio and tests it in dir, because io_uring or O_DIRECT may be denied.
func findFio(ctx context.Context, dir string) *fio {
	path, err := exec.LookPath(fioName)
	if err != nil {
		return &fio{missing: "fio is not installed (Debian, Ubuntu: apt-get install fio)"}
	}
	f := &fio{path: path}
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		f.missing = fmt.Sprintf("fio --version: %v", err)
		return f
	}
	f.version = strings.TrimSpace(string(version))
	probe := filepath.Join(dir, "probe")
	defer os.Remove(probe)
	if _, err := f.run(ctx, fioJob{file: probe, pattern: "write", blockBytes: 64 * kib, totalBytes: mib}); err != nil {
		f.missing = fmt.Sprintf("%s does not run here: %v", f.version, err)
	}
	return f
}

// skipped returns the cells for ratio, goal and verdict where fio is missing.
func (f *fio) skipped(goal float64) []string {
	verdict := "skipped: install fio"
	if f.path != "" {
		verdict = "skipped: fio fails"
	}
	text := ""
	if goal > 0 {
		text = fmt.Sprintf("%.2f", goal)
	}
	return []string{"n/a", text, verdict}
}

// run returns the bandwidth of a job in bytes a second.
func (f *fio) run(ctx context.Context, job fioJob) (float64, error) {
	cmd := exec.CommandContext(ctx, f.path, job.args()...)
	cmd.Env = plainEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return 0, fmt.Errorf("fio --rw=%s: %w: %s", job.pattern, err, firstLine(stderr.String(), stdout.String()))
	}
	return parseFio(stdout.Bytes(), job.totalBytes)
}

func (j fioJob) args() []string {
	return append([]string{
		"--name=bench", "--filename=" + j.file, "--rw=" + j.pattern,
		fmt.Sprintf("--bs=%d", j.blockBytes), fmt.Sprintf("--size=%d", j.totalBytes),
		"--ioengine=io_uring", "--direct=1", fmt.Sprintf("--iodepth=%d", cmp.Or(j.depth, coldReaders)), "--randrepeat=0",
		"--output-format=json",
	}, j.flags...)
}

// layOut writes a file once, so that no later read finds unwritten extents.
func (f *fio) layOut(ctx context.Context, file string, bytes int) error {
	_, err := f.run(ctx, fioJob{file: file, pattern: "write", blockBytes: mib, totalBytes: bytes,
		flags: []string{"--refill_buffers", "--end_fsync=1"}})
	return err
}

// parseFio returns the bandwidth in the output, if fio moved all bytes.
func parseFio(output []byte, totalBytes int) (float64, error) {
	// Notes may stand before the document.
	start := bytes.IndexByte(output, '{')
	if start < 0 {
		return 0, fmt.Errorf("fio: no JSON: %s", firstLine(string(output)))
	}
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
	if err := json.NewDecoder(bytes.NewReader(output[start:])).Decode(&doc); err != nil {
		return 0, fmt.Errorf("fio: %w", err)
	}
	if len(doc.Jobs) != 1 {
		return 0, fmt.Errorf("fio: %d jobs, want 1", len(doc.Jobs))
	}
	job := doc.Jobs[0]
	if job.Error != 0 {
		return 0, fmt.Errorf("fio: %w", syscall.Errno(job.Error))
	}
	moved := job.Read
	if moved.IOBytes == 0 {
		moved = job.Write
	}
	if moved.IOBytes != totalBytes || moved.BWBytes <= 0 {
		return 0, fmt.Errorf("fio: moved %d bytes at %.0f a second, want %d bytes", moved.IOBytes, moved.BWBytes, totalBytes)
	}
	return moved.BWBytes, nil
}

// firstLine returns the first line that is not empty.
func firstLine(texts ...string) string {
	for _, text := range texts {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				return line
			}
		}
	}
	return ""
}
