package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// dialogue is an open control file.
type dialogue struct {
	t  testing.TB
	fd int
}

// talk opens a control file for requests.
func talk(t testing.TB, d *harness.Daemon, file string) *dialogue {
	t.Helper()
	return &dialogue{t, open(t, d.Path(".kvfs", file), unix.O_RDWR)}
}

// send writes all of b.
func (c *dialogue) send(b []byte) {
	c.t.Helper()
	if err := sendAll(c.fd, b); err != nil {
		c.t.Fatalf("write of a request: %v", err)
	}
}

func sendAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// readSome is one read; none at the end.
func readSome(fd int, buf []byte) (n int, err error) {
	err = again(func() (err error) {
		n, err = unix.Read(fd, buf)
		return err
	})
	return n, err
}

// readAnswer reads to the end.
func readAnswer(fd int) ([]byte, error) {
	var all []byte
	buf := make([]byte, 128*kib)
	for {
		n, err := readSome(fd, buf)
		if err != nil || n == 0 {
			return all, err
		}
		all = append(all, buf[:n]...)
	}
}

// receive reads the answer to its end.
func (c *dialogue) receive() []byte {
	c.t.Helper()
	var answer []byte
	var err error
	within(c.t, "the answer comes", func() { answer, err = readAnswer(c.fd) })
	if err != nil {
		c.t.Fatalf("read of an answer: %v", err)
	}
	return answer
}

// raw sends a request as it stands and returns the answer.
func (c *dialogue) raw(request string) []byte {
	c.t.Helper()
	c.send([]byte(request))
	return c.receive()
}

// lines sends a request and returns the lines of its answer.
func (c *dialogue) lines(request any) []string {
	c.t.Helper()
	b, err := json.Marshal(request)
	must(c.t, "request", err)
	answer := c.raw(string(b))
	if !bytes.HasSuffix(answer, []byte("\n")) {
		c.t.Errorf("the answer does not end with a newline: %q", answer)
	}
	return strings.Split(strings.TrimSuffix(string(answer), "\n"), "\n")
}

// ask sends a request and decodes the last line of its answer, which must have no
// fields that answer lacks.
func (c *dialogue) ask(request, answer any) {
	c.t.Helper()
	lines := c.lines(request)
	decode(c.t, lines[len(lines)-1], answer)
}

func decode(t testing.TB, line string, v any) {
	t.Helper()
	in := json.NewDecoder(strings.NewReader(line))
	in.DisallowUnknownFields()
	if err := in.Decode(v); err != nil {
		t.Fatalf("answer: %v\n%s", err, cut(line))
	}
}

func cut(s string) string {
	if len(s) > 1000 {
		return s[:1000] + "..."
	}
	return s
}

// obj is a request or a part of it.
type obj map[string]any

// refusal is the answer to a request that cannot be obeyed.
type refusal struct {
	Error string `json:"error"`
	Field string `json:"field"`
}

// wantRefused fails unless an answer is a refusal that names the field and has all of
// words in its text.
func wantRefused(t testing.TB, answer []byte, field string, words ...string) {
	t.Helper()
	var r refusal
	if err := json.Unmarshal(answer, &r); err != nil {
		t.Errorf("answer: %v\n%s", err, cut(string(answer)))
		return
	}
	if r.Error == "" || r.Field != field {
		t.Errorf("got the error %q with the field %q, want the field %q", r.Error, r.Field, field)
	}
	for _, w := range words {
		if !strings.Contains(r.Error, w) {
			t.Errorf("got the error %q, want %q in it", r.Error, w)
		}
	}
}

// existsAnswer is the answer of exists.
type existsAnswer struct {
	Op      string `json:"op"`
	States  string `json:"states"`
	Hits    int    `json:"hits"`
	Pending int    `json:"pending"`
	Late    int    `json:"late"`
	Misses  int    `json:"misses"`
	Prefix  int    `json:"prefix"`
	refusal
}

// exists asks where blocks are, and checks that the counts agree with the states.
func (c *dialogue) exists(request obj) existsAnswer {
	c.t.Helper()
	request["op"] = "exists"
	var a existsAnswer
	c.ask(request, &a)
	if a.Error != "" {
		c.t.Fatalf("exists: %s (%s)", a.Error, a.Field)
	}
	if err := a.check(); err != nil {
		c.t.Error(err)
	}
	return a
}

