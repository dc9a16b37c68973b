package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// format is part of the key of kept images: count it up when what is in them changes, but
// not the lists.
const format = "1"

// modules are those of the kernel that the guest loads, in an order in which they can be.
var modules = []string{
	"dummy", "crc32_generic", "udp_tunnel", "ip6_udp_tunnel",
	"configfs", "ib_core", "ib_uverbs", "ib_cm", "iw_cm", "rdma_cm", "rdma_ucm", "rdma_rxe",
}

// Names in the directory of an image.
const (
	kernelFile   = "vmlinuz"
	diskFile     = "base.cpio"
	manifestFile = "manifest.json"
)

// Image is a kernel and the part of a RAM disk that does not depend on what runs in it.
type Image struct {
	Dir      string
	Packages []Package         // by name
	Sums     map[string]string // SHA-256 of the files, by name
}

// Lacks returns what this machine has to have for Prepare and Run, and has not; "" if
// nothing.
func Lacks() string {
	if _, err := exec.LookPath(qemu); err != nil {
		return "no " + qemu + ": install qemu-system-x86"
	}
	return lacksApt()
}

// Prepare returns the image that is kept below cache, or makes it: that takes a download of
// 120 MB.
func Prepare(ctx context.Context, cache string) (*Image, error) {
	dir := filepath.Join(cache, suite+"-"+imageKey())
	image, err := open(dir)
	if !errors.Is(err, os.ErrNotExist) {
		return image, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	sweep(cache)
	work, err := os.MkdirTemp(cache, workPrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := makeImage(ctx, filepath.Join(work, "apt"), filepath.Join(work, "image")); err != nil {
		return nil, fmt.Errorf("make the guest's image: %w", err)
	}
	if err := os.Rename(filepath.Join(work, "image"), dir); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err // If it exists, another process was faster.
	}
	return open(dir)
}

const workPrefix = "new-"

// sweep removes the files of processes that were killed while they made an image.
func sweep(cache string) {
	dirs, _ := filepath.Glob(filepath.Join(cache, workPrefix+"*"))
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > time.Hour {
			os.RemoveAll(dir)
		}
	}
}

func imageKey() string {
	sum := sha256.Sum256([]byte(strings.Join(append(append([]string{format, metaKernel}, packages...), modules...), " ")))
	return hex.EncodeToString(sum[:6])
}

// open checks an image. It fails with os.ErrNotExist if there is none.
func open(dir string) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	image := &Image{}
	if err := json.Unmarshal(b, image); err != nil {
		return nil, fmt.Errorf("%s: %w: remove this directory", dir, err)
	}
	image.Dir = dir
	for _, name := range []string{kernelFile, diskFile} {
		sum, err := sumOf(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if sum != image.Sums[name] {
			return nil, fmt.Errorf("%s is not what was made there: remove the directory", filepath.Join(dir, name))
		}
	}
	return image, nil
}

func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// makeImage fetches the packages and writes the image to dir.
func makeImage(ctx context.Context, work, dir string) error {
	a, err := newApt(ctx, work)
	if err != nil {
		return err
	}
	kernel, err := a.kernel(ctx)
	if err != nil {
		return err
	}
	all, err := a.download(ctx, append([]string{kernel}, packages...)...)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	image := &Image{Packages: all, Sums: map[string]string{}}
	if err := writeDisk(ctx, dir, all); err != nil {
		return err
	}
	for _, name := range []string{kernelFile, diskFile} {
		if image.Sums[name], err = sumOf(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(image, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), b, 0o644)
}

// builder collects what of the packages goes into an image.
type builder struct {
	dir      string
	disk     *archive
	names    map[string]bool     // base names of all files and links
	needs    map[string][]string // libraries, and the files that need them
	hasLinux bool
}

func writeDisk(ctx context.Context, dir string, all []Package) error {
	f, err := os.Create(filepath.Join(dir, diskFile))
	if err != nil {
		return err
	}
	defer f.Close()
	b := &builder{dir: dir, disk: newArchive(f), names: map[string]bool{}, needs: map[string][]string{}}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := b.disk.link(name, "usr/"+name); err != nil {
			return err
		}
	}
	for _, p := range all {
		if err := b.unpack(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	if err := b.complete(); err != nil {
		return err
	}
	if err := b.disk.close(); err != nil {
		return err
	}
	return f.Close()
}

// complete shows that nothing lacks that what is there needs.
func (b *builder) complete() error {
	var lacks []string
	for _, m := range modules {
		if !b.names[m+".ko.xz"] {
			lacks = append(lacks, "module "+m)
		}
	}
	for lib, by := range b.needs {
		if !b.names[lib] {
			lacks = append(lacks, fmt.Sprintf("%s, for %s", lib, strings.Join(by, " ")))
		}
	}
	if !b.hasLinux {
		lacks = append(lacks, "a kernel")
	}
	if len(lacks) > 0 {
		slices.Sort(lacks)
		return fmt.Errorf("the packages of %s lack: %s", suite, strings.Join(lacks, "; "))
	}
	return nil
}

// unpack takes from a package what the guest needs.
func (b *builder) unpack(ctx context.Context, p Package) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", p.file)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = b.files(p.Name, tar.NewReader(out))
	if err != nil {
		cancel()
	} else {
		_, err = io.Copy(io.Discard, out) // the padding after the last entry
	}
	if end := cmd.Wait(); err == nil && end != nil {
		err = fmt.Errorf("dpkg-deb: %w\n%s", end, errs.String())
	}
	return err
}

func (b *builder) files(pkg string, r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch {
		case strings.HasPrefix(name, "boot/vmlinuz-") && h.Typeflag == tar.TypeReg:
			err = b.linux(r)
		case strings.HasPrefix(pkg, "linux-image-"):
			base, isModule := strings.CutSuffix(path.Base(name), ".ko.xz")
			if base = strings.ReplaceAll(base, "-", "_"); isModule && slices.Contains(modules, base) {
				err = b.file("modules/"+base+".ko.xz", h, r)
			}
		case taken(pkg, name):
			err = b.file(name, h, r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// taken says whether the guest needs a file of a package besides the kernel's.
func taken(pkg, name string) bool {
	switch pkg {
	case "iproute2":
		return name == "usr/bin/rdma"
	case "busybox-static":
		return name == "usr/bin/busybox"
	}
	return strings.HasPrefix(name, "usr/lib") || strings.HasPrefix(name, "etc/libibverbs.d/")
}

func (b *builder) linux(r io.Reader) error {
	f, err := os.Create(filepath.Join(b.dir, kernelFile))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	b.hasLinux = true
	return f.Close()
}

// file writes a file or link to the disk; what else there is in packages has no use there.
func (b *builder) file(name string, h *tar.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeSymlink:
		b.names[path.Base(name)] = true
		return b.disk.link(name, h.Linkname)
	case tar.TypeReg:
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		b.names[path.Base(name)] = true
		b.note(name, content)
		return b.disk.add(name, typeRegular|uint32(h.Mode)&0o777, h.Size, bytes.NewReader(content))
	}
	return nil
}

// note remembers which libraries a program or library needs.
func (b *builder) note(name string, content []byte) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return // no program
	}
	libs, _ := f.ImportedLibraries() // none in what is linked statically
	for _, lib := range libs {
		b.needs[lib] = append(b.needs[lib], path.Base(name))
	}
}
