package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// AddKey appends a key to a file, so that it decrypts. key is a line of the file. If the file
// has the key, AddKey does nothing.
//
// AddKey, UseKey and RemoveKey replace the file atomically and keep its mode, owner and
// comments. They may run at the same time, in several processes.
func AddKey(path, key string) error {
	key = strings.TrimSpace(key)
	raw, err := parseKey(key)
	if err != nil {
		return fmt.Errorf("gossip: key: %w", err)
	}
	return edit(path, func(lines []string) ([]string, error) {
		if find(lines, fingerprint(raw)) >= 0 {
			return lines, nil
		}
		if countKeys(lines) >= maxKeys {
			return nil, fmt.Errorf("has %d keys already, remove some", maxKeys)
		}
		return append(lines, key), nil
	})
}

// UseKey moves a key of a file to the first place, so that it encrypts. key is a line or a
// fingerprint.
func UseKey(path, key string) error {
	return edit(path, func(lines []string) ([]string, error) {
		i := find(lines, key)
		if i < 0 {
			return nil, errors.New("has no such key")
		}
		first := slices.IndexFunc(lines, isKey)
		if i == first {
			return lines, nil
		}
		line := lines[i]
		return slices.Insert(slices.Delete(lines, i, i+1), first, line), nil
	})
}

// RemoveKey removes a key from a file. It fails for the first key. key is a line or a
// fingerprint.
func RemoveKey(path, key string) error {
	return edit(path, func(lines []string) ([]string, error) {
		i := find(lines, key)
		switch {
		case i < 0:
			return nil, errors.New("has no such key")
		case i == slices.IndexFunc(lines, isKey):
			return nil, errors.New("the key encrypts: use another key first")
		}
		return slices.Delete(lines, i, i+1), nil
	})
}

// CreateKeyring creates a file with one new key, which only its owner can read. It fails if
// the path exists.
func CreateKeyring(path string) error {
	key, err := GenerateKey()
	if err != nil {
		return err
	}
	tmp, err := writeTemp(path, []byte(key+"\n"), 0o600, -1, -1)
	if err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	// A link, unlike a rename, does not replace an existing file.
	err = os.Link(tmp, path)
	if err := errors.Join(err, os.Remove(tmp)); err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	return syncDir(path)
}

func isKey(line string) bool {
	line = strings.TrimSpace(line)
	return line != "" && line[0] != '#'
}

func countKeys(lines []string) int {
	n := 0
	for _, l := range lines {
		if isKey(l) {
			n++
		}
	}
	return n
}

// find returns the index of a key, given as a line or a fingerprint; -1 if it is absent.
func find(lines []string, key string) int {
	key = strings.TrimSpace(key)
	if raw, err := parseKey(key); err == nil {
		key = fingerprint(raw)
	}
	return slices.IndexFunc(lines, func(line string) bool {
		raw, err := parseKey(strings.TrimSpace(line))
		return err == nil && fingerprint(raw) == strings.ToLower(key)
	})
}

// edit replaces a file by the lines that change returns.
func edit(path string, change func(lines []string) ([]string, error)) error {
	real, err := filepath.EvalSymlinks(path) // a rename would replace a symbolic link
	if err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	f, err := lockFile(real)
	if err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	defer f.Close() // releases the lock
	if _, _, err := readKeys(real); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	text, err := os.ReadFile(real)
	if err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	lines, err := change(strings.Split(strings.TrimRight(string(text), "\n"), "\n"))
	if err != nil {
		return fmt.Errorf("gossip: keyring %s: %w", path, err)
	}
	after := []byte(strings.Join(lines, "\n") + "\n")
	if bytes.Equal(after, text) {
		return nil
	}
	if len(after) > maxKeyFile {
		return fmt.Errorf("gossip: keyring %s: would be larger than %d bytes", path, maxKeyFile)
	}
	st := info.Sys().(*syscall.Stat_t)
	tmp, err := writeTemp(real, after, info.Mode().Perm(), int(st.Uid), int(st.Gid))
	if err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	if err := os.Rename(tmp, real); err != nil {
		return fmt.Errorf("gossip: keyring: %w", errors.Join(err, os.Remove(tmp)))
	}
	return syncDir(real)
}

// lockFile opens a file and waits for its lock. Another process may replace the file
// meanwhile; lockFile then locks the new one.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		if err := lockWhole(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		have, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if now, err := os.Stat(path); err == nil && os.SameFile(have, now) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

func lockWhole(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// writeTemp writes a durable file next to path and returns its name. With uid -1 it leaves the
// owner as it is.
func writeTemp(path string, text []byte, perm os.FileMode, uid, gid int) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(text); err != nil {
		return "", err
	}
	if st, err := f.Stat(); err != nil {
		return "", err
	} else if own := st.Sys().(*syscall.Stat_t); uid >= 0 && (int(own.Uid) != uid || int(own.Gid) != gid) {
		if err := f.Chown(uid, gid); err != nil {
			return "", err
		}
	}
	if err := f.Chmod(perm); err != nil {
		return "", err
	}
	return f.Name(), f.Sync()
}

// syncDir makes the name of a file durable.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("gossip: keyring: %w", err)
	}
	return nil
}
