// Package page holds the black-box test of the web page: Chromium shows the page of a live cluster.
package page

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const (
	origin = "http://127.0.0.1:9100"
	mib    = 1 << 20

	markup  = "<img src=x onerror=alert(1)>"
	control = "two\nlines\x1b[31m"
)

// TestPage shows in Chromium what the page of a node of three shows, and what it does not do: numbers only with the
// token, bars that fill, names as text, one column on a phone, dark and light, all by keyboard, no request to anywhere
// else, and a daemon that dies and comes back.
func TestPage(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		harness.Skip(t, "no chromium")
	}
	secret := filepath.Join(harness.NewDiskDir(t, nil), "token")                                                                                  // removed after a signal, too
	c := harness.NewCluster(t, harness.ClusterOptions{PeerTimeout: harness.Deadline, PeerSilence: harness.Deadline / 4, Options: harness.Options{ // the machine may be slow
		Disk: "512MiB", Flags: []string{"--http", "127.0.0.1:9100", "--http-token-file", secret, "--mount-write-timeout", harness.Deadline.String()},
	}})
	text, err := os.ReadFile(secret)
	if err != nil {
		t.Fatal(err)
	}
	v := &visit{c: c, token: strings.TrimSpace(string(text))}
	c.Net.In(0, func() { v.browser = start(t) })
	v.login()
	v.fill()
	v.names()
	v.parts()
	v.advice()
	v.screenshot()
	v.forms()
	v.keyboard()
	v.death()
	v.quiet()
	v.wants(`(() => { try { document.createElement("p").innerHTML = "<b>"; return false; } catch { return true; } })()`)
}

// visit is a browser at the page of the first node.
type visit struct {
	*browser
	c     *harness.Cluster
	token string
}

// login: the page has no numbers without the token, and takes it from the keyboard.
func (v *visit) login() {
	v.t.Helper()
	v.call("Page.navigate", map[string]any{"url": origin + "/"}, nil)
	v.wait(`location.href !== "about:blank" && document.readyState === "complete" && document.activeElement.id === "token"`)
	v.wants(`document.getElementById("main").hidden`)
	v.call("Input.insertText", map[string]any{"text": strings.Repeat("x", 20)}, nil)
	v.key("Enter", "\r", 13)
	v.wait(`document.getElementById("alarm").textContent === "The daemon does not take this token."`)
	v.wants(`document.getElementById("main").hidden`)
	v.call("Input.insertText", map[string]any{"text": v.token}, nil)
	v.key("Enter", "\r", 13)
	v.wait(`!document.getElementById("main").hidden && document.getElementById("alarm").hidden`)
}

// share is an expression: how full the bar of a tier is, in percent.
func share(tier string) string {
	return `(() => { const b = document.querySelector("[data-tier=` + tier + `] .bar"); return 100 * b.firstChild.getBoundingClientRect().width / b.getBoundingClientRect().width; })()`
}

// fill: the bars of the tiers and of the cluster fill as blocks are written.
func (v *visit) fill() {
	v.t.Helper()
	v.wants(share("memory") + " < 5")
	for i := range 14 {
		for _, group := range []string{markup, control, "llama-3-70b"} {
			v.write(0, group, fmt.Sprintf("%04x", i), 2*mib)
		}
	}
	v.wait(share("memory") + " > 60")
	v.wait(share("disk") + " > 10")
	v.wait(`Number(document.querySelector("#cluster-bar [role=meter]").getAttribute("aria-valuenow")) > 3`)
}

// write writes a block on a node.
func (v *visit) write(node int, group, name string, size int) {
	v.t.Helper()
	dir := v.c.Nodes[node].Path(group)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		v.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644); err != nil {
		v.t.Fatal(err)
	}
}

// names: a name is text, whatever is in it.
func (v *visit) names() {
	v.t.Helper()
	for _, want := range []string{markup, `two\\nlines\\x1b[31m`, "llama-3-70b"} {
		v.wait(`[...document.querySelectorAll("#group-rows td span")].some((e) => e.textContent === "` + want + `")`)
	}
	v.wants(`!document.querySelector("main img, main script")`)
}

