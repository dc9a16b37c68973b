package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/outcome"
)

const secret = "correct-horse-battery"

// TestAccess shows who gets the page and who its numbers: only the token opens these, and only under a name of the server.
func TestAccess(t *testing.T) {
	for _, c := range []struct {
		name, token, host, method, path, authorization string
		code                                           int
		want                                           string
	}{
		{"page", secret, "127.0.0.1:9100", "GET", "/", "", 200, "<!DOCTYPE html>"},
		{"numbers", secret, "127.0.0.1:9100", "GET", "/page.json", "Bearer " + secret, 200, `{"n":1}`},
		{"IPv6", secret, "[::1]:9100", "GET", "/page.json", "Bearer " + secret, 200, `{"n":1}`},
		{"IPv6 without port", secret, "[::1]", "GET", "/", "", 200, "<!"},
		{"localhost", secret, "LocalHost:1234", "GET", "/page.json", "Bearer " + secret, 200, `{"n":1}`},
		{"its name", secret, "node-1:9100", "GET", "/page.json", "Bearer " + secret, 200, `{"n":1}`},
		{"no token", secret, "127.0.0.1:9100", "GET", "/page.json", "", 401, "the numbers need the token"},
		{"wrong token", secret, "127.0.0.1:9100", "GET", "/page.json", "Bearer " + secret + "x", 401, "the numbers need"},
		{"part of the token", secret, "127.0.0.1:9100", "GET", "/page.json", "Bearer " + secret[:8], 401, "the numbers need"},
		{"no scheme", secret, "127.0.0.1:9100", "GET", "/page.json", secret, 401, "the numbers need"},
		{"token in the address", secret, "127.0.0.1:9100", "GET", "/page.json?token=" + secret, "", 401, "the numbers need"},
		{"another name", secret, "evil.example:9100", "GET", "/", "", 403, "this server has another name"},
		{"another name with the token", secret, "evil.example", "GET", "/page.json", "Bearer " + secret, 403, "this server has another name"},
		{"name of an address", secret, "127.0.0.1.evil.example", "GET", "/", "", 403, "this server has another name"},
		{"no name", secret, "", "GET", "/", "", 403, "this server has another name"},
		{"off", "", "127.0.0.1:9100", "GET", "/", "", 404, "no page here: set http_token_file"},
		{"off, empty token", "", "127.0.0.1:9100", "GET", "/page.json", "Bearer ", 404, "no page here"},
		{"write", secret, "127.0.0.1:9100", "POST", "/page.json", "Bearer " + secret, 405, ""},
		{"preflight of another site", secret, "127.0.0.1:9100", "OPTIONS", "/page.json", "", 405, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			mux := http.NewServeMux()
			(&Handler{Token: c.token, Host: "node-1", Data: func() []byte { return []byte(`{"n":1}`) }}).Register(mux)
			r := httptest.NewRequest(c.method, c.path, nil)
			r.Host = c.host
			if c.authorization != "" {
				r.Header.Set("Authorization", c.authorization)
			}
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			if w.Code != c.code || !strings.HasPrefix(w.Body.String(), c.want) || strings.Contains(w.Body.String(), secret) {
				t.Errorf("got %d, %.80q, want %d, %q", w.Code, w.Body, c.code, c.want)
			}
			if w.Header().Get("Access-Control-Allow-Origin") != "" || w.Header().Get("Set-Cookie") != "" {
				t.Errorf("headers: %v", w.Header())
			}
			if c.code == 200 && (!strings.HasPrefix(w.Header().Get("Content-Security-Policy"), "default-src 'none';") || w.Header().Get("Cache-Control") != "no-store") {
				t.Errorf("headers: %v", w.Header())
			}
		})
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://127.0.0.1/page.json", nil)
	r.Header.Set("Authorization", "Bearer "+secret)
	(&Handler{Token: secret, Data: func() []byte { return nil }}).numbers(w, r)
	if w.Code != 503 {
		t.Errorf("without numbers: %d", w.Code)
	}
}

// TestSelfContained shows that the page is one piece that names no other server, and that its script makes no HTML of texts.
func TestSelfContained(t *testing.T) {
	page := strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", "") // a name, not an address
	for _, bad := range []string{`https?://`, `\ssrc=`, `@import`, `url\(`, `/\*(css|js)\*/`, `innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`, `\son[a-z]+="`, `\sstyle="`} {
		if got := regexp.MustCompile(bad).FindString(page); got != "" {
			t.Errorf("the page has %q", got)
		}
	}
	if n := strings.Count(page, "</script"); n != 1 || !strings.Contains(string(text), js) || !strings.Contains(page, css) {
		t.Errorf("the script ends %d times", n)
	}
}

