package llama

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	//go:embed package.json
	packageJSON []byte
	//go:embed package-lock.json
	packageLock []byte
)

// oldestNode is the oldest major version of Node that the engine supports.
const oldestNode = 20

// installTimeout bounds the download of about 40 MB.
const installTimeout = 5 * time.Minute

// ErrUnavailable marks errors of a machine that lacks something for the engine. Other errors are faults.
var ErrUnavailable = errors.New("engine unavailable")

// findNode returns the path of a Node that can run the engine.
func findNode(ctx context.Context) (string, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("%w: no binary for %s/%s", ErrUnavailable, runtime.GOOS, runtime.GOARCH)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return "", fmt.Errorf("%w: Node %d or newer is not installed", ErrUnavailable, oldestNode)
	}
	out, err := exec.CommandContext(ctx, node, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", node, err)
	}
	version := strings.TrimSpace(string(out))
	major, err := nodeMajor(version)
	if err != nil {
		return "", err
	}
	if major < oldestNode {
		return "", fmt.Errorf("%w: Node is %s, need %d or newer", ErrUnavailable, version, oldestNode)
	}
	return node, nil
}

// nodeMajor returns 20 for "v20.11.0".
func nodeMajor(version string) (int, error) {
	first, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		return 0, fmt.Errorf("version of Node %q: %w", version, err)
	}
	return major, nil
}

// installOnce is install once per process, so that a registry out of reach is
// waited for only once.
var installOnce = sync.OnceValues(install)

// install returns a node_modules directory with the packages of package-lock.json.
// It is shared by all processes of the user: the first one downloads it, under
// a file lock, and the rest use it as it is.
func install() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("install engine: %w", err)
	}
	base := filepath.Join(cache, "kvfs-test")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("install engine: %w", err)
	}
	sum := sha256.Sum256(slices.Concat(packageJSON, packageLock))
	dir := filepath.Join(base, "llama-"+hex.EncodeToString(sum[:6]))

	unlock, err := lockFile(filepath.Join(base, "llama.lock"))
	if err != nil {
		return "", fmt.Errorf("install engine: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return filepath.Join(dir, "node_modules"), nil
	}
	if err := installTo(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "node_modules"), nil
}

// installTo creates dir with everything in it, or not at all.
func installTo(dir string) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return fmt.Errorf("%w: npm is not installed", ErrUnavailable)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".tmp-")
	if err != nil {
		return fmt.Errorf("install engine: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, "package.json"), packageJSON, 0o644); err != nil {
		return fmt.Errorf("install engine: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "package-lock.json"), packageLock, 0o644); err != nil {
		return fmt.Errorf("install engine: %w", err)
	}
	if err := npmInstall(npm, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("install engine: %w", err)
	}
	return nil
}

// npmInstall runs npm in dir. No package's scripts run, and of the engine's
// binaries only the one that package.json names is downloaded.
//
// It is not "npm ci", which refuses a lock file that lacks an optional package
// even when those are omitted; "npm install" keeps to the versions and
// checksums of the lock file all the same.
func npmInstall(npm, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "install", "--omit=optional", "--ignore-scripts",
		"--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error",
		"--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000")
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if code := npmErrorCode(out); slices.Contains(npmUnavailable, code) {
		return fmt.Errorf("%w: npm cannot install it here: %s", ErrUnavailable, code)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: npm has not installed it after %v", ErrUnavailable, installTimeout)
	}
	out = bytes.TrimSpace(out)
	return fmt.Errorf("npm install: %w\n%s", err, out[:min(len(out), 2000)])
}

// npmUnavailable lists the codes with which npm says that the registry cannot
// be reached or that the binary is not for this platform. A checksum that does
// not match, for one, is not among them.
var npmUnavailable = []string{
	"EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EIDLETIMEOUT", "ENETUNREACH",
	"ENOTCACHED", "ENOTFOUND", "ERR_SOCKET_TIMEOUT", "ETIMEDOUT",
	"E429", "E500", "E502", "E503", "E504", // Of the registry, for now.
	"EBADPLATFORM",
}

var npmCode = regexp.MustCompile(`(?m)^npm (?:error|ERR!) code (\w+)`)

// npmErrorCode returns the code that npm printed, or "".
func npmErrorCode(out []byte) string {
	m := npmCode.FindSubmatch(out)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// lockFile waits until it holds an exclusive lock on the file at path, which it
// creates. The lock ends with unlock or with the process.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