// parts: each part shows what happens.
func (v *visit) parts() {
	v.t.Helper()
	a, b := v.c.Nodes[0], v.c.Nodes[1]
	v.write(1, "qwen3", "far", 3*mib)
	v.c.WaitQuiet()
	for _, path := range []string{a.Path("qwen3", "far"), a.Path("llama-3-70b", "0001"), a.Path("llama-3-70b", "0002")} {
		if got, err := os.ReadFile(path); err != nil || len(got) < 2*mib {
			v.t.Fatalf("%s: %d bytes, %v", path, len(got), err)
		}
	}
	if _, err := os.Stat(a.Path("llama-3-70b", "absent")); err == nil {
		v.t.Fatal("an absent block is there")
	}
	for i := range 40 { // more than memory holds
		v.write(0, "llama-3-70b", fmt.Sprintf("next-%04x", i), 2*mib)
	}
	has := func(id, text string) {
		v.t.Helper()
		v.wait(`document.getElementById("` + id + `").textContent.includes("` + text + `")`)
	}
	has("hits-text", "% since the start")
	has("bytes-text", "B/s")
	v.wait(`document.querySelector("#hits polyline") && document.querySelectorAll("#bytes polyline").length === 2`)
	has("miss-rows", "no tier has the name")
	has("size-rows", "as now")
	has("advice", "No advice yet: it needs a day, or as much evicted as memory holds and reads of what was evicted. An estimate for LRU")
	has("rule-rows", "memory")
	v.wait(`document.querySelectorAll("#recent-rows tbody tr").length > 3`)
	for _, n := range v.c.Nodes {
		v.wait(`[...document.querySelectorAll("#member-rows tr")].some((r) => r.textContent.includes("` + n.Name + `") && r.textContent.includes("alive"))`)
	}
	v.wait(`[...document.querySelectorAll("#member-rows tr")].some((r) => r.textContent.startsWith("` + b.Name + `") && r.textContent.includes("3.0 MiB"))`)
	v.wait(`[...document.querySelectorAll("#setting-rows tr")].some((r) => /^memory.size96MiB.*96.0 MiB/.test(r.textContent))`)
	v.wants(`document.getElementById("setting-rows").textContent.includes("read: ` + fmt.Sprint(a.Status().Mount.ReadPath) + `")`)
	hangs := v.eval(`(() => { for (let i = 0; i < stale; i++) show(last); return document.getElementById("alarm").textContent; })()`)
	if !strings.HasPrefix(fmt.Sprint(hangs), "The daemon answers, and has collected no numbers since ") {
		v.t.Errorf("the same numbers again and again: %q", hangs)
	}
	v.wait(`document.getElementById("alarm").hidden`)
}

// advice: the sentence about other sizes is that of docs/operations.md.
func (v *visit) advice() {
	v.t.Helper()
	for _, c := range []struct{ ratios, want string }{
		{"[0.2, 0.5, 0.8, 0.9], null", "Twice the memory would answer 30.0 % more from memory, and save computing."},
		{"[0.2, 0.5, 0.5, 0.5], [0.5, 0.6, 0.7, 0.8]", "Twice the SSD would answer 10.0 % more of the asks, and save computing."},
		{"[0.2, 0.5, 0.8, 0.9], [0.9, 0.9, 0.9, 0.9]", "Twice the memory would answer 30.0 % more from memory."},
		{"[0.5, 0.5, 0.5, 0.5], [0.6, 0.6, 0.6, 0.6]", "Half of both would do."},
		{"[0.5, 0.5, 0.5, 0.5], null", "Half of the memory would do."},
		{"[0.2, 0.5, 0.5, 0.5], [0.6, 0.7, 0.7, 0.7]", "More of either would bring nothing now."},
	} {
		if got := v.eval("advice(" + c.ratios + ")"); got != c.want {
			v.t.Errorf("%s: got %q, want %q", c.ratios, got, c.want)
		}
	}
}

