package query

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/tiers/hybrid"
)

// Limits of specs.
const (
	maxSpecs     = 1024
	maxSpecName  = 128 // bytes
	maxGroupName = 255 // bytes: it is part of a path
)

// newCoordinator makes a Coordinator, if the spec's groups have names that can be part of a path.
func newCoordinator(spec hybrid.Spec) (*hybrid.Coordinator, error) {
	var bad []string
	for i, g := range spec.Groups {
		switch {
		case len(g.Name) > maxGroupName:
			bad = append(bad, fmt.Sprintf("group %d: name of %d bytes, %d is the limit", i, len(g.Name), maxGroupName))
		case g.Name != "":
			if why := checkPath([]byte(g.Name)); why != "" {
				bad = append(bad, fmt.Sprintf("group %d: name %s: %s", i, quoted(g.Name), why))
			}
		}
		if g.Ranks > maxRanks {
			bad = append(bad, fmt.Sprintf("group %d: %d ranks, %d is the limit", i, g.Ranks, maxRanks))
		}
	}
	c, err := hybrid.New(spec)
	if err != nil {
		bad = append(bad, err.Error()) // the last, as it may repeat names of any length
	}
	if len(bad) > 0 {
		return nil, &requestError{why: strings.Join(bad, "; ")}
	}
	return c, nil
}

// checkSpecName reports why a name is none for a spec; empty if it is.
func checkSpecName(name string) string {
	switch {
	case name == "":
		return "the name of a spec may not be empty"
	case len(name) > maxSpecName:
		return fmt.Sprintf("the name has %d bytes, %d is the limit", len(name), maxSpecName)
	}
	return ""
}

// coordinator returns that of the spec that a request names or brings.
func (s *Service) coordinator(q *query) (*hybrid.Coordinator, *requestError) {
	if q.spec != nil {
		c, err := newCoordinator(*q.spec)
		if err != nil {
			return nil, faulty("/spec", "%v", err)
		}
		return c, nil
	}
	s.mu.RLock()
	c := s.mu.specs[string(q.specName)]
	s.mu.RUnlock()
	if c == nil {
		return nil, faulty("/spec", "there is none named %s", quoted(q.specName))
	}
	return c, nil
}

// SpecsFile handles .kvfs/specs.
func (s *Service) SpecsFile(_ context.Context, request []byte, answer io.Writer) {
	sc := s.take(nil)
	defer s.give(sc)
	q, err := readSpecs(&sc.read, request)
	if err == nil {
		var specs map[string]*hybrid.Coordinator
		if specs, err = s.change(q); err == nil {
			sc.out = appendSpecs(sc.out[:0], specs)
		}
	}
	finish(sc, answer, err)
}

// specsRequest is a request to .kvfs/specs.
type specsRequest struct {
	what  string                 // "set", "get", "remove"; empty: get all
	names []string               // in the order of the request
	specs map[string]hybrid.Spec // to be set
}

// at returns the pointer to the i-th spec of the request.
func (q *specsRequest) at(i int) string {
	if q.what == "set" {
		return "/set/" + memberPointer([]byte(q.names[i]))
	}
	return element("/"+q.what, i)
}

func readSpecs(r *reader, request []byte) (*specsRequest, *requestError) {
	r.reset(request)
	q := &specsRequest{specs: map[string]hybrid.Spec{}}
	r.object("", func(name []byte, field string) {
		if what := string(name); what != "set" && what != "get" && what != "remove" {
			r.fail(faulty(field, "there is no such member"))
			return
		}
		if q.what != "" {
			r.fail(faulty(field, "set, get and remove exclude each other"))
			return
		}
		q.what = string(name)
		if q.what == "set" {
			r.object(field, func(name []byte, field string) {
				q.names = append(q.names, string(name))
				if len(q.names) > maxSpecs {
					r.fail(faulty("/set", "has more than %d specs", maxSpecs))
					return
				}
				q.specs[string(name)] = readSpec(r, field)
			})
			return
		}
		r.list(field, maxSpecs, func(i int) { q.names = append(q.names, string(r.text(element(field, i)))) })
	})
	r.end()
	return q, r.err
}

// change obeys a request and returns the specs that it is about.
func (s *Service) change(q *specsRequest) (map[string]*hybrid.Coordinator, *requestError) {
	about := map[string]*hybrid.Coordinator{}
	if q.what == "set" {
		made, err := q.coordinators()
		if err != nil {
			return nil, err
		}
		about = made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch q.what {
	case "":
		maps.Copy(about, s.mu.specs)
	case "set":
		more := 0
		for name := range about {
			if s.mu.specs[name] == nil {
				more++
			}
		}
		if len(s.mu.specs)+more > maxSpecs {
			return nil, faulty("/set", "there would be %d specs, %d is the limit", len(s.mu.specs)+more, maxSpecs)
		}
		maps.Copy(s.mu.specs, about)
	default:
		for i, name := range q.names {
			if about[name] = s.mu.specs[name]; about[name] == nil {
				return nil, faulty(q.at(i), "there is no spec named %s", quoted(name))
			}
		}
		if q.what == "remove" {
			for name := range about {
				delete(s.mu.specs, name)
			}
		}
	}
	return about, nil
}

// coordinators makes those of all specs to be set. It fails with the reasons against all of them.
func (q *specsRequest) coordinators() (map[string]*hybrid.Coordinator, *requestError) {
	made := make(map[string]*hybrid.Coordinator, len(q.names))
	var bad []string
	field := ""
	for i, name := range q.names {
		why := checkSpecName(name)
		if why == "" {
			c, err := newCoordinator(q.specs[name])
			if err == nil {
				made[name] = c
				continue
			}
			why = err.Error()
		}
		if field == "" {
			field = q.at(i)
			bad = append(bad, why)
		} else {
			bad = append(bad, dotted(q.at(i))+": "+why)
		}
	}
	if len(bad) > 0 {
		return nil, faulty(field, "%s", strings.Join(bad, "; "))
	}
	return made, nil
}

// appendSpecs appends the answer with these specs, in the order of their names.
func appendSpecs(out []byte, specs map[string]*hybrid.Coordinator) []byte {
	out = append(out, `{"specs": {`...)
	for i, name := range slices.Sorted(maps.Keys(specs)) {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = append(appendText(out, name), ": "...)
		out = appendSpec(out, specs[name].Spec())
	}
	return append(out, "}}\n"...)
}
