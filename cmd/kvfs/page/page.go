package page

import (
	"crypto/sha256"
	"crypto/subtle"
	_ "embed" // the files of the page
	"encoding/base64"
	"net"
	"net/http"
	"net/netip"
	"strings"
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

// source names an inline script or style in a policy.
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
