package page

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
)

// token matches what Token takes, with the white space around it.
var token = regexp.MustCompile(`^\s*([!-~]{16,256})\s*$`)

// maxFile is the longest file that Token reads, in bytes.
const maxFile = 1 << 10

// Token returns the token in a file, which only its owner and its group may read. It makes an absent file with a random
// token. It returns "" for no name.
func Token(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		if err = create(name); err == nil {
			f, err = os.Open(name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("http_token_file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("http_token_file: %w", err)
	}
	if perm := info.Mode().Perm(); perm&0o037 != 0 || !info.Mode().IsRegular() {
		return "", fmt.Errorf("http_token_file: %s: mode %v: want a file of mode 0600, or 0640", name, info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "", fmt.Errorf("http_token_file: %w", err)
	}
	found := token.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("http_token_file: %s: want one token of 16 to 256 printable characters; without the file, kvfs makes it", name)
	}
	return string(found[1]), nil
}

// create makes a file with a random token, whole or not at all, unless another process is faster.
func create(name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".kvfs-token-*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(rand.Text() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Link(f.Name(), name); errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}
