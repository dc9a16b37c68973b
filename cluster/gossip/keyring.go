package gossip

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

const (
	// maxKeyFile and maxKeys bound a keyring. A change of keys needs two.
	maxKeyFile = 64 << 10
	maxKeys    = 64

	// watchEvery is the time between two checks of the file.
	watchEvery = 500 * time.Millisecond

	// keyBytes is the length of new keys: AES-256.
	keyBytes = 32
)

// Keyring holds the keys of the gossip, read from a file. Each line is the base64 of 16, 24 or
// 32 bytes. The first key encrypts, all keys decrypt. Empty lines and lines that begin with #
// are skipped. Other users must not be able to read the file.
//
// To change keys without losing a node: add the new key to the file of every node, then make
// it the first on every node, then remove the old one from every node.
type Keyring struct {
	path string
	log  atomic.Pointer[zap.Logger] // of the first Gossip that uses the keyring
	set  atomic.Pointer[keySet]

	// ring is memberlist's copy. A removed key may stay in it for a while, see install;
	// packets under such a key are refused earlier.
	ring  *memberlist.Keyring
	stamp fileStamp // of the file when Watch last checked it
}

// keySet is one immutable state of a keyring.
type keySet struct {
	keys    [][]byte
	packets [][]byte // derived from each key, for the tags of packets
	streams [][]byte // derived from each key, for the proofs of streams
}

// fileStamp changes when the file changes.
type fileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// LoadKeyring reads a file. It fails on a bad line (the error names its number), on an empty
// file, and on permissions beyond 0600 (0640 if group root owns it).
func LoadKeyring(path string) (*Keyring, error) {
	keys, stamp, err := readKeys(path)
	if err != nil {
		return nil, err
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("gossip: keyring %s: %w", path, err)
	}
	k := &Keyring{path: path, ring: ring, stamp: stamp}
	if err := k.install(keys); err != nil {
		return nil, err
	}
	return k, nil
}

// readKeys reads and checks a file.
func readKeys(path string) ([][]byte, fileStamp, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileStamp{}, fmt.Errorf("gossip: keyring: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fileStamp{}, fmt.Errorf("gossip: keyring: %w", err)
	}
	if err := checkKeyFile(info); err != nil {
		return nil, fileStamp{}, fmt.Errorf("gossip: keyring %s: %w", path, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fileStamp{}, fmt.Errorf("gossip: keyring: %w", err)
	}
	if len(text) > maxKeyFile {
		return nil, fileStamp{}, fmt.Errorf("gossip: keyring %s: larger than %d bytes", path, maxKeyFile)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return nil, fileStamp{}, fmt.Errorf("gossip: keyring %s: %w", path, err)
	}
	return keys, stampOf(info), nil
}

// checkKeyFile fails if other users could read the file.
func checkKeyFile(info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	allowed := os.FileMode(0o600)
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Gid == 0 {
		allowed |= 0o040
	}
	if perm := info.Mode().Perm(); perm&^allowed != 0 {
		return fmt.Errorf("mode %#o lets other users read the keys: must be 0600, or 0640 with group root", perm)
	}
	return nil
}

func stampOf(info os.FileInfo) fileStamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileStamp{}
	}
	return fileStamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

// parseKeys parses the lines of a file. Errors name lines, never their content.
func parseKeys(text []byte) ([][]byte, error) {
	var keys [][]byte
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		for _, k := range keys {
			if bytes.Equal(k, key) {
				return nil, fmt.Errorf("line %d: key %s is there twice", i+1, fingerprint(key))
			}
		}
		keys = append(keys, key)
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("has no key")
	case len(keys) > maxKeys:
		return nil, fmt.Errorf("has %d keys, %d is the limit", len(keys), maxKeys)
	}
	return keys, nil
}

func parseKey(line string) ([]byte, error) {
	key, err := base64.StdEncoding.Strict().DecodeString(line)
	if err != nil {
		return nil, errors.New("not base64")
	}
	switch len(key) {
	case 16, 24, 32:
		return key, nil
	}
	return nil, fmt.Errorf("key of %d bytes: must be 16, 24 or 32", len(key))
}

// fingerprint returns a name of a key that does not reveal it.
func fingerprint(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:4])
}

// install puts keys into use.
func (k *Keyring) install(keys [][]byte) error {
	s := &keySet{keys: keys}
	for _, key := range keys {
		p, err := hkdf.Key(sha256.New, key, nil, "kvfs gossip packet", sha256.Size)
		if err != nil {
			return fmt.Errorf("gossip: keyring %s: %w", k.path, err)
		}
		st, err := hkdf.Key(sha256.New, key, nil, "kvfs gossip stream", sha256.Size)
		if err != nil {
			return fmt.Errorf("gossip: keyring %s: %w", k.path, err)
		}
		s.packets, s.streams = append(s.packets, p), append(s.streams, st)
	}
	for _, key := range keys {
		if err := k.ring.AddKey(key); err != nil {
			return fmt.Errorf("gossip: keyring %s: %w", k.path, err)
		}
	}
	if err := k.ring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("gossip: keyring %s: %w", k.path, err)
	}
	k.set.Store(s)
	return k.prune(s)
}

// prune removes old keys from the end of memberlist's ring. Removing one in the middle would
// make memberlist (v0.7.0) move keys while they are read. Such a key goes as soon as it is the
// last one.
func (k *Keyring) prune(s *keySet) error {
	for {
		ring := k.ring.GetKeys()
		last := ring[len(ring)-1]
		if s.has(last) {
			return nil
		}
		if err := k.ring.RemoveKey(last); err != nil {
			return fmt.Errorf("gossip: keyring %s: %w", k.path, err)
		}
	}
}

func (s *keySet) has(key []byte) bool {
	for _, k := range s.keys {
		if bytes.Equal(k, key) {
			return true
		}
	}
	return false
}

// Watch applies changes of the file within a second, until ctx ends. A bad file is logged and
// changes nothing. Do not run two Watches at a time.
func (k *Keyring) Watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.look()
		}
	}
}

// look applies a change of the file since the last look.
func (k *Keyring) look() {
	var now fileStamp // zero if there is no file
	if info, err := os.Stat(k.path); err == nil {
		now = stampOf(info)
	}
	if now == k.stamp {
		return
	}
	k.stamp = now
	log := k.log.Load()
	if log == nil {
		log = zap.NewNop()
	}
	keys, stamp, err := readKeys(k.path)
	if err == nil {
		err = k.install(keys)
	}
	if err != nil {
		log.Error("keyring not loaded, the old keys stay in use: correct the file", zap.Error(err))
		return
	}
	k.stamp = stamp
	log.Info("keyring loaded", zap.Strings("keys", k.Fingerprints()))
}

// Fingerprints returns a short hash of each key, in the order of the file.
func (k *Keyring) Fingerprints() []string {
	var all []string
	for _, key := range k.set.Load().keys {
		all = append(all, fingerprint(key))
	}
	return all
}

// GenerateKey returns a new key as a line of the file, without the line break.
func GenerateKey() (string, error) {
	key := make([]byte, keyBytes)
	if _, err := rand.Read(key); err != nil {
		return "", fmt.Errorf("gossip: %w", err)
	}
	return base64.StdEncoding.EncodeToString(key), nil
}