// TestToken shows that an absent file is made once, whoever is first, for its user alone, and which files are refused,
// without a word of what is in them.
func TestToken(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "made")
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = Token(name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all := slices.Compact(slices.Clone(got)); len(all) != 1 || len(all[0]) < 16 {
		t.Errorf("tokens: %q", got)
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 {
		t.Errorf("made: %v, %v", info.Mode(), err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left over: %v", files)
	}
	if none, err := Token(""); none != "" || err != nil {
		t.Errorf("no file: %q, %v", none, err)
	}
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"own", secret, 0o600, ""},
		{"group", "\n" + secret + " \r\n", 0o640, ""},
		{"others", secret, 0o644, "mode -rw-r--r--: want a file of mode 0600"},
		{"writable by the group", secret, 0o660, "mode -rw-rw----: want"},
		{"empty", "", 0o600, "want one token of 16"},
		{"short", secret[:15], 0o600, "want one token of 16"},
		{"two", secret + "\n" + secret, 0o600, "want one token of 16"},
		{"long", strings.Repeat("x", 2000), 0o600, "want one token of 16"},
		{"bytes", secret + "\x00\xff", 0o600, "want one token of 16"},
	} {
		file := filepath.Join(dir, c.name)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := Token(file)
		if c.want == "" && (got != secret || err != nil) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
		if c.want != "" && (got != "" || err == nil || !strings.Contains(err.Error(), file+": "+c.want) || strings.Contains(err.Error(), secret[:15])) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
	for _, bad := range []string{dir, filepath.Join(dir, "absent", "token")} {
		if got, err := Token(bad); got != "" || err == nil {
			t.Errorf("%s: %q, %v", bad, got, err)
		}
	}
}

// TestLog shows that the latest warnings and errors are kept, also of loggers made from it, and that the log itself goes on.
func TestLog(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	l := &Log{}
	log := l.Watch(zap.New(core)).Named("disk").With(zap.String("tier", "ssd"))
	log.Error("first")
	for i := range 2 * maxLines {
		log.Warn("slow", zap.Int("n", i))
	}
	log.Error(strings.Repeat("long ", maxLine))
	log.Info("fine")
	got := l.Lines()
	if len(got) != maxLines || len(got[0]) > maxLine || !strings.Contains(got[0], " ERROR disk long ") {
		t.Errorf("%d lines, the newest %.100q", len(got), got[0])
	}
	if want := fmt.Sprintf(` WARN disk slow {"tier": "ssd", "n": %d}`, 2*maxLines-1); !strings.HasSuffix(got[1], want) {
		t.Errorf("got %q, want %q", got[1], want)
	}
	if n := logged.Len(); n != 2*maxLines+3 {
		t.Errorf("%d entries logged", n)
	}
}

// TestFollow shows that the latest evictions are told, each once, however many events there were, with names that are escaped.
func TestFollow(t *testing.T) {
	log, s := event.New(), &Source{}
	s.follow(log)
	evict := func(name string) {
		log.Add(event.Event{Kind: event.Evicted, Tier: "memory", Key: block.Key{Group: "g", Hash: block.Hash(name)}, Size: 7, Reason: outcome.ReasonQuota})
	}
	for i := range 3 * event.Ring {
		evict(fmt.Sprint(i))
	}
	s.follow(log)
	s.follow(log)
	if n, last := len(s.recent), s.recent[len(s.recent)-1]; n != maxRecent || last.Name != fmt.Sprintf("g/%d", 3*event.Ring-1) {
		t.Errorf("%d evictions, the last %+v", n, last)
	}
	for range event.Ring / 2 {
		log.Add(event.Event{Kind: event.Stored})
	}
	evict("a\nb\xff<img>")
	s.follow(log)
	if n, last := len(s.recent), s.recent[len(s.recent)-1]; n != maxRecent || last.Name != `g/a\nb\xff<img>` || last.Rule != "quota" || last.Bytes != 7 || s.recent[n-2].Name != fmt.Sprintf("g/%d", 3*event.Ring-1) {
		t.Errorf("%d evictions, the last %+v", n, last)
	}
	log.Close()
	s.follow(log)
}

// TestSettings shows that settings have their paths, values and origins, in tables and lists, too.
func TestSettings(t *testing.T) {
	c, err := config.Load(config.Sources{
		InlineJSON: `{"memory": {"size": "1GiB"}, "groups": {"a: b  # c\n<i>": {"pinned": true}}, "disk": {"dirs": [{"path": "/a b", "size": "2GiB"}]}}`,
		Environ:    []string{"KVFS_LOG_LEVEL=warn"}, MemTotal: scalar.GiB, Hostname: "n",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]setting{}
	for _, s := range settings(c) {
		got[s.Path] = s
	}
	for _, want := range []setting{
		{"mode", "embedded", "default"},
		{"memory.size", "1GiB", "config-json 1:21"},
		{"disk.dirs[0].path", `"/a b"`, "config-json 1:105"},
		{"disk.slab_size", "256MiB", "default"},
		{"log.level", "warn", "env KVFS_LOG_LEVEL"},
	} {
		if s := got[want.Path]; s != want {
			t.Errorf("got %+v, want %+v", s, want)
		}
	}
	if !slices.ContainsFunc(settings(c), func(s setting) bool { return strings.HasPrefix(s.Path, `groups."a: b`) && s.Value == "true" }) {
		t.Errorf("no pinned group in %v", got)
	}
}
