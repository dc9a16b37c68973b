package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// browser is a headless Chromium with one page, driven over a pipe: https://chromedevtools.github.io/devtools-protocol.
type browser struct {
	t       *testing.T
	to      *os.File
	session string // of the page

	mu struct {
		sync.Mutex
		id      int
		waiting map[int]chan reply
		urls    []string // that the page asked for
		faults  []string // exceptions, dialogs, and what the browser refused
	}
}

// reply is a message of the browser: the answer to a call, or an event.
type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// start starts the browser in the network of the calling thread. It ends with the test.
func start(t *testing.T) *browser {
	t.Helper()
	profile := harness.NewDiskDir(t, nil)
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, back, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := os.Create(filepath.Join(profile, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-breakpad", "--no-first-run", "--disable-dev-shm-usage",
		"--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--user-data-dir="+profile, "--remote-debugging-pipe", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+profile, "XDG_CONFIG_HOME="+profile, "XDG_CACHE_HOME="+profile, "TMPDIR="+profile)
	cmd.Stderr, cmd.ExtraFiles = errs, []*os.File{theirs, back}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	back.Close()
	b := &browser{t: t, to: to}
	b.mu.waiting = map[int]chan reply{}
	done := make(chan struct{})
	go func() { // ends with the browser
		defer close(done)
		b.hear(from)
	}()
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		cmd.Wait()
		<-done
		to.Close()
		from.Close()
		errs.Close()
		if text, _ := os.ReadFile(errs.Name()); t.Failed() {
			t.Logf("chromium: %.4000s", text)
		}
	})
	var target struct{ TargetID string }
	var session struct{ SessionID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// hear takes the messages of the browser, each of which ends with a zero byte.
func (b *browser) hear(from *os.File) {
	in := bufio.NewReader(from)
	for {
		text, err := in.ReadBytes(0)
		b.mu.Lock()
		if err != nil {
			for _, c := range b.mu.waiting {
				close(c)
			}
			b.mu.waiting = nil
			b.mu.Unlock()
			return
		}
		var r reply
		if err := json.Unmarshal(text[:len(text)-1], &r); err != nil {
			b.mu.faults = append(b.mu.faults, fmt.Sprintf("%v: %.200s", err, text))
		}
		switch c := b.mu.waiting[r.ID]; {
		case c != nil:
			delete(b.mu.waiting, r.ID)
			c <- r // has room
		case r.Method == "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			json.Unmarshal(r.Params, &p)
			b.mu.urls = append(b.mu.urls, p.Request.URL)
		case r.Method == "Runtime.exceptionThrown", r.Method == "Page.javascriptDialogOpening",
			r.Method == "Log.entryAdded" && strings.Contains(string(r.Params), `"security"`):
			b.mu.faults = append(b.mu.faults, string(r.Params))
		}
		b.mu.Unlock()
	}
}

// call calls a method of the browser, or of its page once there is one.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	c := make(chan reply, 1)
	b.mu.Lock()
	b.mu.id++
	id := b.mu.id
	if b.mu.waiting != nil {
		b.mu.waiting[id] = c
	}
	b.mu.Unlock()
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": b.session})
	if b.session == "" {
		text, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	late := time.NewTimer(harness.Deadline)
	defer late.Stop()
	select {
	case r, ok := <-c:
		if !ok || r.Error != nil {
			b.t.Fatalf("%s: %+v", method, r.Error)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-late.C:
		b.t.Fatalf("%s %v: no answer after %v; faults: %q", method, params, harness.Deadline, b.faults())
	}
}

// eval returns the value of an expression in the page, or of its promise.
func (b *browser) eval(expression string) (value any) {
	b.t.Helper()
	var r struct {
		Result    struct{ Value any }
		Exception *struct{ Exception struct{ Description string } } `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.Exception != nil {
		b.t.Fatalf("%s: %s", expression, r.Exception.Exception.Description)
	}
	return r.Result.Value
}

// wait waits until a condition holds in the page.
func (b *browser) wait(condition string) {
	b.t.Helper()
	b.eval("new Promise((done) => { const look = () => ((" + condition + ") ? done(true) : setTimeout(look, 50)); look(); })")
}

// wants fails the test unless a condition holds in the page now.
func (b *browser) wants(condition string) {
	b.t.Helper()
	if b.eval(condition) != true {
		b.t.Errorf("not so: %s", condition)
	}
}

// faults returns what went wrong in the page so far.
func (b *browser) faults() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.mu.faults)
}

// key presses a key. text is what it writes.
func (b *browser) key(name, text string, code int) {
	b.t.Helper()
	p := map[string]any{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": code, "text": text}
	b.call("Input.dispatchKeyEvent", p, nil)
	p["type"], p["text"] = "keyUp", ""
	b.call("Input.dispatchKeyEvent", p, nil)
}
