package hybrid

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// validateVector is a question to one function of the engine, and its answer.
type validateVector struct {
	ID  string `json:"id"`
	Fn  string `json:"fn"`
	Tag string `json:"tag"`
	In  struct {
		vectorConfig
		CacheBlockSize int    `json:"cache_block_size"`
		PCP            int    `json:"pcp"`
		DCP            int    `json:"dcp"`
		Role           string `json:"kv_role"`
		Extra          struct {
			Lookup     *bool `json:"enable_lookup"`
			SaveDecode bool  `json:"save_decode_cache"`
		} `json:"extra_config"`
		MatchUnit     *int  `json:"prefix_match_unit"` // these three change nothing
		Connector     *bool `json:"connector"`
		PrefixCaching *bool `json:"prefix_caching"`

		Cfg        *vectorConfig `json:"cfg"`
		Hashes     []string      `json:"hashes"`
		MaxLen     int           `json:"max_len"`
		ApplyEagle bool          `json:"apply_eagle"`
		Exists     []string      `json:"exists"`
		Len        int           `json:"len"`
		Start      int           `json:"start"`
		Prompt     *int          `json:"prompt"`
	} `json:"in"`
	OK  bool `json:"ok"`
	Out struct {
		CapacityOnly bool      `json:"capacity_only"`
		SBS          int       `json:"sbs"`
		HBS          int       `json:"hbs"`
		Fine         bool      `json:"fine"`
		Align        int       `json:"align"`
		Classes      [][]int   `json:"classes"`
		ClassEagle   []bool    `json:"class_eagle"`
		EagleGroups  []int     `json:"eagle_groups"`
		Hit          int       `json:"hit"`
		Masks        []*string `json:"masks"`
	} `json:"out"`
	ErrType string   `json:"err_type"`
	Err     string   `json:"err"`
	Frag    []string `json:"frag"`
	Note    string   `json:"note"`
}

// upstreamPrefix begins a refusal there as "kvfs does not support: " does here.
const upstreamPrefix = "MooncakeStoreConnector does not support: "

func (v *validateVector) check() error {
	in := &v.In
	cfg := in.vectorConfig
	if in.Cfg != nil {
		cfg = *in.Cfg
	}
	spec := cfg.spec()
	spec.CacheBlockSize, spec.PrefillContext, spec.DecodeContext = in.CacheBlockSize, in.PCP, in.DCP
	switch v.Fn {
	case "coordinator_init", "find", "store_mask":
		c, err := build(spec.withDefaults())
		switch {
		case v.Fn == "coordinator_init":
			return v.checkCoordinator(c, spec, err)
		case err != nil:
			return err
		case v.Fn == "find":
			return v.checkFind(c, spec)
		case !v.OK:
			_, err := c.Store(in.Len, in.Start, -1)
			return v.same(err)
		}
		return checkStored(c, storeAnswer{Len: in.Len, Start: in.Start, Prompt: in.Prompt, Masks: v.Out.Masks})
	}
	spec.HashBlockSize = 0 // one that goes with all groups
	for _, g := range spec.Groups {
		spec.HashBlockSize = gcd(spec.HashBlockSize, g.BlockSize)
	}
	spec.HashBlockSize = max(spec.HashBlockSize, 1)
	var r reasons
	switch v.Fn {
	case "validate_kv_cache_config":
		full := spec.withDefaults()
		full.unsupported(&r)
		return v.checkNew(spec, r.err())
	case "retention_interval":
		spec.retention(&r)
		return v.checkNew(spec, r.err())
	case "connector_init":
		return v.checkConnector(spec)
	case "resolve_block_sizes":
		scheduler, hash, err := BlockSizes(in.CacheBlockSize, spec.Groups)
		if scheduler != v.Out.SBS || hash != v.Out.HBS {
			return fmt.Errorf("sizes: %d, %d, want %d, %d", scheduler, hash, v.Out.SBS, v.Out.HBS)
		}
		return v.same(err)
	}
	return fmt.Errorf("unknown function %q", v.Fn)
}

