package owner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
)

// fakeOwners answers calls as tests say.
type fakeOwners struct {
	mu     sync.Mutex
	asked  []string // "owner path"
	answer func(ctx context.Context, owner, path string) (holders []string, sure bool, err error)
}

func (f *fakeOwners) call(ctx context.Context, owner string, paths []string) (found []Holders[string], unsure []uint32, err error) {
	for i, path := range paths {
		f.mu.Lock()
		f.asked = append(f.asked, owner+" "+path)
		f.mu.Unlock()
		list, sure, err := f.answer(ctx, owner, path)
		switch {
		case err != nil:
			return nil, nil, err
		case !sure:
			unsure = append(unsure, uint32(i))
		case list != nil:
			found = append(found, Holders[string]{uint32(i), list})
		}
	}
	return found, unsure, nil
}

var ten = NewTable(names(10))

// ask asks in a bubble for paths, as node-0 of ten nodes. It returns the holders of each path that was answered, and the time
// that took.
func (f *fakeOwners) ask(ctx context.Context, paths ...string) (came map[string][]string, took time.Duration) {
	begin := time.Now()
	came = map[string][]string{}
	Ask(ctx, ten, "node-0", paths, f.call, func(path string, holders []string) { came[path] = append(came[path], holders...) })
	return came, time.Since(begin)
}

// ownersOf returns the owners of a path that node-0 asks, in order.
func ownersOf(path string) []string {
	list := ten.Owners(location.HashPath(path), nil)
	return slices.DeleteFunc(list, func(o string) bool { return o == "node-0" })
}

// TestAsk shows that each path is asked of its first owner only, if that knows, and what comes of it.
func TestAsk(t *testing.T) {
	var paths, want []string
	for i := range 3000 {
		paths = append(paths, fmt.Sprint("g/", i))
		want = append(want, ownersOf(paths[i])[0]+" "+paths[i])
	}
	f := &fakeOwners{answer: func(_ context.Context, owner, path string) ([]string, bool, error) {
		if path[len(path)-1] == '7' {
			return nil, true, nil // nobody has it
		}
		return []string{path + " at " + owner, "b"}, true, nil
	}}
	came, _ := f.ask(t.Context(), paths...)
	slices.Sort(want)
	slices.Sort(f.asked)
	if !slices.Equal(f.asked, want) {
		t.Errorf("asked %d, want %d", len(f.asked), len(want))
	}
	for _, path := range paths {
		if path[len(path)-1] == '7' {
			if list, ok := came[path]; !ok || len(list) != 0 {
				t.Errorf("%s: %v, answered %v", path, list, ok)
			}
		} else if !slices.Equal(came[path], []string{path + " at " + ownersOf(path)[0], "b"}) {
			t.Errorf("%s: %v", path, came[path])
		}
	}
}

// TestAskLong shows that no call has more paths or bytes than the owner takes, and that none of many long paths is left out.
func TestAskLong(t *testing.T) {
	var paths []string
	for i := range 3000 {
		paths = append(paths, fmt.Sprintf("g/%0*d", 1+i, i))
	}
	f := &fakeOwners{answer: func(_ context.Context, owner, path string) ([]string, bool, error) { return []string{owner}, true, nil }}
	var mu sync.Mutex
	call := func(ctx context.Context, owner string, list []string) ([]Holders[string], []uint32, error) {
		if bytes := len(strings.Join(list, "")); len(list) > askPaths || bytes > control.MaxStatBytes {
			t.Errorf("a call with %d paths, %d bytes", len(list), bytes)
		}
		mu.Lock()
		defer mu.Unlock()
		return f.call(ctx, owner, list)
	}
	synctest.Test(t, func(t *testing.T) { // the time that all of this takes on a busy machine does not count
		came := 0
		Ask(t.Context(), ten, "node-0", paths, call, func(string, []string) { came++ })
		if came != len(paths) {
			t.Errorf("%d of %d were answered", came, len(paths))
		}
	})
	if got := oneCall([]*question{{path: strings.Repeat("x", askBytes+1)}, {path: "y"}}); len(got) != 1 {
		t.Errorf("%d paths with one that is too long", len(got))
	}
}

// TestAskNext shows that the next owner is asked when one fails, is not sure, or does not answer, and that none of that takes
// longer than the limit.
func TestAskNext(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	path := "g/x"
	for ownersOf(path); len(ownersOf(path)) < Copies; path += "x" { // so that node-0 is none of them
	}
	owners := ownersOf(path)
	for _, c := range []struct {
		name  string
		does  [Copies]string // of each owner
		came  string
		asked int
		took  time.Duration
	}{
		{"first fails", [...]string{"fail", "b", "-"}, "b", 2, 0},
		{"two fail", [...]string{"fail", "fail", "c"}, "c", 3, 0},
		{"unsure", [...]string{"unsure", "b", "-"}, "b", 2, 0},
		{"unsure, then nobody", [...]string{"unsure", "nobody", "c"}, "nobody", 2, 0},
		{"hangs", [...]string{"hang", "b", "-"}, "b", 2, askPatience},
		{"two hang", [...]string{"hang", "hang", "c"}, "c", 3, 2 * askPatience},
		{"slow", [...]string{"slow", "hang", "hang"}, "slow", 2, askPatience + askPatience/2},
		{"all hang", [...]string{"hang", "hang", "hang"}, "", 3, askLimit},
		{"all fail", [...]string{"fail", "fail", "fail"}, "", 3, 0},
		{"all unsure", [...]string{"unsure", "unsure", "unsure"}, "", 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeOwners{answer: func(ctx context.Context, owner, _ string) ([]string, bool, error) {
					switch what := c.does[slices.Index(owners, owner)]; what {
					case "fail":
						return nil, false, errors.New("no")
					case "unsure":
						return nil, false, nil
					case "nobody":
						return nil, true, nil
					case "hang":
						return nil, false, hang(ctx)
					case "slow":
						time.Sleep(askPatience + askPatience/2) // reason: the clock of a bubble
						return []string{"slow"}, true, nil
					default:
						return []string{what}, true, nil
					}
				}}
				came, took := f.ask(t.Context(), path)
				var want []string
				if c.came != "" && c.came != "nobody" {
					want = []string{c.came}
				}
				list, answered := came[path]
				f.mu.Lock()
				defer f.mu.Unlock()
				if !slices.Equal(list, want) || answered != (c.came != "") || len(f.asked) != c.asked || took != c.took {
					t.Errorf("%v, answered %v, asked %v, took %v; want %v, %d, %v", list, answered, f.asked, took, want, c.asked, c.took)
				}
			})
		})
	}
}

// TestAskEnds shows that a context ends a question, and that nonsense in an answer does no harm.
func TestAskEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		f := &fakeOwners{answer: func(ctx context.Context, _, _ string) ([]string, bool, error) {
			<-ctx.Done()
			return nil, false, ctx.Err()
		}}
		if came, took := f.ask(ctx, "g/a"); len(came) != 0 || took != time.Millisecond {
			t.Errorf("%v after %v", came, took)
		}
		synctest.Wait()
	})
	calls := 0
	Ask(t.Context(), NewTable(names(4)), "node-0", []string{"g/a"}, func(context.Context, string, []string) ([]Holders[string], []uint32, error) {
		return []Holders[string]{{0, []string{"a"}}, {0, []string{"b"}}, {7, []string{"c"}}}, []uint32{9}, nil
	}, func(_ string, holders []string) {
		if calls++; holders[0] != "a" {
			t.Errorf("%v", holders)
		}
	})
	if calls != 1 {
		t.Errorf("%d answers", calls)
	}
}