// check returns how the counts differ from the states.
func (a existsAnswer) check() error {
	want := existsAnswer{
		Op: "exists", States: a.States, Pending: strings.Count(a.States, "w"), Late: strings.Count(a.States, "l"),
		Misses: strings.Count(a.States, ".") + strings.Count(a.States, "/"), Prefix: len(a.States) - len(strings.TrimLeft(a.States, "mdp")),
	}
	want.Hits = len(a.States) - want.Pending - want.Late - want.Misses
	if a != want {
		return fmt.Errorf("got %+v, want %+v", a, want)
	}
	if rest := strings.Trim(a.States, "mdpwl./"); rest != "" {
		return fmt.Errorf("states that do not exist: %q", rest)
	}
	return nil
}

// states asks for keys without a lease, so that asking changes nothing.
func (c *dialogue) states(keys ...string) string {
	c.t.Helper()
	return c.exists(obj{"keys": keys, "lease": false}).States
}

func wantStates(t testing.TB, c *dialogue, want string, keys ...string) {
	t.Helper()
	if got := c.states(keys...); got != want {
		t.Errorf("states of %q: got %q, want %q", keys, got, want)
	}
}

// prefetchAnswer is the last line of an answer of prefetch.
type prefetchAnswer struct {
	Results  string        `json:"results"`
	Done     int           `json:"done"`
	Total    int           `json:"total"`
	Bytes    int64         `json:"bytes"`
	InMemory int           `json:"in_memory"`
	Loaded   int           `json:"loaded"`
	Absent   int           `json:"absent"`
	Pending  int           `json:"pending"`
	Failed   int           `json:"failed"`
	Errors   []failedBlock `json:"errors"`
	refusal
}

type failedBlock struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// prefetch brings blocks into memory, and checks that the counts agree with the results.
func (c *dialogue) prefetch(request obj) prefetchAnswer {
	c.t.Helper()
	var a prefetchAnswer
	c.ask(request, &a)
	if a.Error != "" {
		c.t.Fatalf("prefetch: %s (%s)", a.Error, a.Field)
	}
	if err := a.check(); err != nil {
		c.t.Error(err)
	}
	return a
}

// check returns how the counts differ from the results.
func (a prefetchAnswer) check() error {
	count := func(what string) int { return strings.Count(a.Results, what) }
	n := len(a.Results)
	sums := []int{a.InMemory, a.Loaded, a.Absent, a.Pending, a.Failed, a.Done, a.Total, len(a.Errors)}
	want := []int{count("m"), count("l"), count("."), count("w"), count("!"), n, n, min(count("!"), 100)}
	if fmt.Sprint(sums) != fmt.Sprint(want) {
		return fmt.Errorf("results %q: counts %v, want %v", a.Results, sums, want)
	}
	return nil
}

// verdict is an answer of why about a path.
type verdict struct {
	Path    string   `json:"path"`
	Verdict string   `json:"verdict"`
	Tier    string   `json:"tier"`
	Rule    string   `json:"rule"`
	By      string   `json:"by"`
	To      string   `json:"to"`
	Groups  []string `json:"groups"`
	Time    string   `json:"time"`
	Age     float64  `json:"age_seconds"`
	Text    string   `json:"text"`
}

type whyAnswer struct {
	Op       string    `json:"op"`
	Verdicts []verdict `json:"verdicts"`
	refusal
}

// why asks why blocks are not there.
func (c *dialogue) why(keys ...string) []verdict {
	c.t.Helper()
	var a whyAnswer
	c.ask(obj{"op": "why", "keys": append([]string{}, keys...)}, &a)
	if a.Op != "why" || len(a.Verdicts) != len(keys) {
		c.t.Fatalf("why %q: got %+v, want a verdict for each", keys, a)
	}
	for i, v := range a.Verdicts {
		if v.Path != keys[i] || v.Text == "" {
			c.t.Errorf("why %s: got %+v, want its path and a text", keys[i], v)
		}
	}
	return a.Verdicts
}
