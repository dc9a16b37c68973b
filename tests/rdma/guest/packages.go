package guest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suite is the release of Debian that the guest is made of: its libfabric is the first
// whose provider verbs can be used.
const suite = "trixie"

// keyring holds the keys that Debian's releases are signed with.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// metaKernel is the package that depends on the newest kernel.
const metaKernel = "linux-image-amd64"

// packages lists all that is in the guest besides the kernel, with what they need: a library
// without its package is an error when the image is made.
var packages = []string{
	"busybox-static",
	"iproute2", // rdma, which makes the device; the libraries of it are the next two
	"libcap2", "libmnl0",
	"libc6",
	"libfabric1", "libpsm2-2", "libnuma1",
	"libibverbs1", "ibverbs-providers", "librdmacm1t64", "libnl-3-200", "libnl-route-3-200",
}

// Package is one of Debian's.
type Package struct {
	Name, Version, SHA256 string

	file string
}

// apt is Debian's package manager with directories of its own.
type apt struct {
	dir string
}

// lacksApt returns what the machine has to have for apt to work, or "".
func lacksApt() string {
	for _, name := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(name); err != nil {
			return "no " + name + ": the guest is made of Debian's packages by Debian's tools"
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		return "no " + keyring + ": install debian-archive-keyring"
	}
	return ""
}

// newApt makes the directories and fetches the list of packages from the mirror.
func newApt(ctx context.Context, dir string) (*apt, error) {
	a := &apt{dir: dir}
	for _, d := range []string{"lists/partial", "archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	source := fmt.Sprintf("deb [arch=amd64 signed-by=%s] %s %s main\n", keyring, mirror(ctx), suite)
	for name, content := range map[string]string{"sources.list": source, "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := a.run(ctx, "apt-get", "-qq", "--error-on=any", "update"); err != nil {
		return nil, err
	}
	return a, nil
}

// mirror returns where the machine has its own Debian packages from, or else Debian's.
func mirror(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").Output()
	if err == nil {
		for uri := range strings.FieldsSeq(string(out)) {
			if uri = strings.TrimSuffix(uri, "/"); strings.HasSuffix(uri, "/debian") {
				return uri
			}
		}
	}
	return "http://deb.debian.org/debian"
}

// run runs a command of apt and returns what it printed.
func (a *apt) run(ctx context.Context, name string, args ...string) (string, error) {
	options := []string{
		"-o", "Dir::Etc::SourceList=" + filepath.Join(a.dir, "sources.list"),
		"-o", "Dir::Etc::SourceParts=-",
		"-o", "Dir::Etc::Preferences=-",
		"-o", "Dir::Etc::PreferencesParts=-",
		"-o", "Dir::State::Lists=" + filepath.Join(a.dir, "lists"),
		"-o", "Dir::State::Status=" + filepath.Join(a.dir, "status"),
		"-o", "Dir::Cache=" + a.dir,
		"-o", "APT::Architecture=amd64",
		"-o", "APT::Architectures=amd64",
		"-o", "APT::Sandbox::User=root",
		"-o", "APT::Update::Post-Invoke-Success=",
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::AllowInsecureRepositories=false",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"-o", "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
		"-o", "Acquire::Retries=3",
	}
	cmd := exec.CommandContext(ctx, name, append(options, args...)...)
	cmd.Dir = filepath.Join(a.dir, "debs")
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("%s %q: %w", name, args, err)
	}
	return string(out), nil
}

// kernel returns the name of the package of the newest kernel.
func (a *apt) kernel(ctx context.Context) (string, error) {
	out, err := a.run(ctx, "apt-cache", "depends", "--important", metaKernel)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			return "linux-image-" + name, nil
		}
	}
	return "", fmt.Errorf("%s of %s depends on no kernel:\n%s", metaKernel, suite, out)
}

// download fetches packages. apt checks them against the signed list.
func (a *apt) download(ctx context.Context, names ...string) ([]Package, error) {
	out, err := a.run(ctx, "apt-get", append([]string{"-qq", "download", "--print-uris"}, names...)...)
	if err != nil {
		return nil, err
	}
	var all []Package
	for line := range strings.Lines(out) {
		// 'http://deb.debian.org/….deb' libnl-3-200_3.7.0-2_amd64.deb 59432 SHA256:0c…
		fields := strings.Fields(line)
		if len(fields) != 4 || !strings.HasPrefix(fields[3], "SHA256:") {
			return nil, fmt.Errorf("apt-get download --print-uris: what is %q?", line)
		}
		parts := strings.Split(fields[1], "_")
		version, err := url.PathUnescape(parts[min(1, len(parts)-1)])
		if err != nil {
			return nil, err
		}
		all = append(all, Package{
			Name: parts[0], Version: version, SHA256: strings.TrimPrefix(fields[3], "SHA256:"),
			file: filepath.Join(a.dir, "debs", fields[1]),
		})
	}
	if len(all) != len(names) {
		return nil, fmt.Errorf("%d packages offered of %q", len(all), names)
	}
	_, err = a.run(ctx, "apt-get", append([]string{"-qq", "download"}, names...)...)
	return all, err
}