// same checks that err is there if and only if it should be, and gives the reasons.
// Crashes have no reasons: kvfs refuses with its own.
func (v *validateVector) same(err error) error {
	if (err == nil) != v.OK {
		return fmt.Errorf("%s: %w, want ok %v %s", v.Fn, err, v.OK, v.Err)
	}
	if v.OK || v.ErrType == "ZeroDivisionError" || v.ErrType == "IndexError" {
		return nil
	}
	for _, frag := range v.Frag {
		if frag == upstreamPrefix {
			frag = "kvfs does not support: "
		}
		if !strings.Contains(err.Error(), frag) {
			return fmt.Errorf("%s: %w: does not say %q", v.Fn, err, frag)
		}
	}
	return nil
}

// checkNew checks the reasons of one part of the check, and that New gives them too. New also
// refuses kinds that nobody knows or that hide in a wrapper.
func (v *validateVector) checkNew(spec Spec, part error) error {
	if err := v.same(part); err != nil {
		return err
	}
	_, err := New(spec)
	if !v.OK {
		return v.same(err)
	}
	for _, g := range spec.Groups {
		if g.Kind == "enc" || g.Uniform && (g.Kind == Cross || g.Kind == Mamba && g.BlockSize != spec.CacheBlockSize) {
			if err == nil {
				return fmt.Errorf("New accepts %+v", g)
			}
		}
	}
	return nil
}

func (v *validateVector) checkConnector(spec Spec) error {
	extra := v.In.Extra
	spec.CapacityOnly = v.In.Role == "kv_consumer" && extra.Lookup != nil && !*extra.Lookup && !extra.SaveDecode
	c, err := New(spec)
	if err := v.same(err); err != nil || !v.OK {
		return err
	}
	everything := func(int, int) bool { return true }
	if got := c.Lookup(1024, 1024/spec.HashBlockSize, everything).Tokens == 0; got != v.Out.CapacityOnly {
		return fmt.Errorf("capacity only: %v, want %v", got, v.Out.CapacityOnly)
	}
	return nil
}

func (v *validateVector) checkCoordinator(c *Coordinator, spec Spec, err error) error {
	if err := v.same(err); err != nil {
		return err
	}
	if !v.OK {
		_, err := New(spec)
		return v.same(err)
	}
	got := v.Out
	got.Fine, got.Align, got.Classes, got.ClassEagle, got.EagleGroups = c.fine, c.align, nil, nil, nil
	for _, cl := range c.classes {
		got.Classes = append(got.Classes, cl.groups)
		got.ClassEagle = append(got.ClassEagle, cl.eagle)
		if cl.eagle {
			got.EagleGroups = append(got.EagleGroups, cl.groups...)
		}
	}
	slices.Sort(got.EagleGroups)
	if fmt.Sprint(got) != fmt.Sprint(v.Out) {
		return fmt.Errorf("coordinator: %v, want %v", got, v.Out)
	}
	return nil
}

func (v *validateVector) checkFind(c *Coordinator, spec Spec) error {
	p, err := newPresence(v.In.Hashes, v.In.Exists, nil, len(spec.Groups))
	if err != nil {
		return err
	}
	switch v.ErrType {
	case "", "IndexError", "ValueError":
		want := answerOr[findAnswer]{value: findAnswer{Hit: v.Out.Hit}, err: v.ErrType}
		for _, mask := range v.Out.Masks {
			want.value.Masks = append(want.value.Masks, *mask)
		}
		err := checkFound(c, v.In.MaxLen, len(v.In.Hashes), v.In.ApplyEagle, p, want)
		return errors.Join(err, p.err)
	case "NotImplementedError":
		_, err = New(spec)
		if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), "CrossAttentionSpec") {
			return fmt.Errorf("New: %w, want a refusal of cross attention", err)
		}
		return nil
	}
	_, err = New(spec) // what upstream refuses at the first question, New refuses
	return v.same(err)
}
