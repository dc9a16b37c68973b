package query

import (
	"context"
	"io"
	"maps"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// ParseSpec makes a Coordinator of a spec in JSON, in the form of the control files.
func ParseSpec(text []byte) (*hybrid.Coordinator, error) {
	var r reader
	r.reset(text)
	var spec hybrid.Spec
	r.decode(&spec)
	if r.end(); r.err != nil {
		return nil, r.err
	}
	return hybrid.New(spec)
}

// coordinator returns the Coordinator of the spec that a request names or contains.
func (s *Service) coordinator(q *query) (*hybrid.Coordinator, *strict.Error) {
	if q.spec != nil {
		c, err := hybrid.New(*q.spec)
		if err != nil {
			return nil, strict.Faulty("/spec", "%v", err)
		}
		return c, nil
	}
	s.mu.RLock()
	c := s.mu.specs[string(q.specName)]
	s.mu.RUnlock()
	if c == nil {
		return nil, strict.Faulty("/spec", "there is none named %s", quoted(q.specName))
	}
	return c, nil
}

// SpecsFile handles .kvfs/specs. It returns the names of the specs that were set and removed.
func (s *Service) SpecsFile(_ context.Context, request []byte, answer io.Writer) (set, removed []string) {
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
	switch {
	case err != nil:
	case q.what == "set":
		set = q.names
	case q.what == "remove":
		removed = q.names
	}
	return set, removed
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

func readSpecs(r *reader, request []byte) (*specsRequest, *strict.Error) {
	r.reset(request)
	q := &specsRequest{specs: map[string]hybrid.Spec{}}
	r.object("", func(name []byte, field string) {
		if what := string(name); what != "set" && what != "get" && what != "remove" {
			r.fail(strict.Faulty(field, "there is no such member"))
			return
		}
		if q.what != "" {
			r.fail(strict.Faulty(field, "set, get and remove exclude each other"))
			return
		}
		q.what = string(name)
		if q.what == "set" {
			r.object(field, func(name []byte, field string) {
				q.names = append(q.names, string(name))
				if len(q.names) > hybrid.MaxSpecs {
					r.fail(strict.Faulty("/set", "has more than %d specs", hybrid.MaxSpecs))
					return
				}
				var spec hybrid.Spec
				r.decode(&spec)
				q.specs[string(name)] = spec
			})
			return
		}
		r.list(field, hybrid.MaxSpecs, func(i int) { q.names = append(q.names, string(r.text(element(field, i)))) })
	})
	r.end()
	return q, r.err
}

// change executes a request and returns the specs that it concerns.
func (s *Service) change(q *specsRequest) (map[string]*hybrid.Coordinator, *strict.Error) {
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
		if len(s.mu.specs)+more > hybrid.MaxSpecs {
			return nil, strict.Faulty("/set", "there would be %d specs, %d is the limit", len(s.mu.specs)+more, hybrid.MaxSpecs)
		}
		maps.Copy(s.mu.specs, about)
	default:
		for i, name := range q.names {
			if about[name] = s.mu.specs[name]; about[name] == nil {
				return nil, strict.Faulty(q.at(i), "there is no spec named %s", quoted(name))
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

// coordinators makes the Coordinators of all specs to set. It fails with the reasons against all
// specs.
func (q *specsRequest) coordinators() (map[string]*hybrid.Coordinator, *strict.Error) {
	made := make(map[string]*hybrid.Coordinator, len(q.names))
	var bad []string
	field := ""
	for i, name := range q.names {
		err := hybrid.CheckName(name)
		if err == nil {
			made[name], err = hybrid.New(q.specs[name])
		}
		if err == nil {
			continue
		}
		why := err.Error()
		if field == "" {
			field = q.at(i)
			bad = append(bad, why)
		} else {
			bad = append(bad, strict.Dotted(q.at(i))+": "+why)
		}
	}
	if len(bad) > 0 {
		return nil, strict.Faulty(field, "%s", strings.Join(bad, "; "))
	}
	return made, nil
}

// appendSpecs appends the answer with these specs, in the order of their names.
func appendSpecs(out []byte, specs map[string]*hybrid.Coordinator) []byte {
	answer := struct {
		Specs map[string]*hybrid.Spec `json:"specs"`
	}{make(map[string]*hybrid.Spec, len(specs))}
	for name, c := range specs {
		answer.Specs[name] = c.Spec()
	}
	text, _ := json.Marshal(&answer, json.Deterministic(true), jsontext.AllowInvalidUTF8(true),
		jsontext.SpaceAfterColon(true), jsontext.SpaceAfterComma(true)) // of strings and numbers, which cannot fail
	return append(append(out, text...), '\n')
}
