// Package page is the web page of a daemon, which shows its node and what it knows of the cluster. It only reads.
//
//	Handler   the page over HTTP, and its numbers for requests with the token
//	Token     reads the token from its file, or makes it
//	Source    collects the numbers in a daemon
//	Log       keeps the latest warnings and errors of a logger
//
// # Access
//
// The page itself is the same for everyone and has no numbers. The numbers have names of blocks, so they need the token.
// This is so on loopback, too, because other users of the machine reach it. The browser sends the token in the header
// Authorization. A cookie would be worse: browsers add it to requests that other sites cause, and send it to every port of
// the host. The server refuses names that are not its own. So a site cannot reach it by changing the address of the site's
// name (DNS rebinding).
package page

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed" // the files of the page
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

var (
	//go:embed page.html
	frame string
	//go:embed page.css
	css string
	//go:embed page.js
	js string
)

// text is the page in one piece.
var text = []byte(strings.NewReplacer("/*css*/", css, "/*js*/", js).Replace(frame))

// policy lets the page run its own script, ask its own server, and nothing else. Chromium also refuses any HTML that the
// script would make of a text.
var policy = "default-src 'none'; script-src '" + source(js) + "'; style-src '" + source(css) + "'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

func source(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Handler is the page at / and its numbers at /page.json.
type Handler struct {
	Token string        // that a reader of the numbers must know; empty: there is no page
	Host  string        // a name by which the server may be called, beside its addresses and localhost
	Data  func() []byte // the numbers as JSON; nil: not yet
}

// Register adds h to mux.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", h.guard(h.page))
	mux.HandleFunc("GET /page.json", h.guard(h.numbers))
}

// guard sets what every answer needs, and refuses names that are not the server's.
func (h *Handler) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(to http.ResponseWriter, r *http.Request) {
		if h.Token == "" {
			http.Error(to, "no page here: set http_token_file, see docs/operations.md", http.StatusNotFound)
			return
		}
		if !h.owns(r.Host) {
			http.Error(to, "this server has another name: use its IP address, localhost, or the host of the setting http", http.StatusForbidden)
			return
		}
		header := to.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		next(to, r)
	}
}

// owns reports whether a request is for a name of the server. An address is: no site has one as its name.
func (h *Handler) owns(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost") || h.Host != "" && strings.EqualFold(host, h.Host)
}

func (h *Handler) page(to http.ResponseWriter, _ *http.Request) {
	to.Header().Set("Content-Type", "text/html; charset=utf-8")
	to.Write(text)
}

func (h *Handler) numbers(to http.ResponseWriter, r *http.Request) {
	given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	is, want := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(h.Token)) // of one length, to compare in constant time
	if subtle.ConstantTimeCompare(is[:], want[:]) != 1 || !bearer {
		http.Error(to, "the numbers need the token of http_token_file", http.StatusUnauthorized)
		return
	}
	body := h.Data()
	if body == nil {
		http.Error(to, "not ready", http.StatusServiceUnavailable)
		return
	}
	to.Header().Set("Content-Type", "application/json")
	to.Write(body)
}

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

// Limits of Log.
const (
	maxLines = 50
	maxLine  = 1 << 10 // bytes; the rest of a line is cut off
)

// Log keeps the latest warnings and errors of a logger. Methods may be called in parallel.
type Log struct {
	mu    sync.Mutex
	lines []string // newest last
}

// Watch returns a logger like log whose warnings and errors l keeps.
func (l *Log) Watch(log *zap.Logger) *zap.Logger {
	c := zap.NewProductionEncoderConfig()
	c.EncodeTime, c.EncodeLevel, c.ConsoleSeparator = zapcore.RFC3339TimeEncoder, zapcore.CapitalLevelEncoder, " "
	c.CallerKey, c.StacktraceKey = zapcore.OmitKey, zapcore.OmitKey
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(c), zapcore.AddSync(l), zapcore.WarnLevel)
	return log.WithOptions(zap.WrapCore(func(was zapcore.Core) zapcore.Core { return zapcore.NewTee(was, core) }))
}

// Write implements io.Writer: it takes one entry.
func (l *Log) Write(entry []byte) (int, error) {
	line := strings.ToValidUTF8(string(entry[:min(len(entry), maxLine)]), "\uFFFD")
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == maxLines {
		l.lines = slices.Delete(l.lines, 0, 1)
	}
	l.lines = append(l.lines, strings.TrimSpace(line))
	return len(entry), nil
}

// Lines returns what l keeps, newest first.
func (l *Log) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := slices.Clone(l.lines)
	slices.Reverse(lines)
	return lines
}
