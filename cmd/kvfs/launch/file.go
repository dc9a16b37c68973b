package launch

import (
	"errors"
	"io"
	"os"
)

// maxFile bounds the configuration file of an engine, in bytes.
const maxFile = 16 << 20

// ReadFile reads the configuration file of an engine, of at most 16 MiB. Its errors do not name the file.
func ReadFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, bare(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = errors.New("too large")
	}
	return text, bare(err)
}

// bare is err without the name of the file.
func bare(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err
	}
	return err
}