// forms: nothing is wider than a phone, and both color schemes are there.
func (v *visit) forms() {
	v.t.Helper()
	for _, width := range []int{375, 390, 1200} {
		v.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 400}, nil)
		v.wait(fmt.Sprintf(`innerWidth === %d && document.documentElement.scrollWidth <= %d`, width, width))
		if width < 400 { // no table is wider than its box, so that all of it is read without sliding it to the side
			v.wait(`document.querySelectorAll(".scroll").length > 3 && [...document.querySelectorAll(".scroll")].every((s) => s.scrollWidth <= s.clientWidth)`)
		}
	}
	colors := map[any]bool{}
	for _, scheme := range []string{"dark", "light"} {
		v.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
		colors[v.eval(`getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color`)] = true
	}
	if len(colors) != 2 {
		v.t.Errorf("dark and light: %v", colors)
	}
}

// screenshot reads and writes for two minutes, and writes a picture of the page to the file in KVFS_TEST_SCREENSHOT.
func (v *visit) screenshot() {
	v.t.Helper()
	name := os.Getenv("KVFS_TEST_SCREENSHOT")
	if name == "" {
		return
	}
	random := rand.New(rand.NewPCG(1, 2))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 1200 {
		<-tick.C
		v.write(0, "qwen3-8b", fmt.Sprintf("%04x", i%300), mib/2)
		for range 6 + random.IntN(4) + i/300%2*6 {
			os.ReadFile(v.c.Nodes[0].Path("qwen3-8b", fmt.Sprintf("%04x", int(100*random.ExpFloat64())))) // there or not
		}
	}
	v.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 1100, "height": 1085, "deviceScaleFactor": 1, "mobile": false}, nil)
	v.wait("innerWidth === 1100")
	v.eval(`document.getElementById("about").textContent = document.getElementById("about").textContent.replace(/^[^ ]*/, "/mnt/kv")`)
	var shot struct{ Data []byte }
	v.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	if err := os.WriteFile(name, shot.Data, 0o644); err != nil {
		v.t.Fatal(err)
	}
}

// keyboard: Tab reaches every part that takes input, each shows that it has the focus, and Enter works.
func (v *visit) keyboard() {
	v.t.Helper()
	v.eval(`document.querySelector("a").focus()`)
	seen := map[string]bool{}
	for ; len(seen) < 40; v.key("Tab", "", 9) {
		at := v.eval(`(() => { const e = document.activeElement; return (e.id || e.hash || e.className || "end") + (getComputedStyle(e).outlineStyle === "none" ? " without outline" : ""); })()`).(string)
		if seen[at] && at != "scroll" || strings.HasPrefix(at, "end") {
			break
		}
		if seen[at] = true; strings.HasSuffix(at, "without outline") {
			v.t.Errorf("the focus does not show: %s", at)
		}
		if at == "pause" {
			v.key("Enter", "\r", 13)
			v.wants(`document.getElementById("pause").getAttribute("aria-pressed") === "true"`)
			v.key("Enter", "\r", 13)
			v.wants(`document.getElementById("pause").getAttribute("aria-pressed") === "false"`)
		}
	}
	for _, want := range []string{"#tiers", "#settings", "pause", "scroll"} {
		if !seen[want] {
			v.t.Errorf("Tab does not reach %s: %v", want, seen)
		}
	}
}

// death: the page says that the daemon is dead, and goes on by itself when the next one is there.
func (v *visit) death() {
	v.t.Helper()
	n := v.c.Nodes[0]
	n.Kill()
	v.wait(`/^No answer from the daemon since .*: the numbers are old/.test(document.getElementById("alarm").textContent)`)
	v.wants(`!document.getElementById("main").hidden`)
	n.Restart()
	v.wait(fmt.Sprintf(`document.getElementById("alarm").hidden && document.getElementById("about").textContent.includes("pid %d ")`, n.Pid))
}

// quiet: the page has asked nobody but its own server, and nothing was refused or failed in it.
func (v *visit) quiet() {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, url := range v.mu.urls {
		if !strings.HasPrefix(url, origin+"/") && !strings.HasPrefix(url, "data:") {
			v.t.Errorf("the page asked for %s", url)
		}
	}
	if len(v.mu.urls) < 5 || len(v.mu.faults) > 0 {
		v.t.Errorf("%d requests; faults: %q", len(v.mu.urls), v.mu.faults)
	}
}
