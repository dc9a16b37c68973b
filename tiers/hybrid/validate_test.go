package hybrid

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

type validateVector struct {
	ID      string          `json:"id"`
	Fn      string          `json:"fn"`
	Tag     string          `json:"tag"`
	In      json.RawMessage `json:"in"`
	OK      bool            `json:"ok"`
	Out     json.RawMessage `json:"out"`
	ErrType string          `json:"err_type"`
	Err     string          `json:"err"`
	Frag    []string        `json:"frag"`
	Note    string          `json:"note"`
}

// upstreamPrefix begins a refusal there as "kvfs does not support: " does here.
const upstreamPrefix = "MooncakeStoreConnector does not support: "

func (v *validateVector) check() error {
	switch v.Fn {
	case "validate_kv_cache_config":
		return v.checkConfig()
	case "connector_init":
		return v.checkConnector()
	case "coordinator_init":
		return v.checkCoordinator()
	case "resolve_block_sizes":
		return v.checkSizes()
	case "find":
		return v.checkFind()
	case "store_mask":
		return v.checkStore()
	case "retention_interval":
		return v.checkRetention()
	}
	return fmt.Errorf("unknown function %q", v.Fn)
}

// same checks that err is there if and only if it should be, and gives the reasons.
// Crashes have no reasons: kvfs refuses with its own.
func (v *validateVector) same(err error) error {
	if (err == nil) != v.OK {
		return fmt.Errorf("%s: %w, want ok %v %s", v.Fn, err, v.OK, v.Err)
	}
	if v.OK {
		return nil
	}
	if v.ErrType == "ZeroDivisionError" || v.ErrType == "IndexError" {
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

func (v *validateVector) checkConfig() error {
	var in struct {
		CacheBlockSize int           `json:"cache_block_size"`
		PCP            int           `json:"pcp"`
		DCP            int           `json:"dcp"`
		Groups         []vectorGroup `json:"groups"`
	}
	if err := strict(v.In, &in); err != nil {
		return err
	}
	groups, err := groupsOf(in.Groups)
	if err != nil {
		return err
	}
	spec := Spec{HashBlockSize: hashOf(groups), CacheBlockSize: in.CacheBlockSize, PrefillContext: in.PCP, DecodeContext: in.DCP, Groups: groups}
	full := spec.withDefaults()
	var r reasons
	full.unsupported(&r)
	if err := v.same(r.err()); err != nil {
		return err
	}
	// New refuses all that, and kinds that nobody knows or that hide in a wrapper.
	_, err = New(spec)
	if !v.OK {
		return v.same(err)
	}
	for _, g := range in.Groups {
		if g.K == "enc" || g.Uni && (g.K == "cross" || g.K == "mamba" && g.BS != in.CacheBlockSize) {
			if err == nil {
				return fmt.Errorf("New accepts %+v", g)
			}
		}
	}
	return nil
}

// hashOf returns a hash block size that goes with all groups.
func hashOf(groups []Group) int {
	hash := 0
	for _, g := range groups {
		hash = gcd(hash, g.BlockSize)
	}
	return max(hash, 1)
}

func (v *validateVector) checkConnector() error {
	var in struct {
		Role  string `json:"kv_role"`
		Extra struct {
			Lookup     *bool `json:"enable_lookup"`
			SaveDecode bool  `json:"save_decode_cache"`
		} `json:"extra_config"`
		Groups         []vectorGroup `json:"groups"`
		PCP            int           `json:"pcp"`
		DCP            int           `json:"dcp"`
		CacheBlockSize int           `json:"cache_block_size"`
	}
	if err := strict(v.In, &in); err != nil {
		return err
	}
	groups, err := groupsOf(in.Groups)
	if err != nil {
		return err
	}
	spec := Spec{HashBlockSize: hashOf(groups), CacheBlockSize: in.CacheBlockSize, PrefillContext: in.PCP, DecodeContext: in.DCP, Groups: groups}
	spec.CapacityOnly = in.Role == "kv_consumer" && in.Extra.Lookup != nil && !*in.Extra.Lookup && !in.Extra.SaveDecode
	c, err := New(spec)
	if err := v.same(err); err != nil || !v.OK {
		return err
	}
	var out struct {
		CapacityOnly bool `json:"capacity_only"`
	}
	if err := strict(v.Out, &out); err != nil {
		return err
	}
	everything := func(int, int) bool { return true }
	if got := c.Lookup(1024, 1024/max(spec.HashBlockSize, 1), everything).Tokens == 0; got != out.CapacityOnly {
		return fmt.Errorf("capacity only: %v, want %v", got, out.CapacityOnly)
	}
	return nil
}

func (v *validateVector) checkCoordinator() error {
	var cfg vectorConfig
	if err := strict(v.In, &cfg); err != nil {
		return err
	}
	spec, err := cfg.spec()
	if err != nil {
		return err
	}
	c, err := build(spec.withDefaults())
	if err := v.same(err); err != nil {
		return err
	}
	if !v.OK {
		_, err := New(spec)
		return v.same(err)
	}
	var want struct {
		Fine        bool    `json:"fine"`
		Align       int     `json:"align"`
		Classes     [][]int `json:"classes"`
		ClassEagle  []bool  `json:"class_eagle"`
		EagleGroups []int   `json:"eagle_groups"`
	}
	if err := strict(v.Out, &want); err != nil {
		return err
	}
	got := want
	got.Fine, got.Align, got.Classes, got.ClassEagle, got.EagleGroups = c.fine, c.align, nil, nil, nil
	flagged := make([]bool, len(spec.Groups))
	for _, cl := range c.classes {
		got.Classes = append(got.Classes, cl.groups)
		got.ClassEagle = append(got.ClassEagle, cl.eagle)
		for _, g := range cl.groups {
			flagged[g] = cl.eagle
		}
	}
	for g, eagle := range flagged {
		if eagle {
			got.EagleGroups = append(got.EagleGroups, g)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("coordinator: %v, want %v", got, want)
	}
	return nil
}

func (v *validateVector) checkSizes() error {
	var in struct {
		CacheBlockSize int           `json:"cache_block_size"`
		PCP            int           `json:"pcp"` // changes nothing
		DCP            int           `json:"dcp"` // 1
		MatchUnit      *int          `json:"prefix_match_unit"`
		Connector      *bool         `json:"connector"`
		PrefixCaching  *bool         `json:"prefix_caching"`
		Groups         []vectorGroup `json:"groups"`
	}
	if err := strict(v.In, &in); err != nil {
		return err
	}
	groups, err := groupsOf(in.Groups)
	if err != nil {
		return err
	}
	scheduler, hash, err := BlockSizes(in.CacheBlockSize, groups)
	if err := v.same(err); err != nil || !v.OK {
		return err
	}
	var want struct {
		SBS int `json:"sbs"`
		HBS int `json:"hbs"`
	}
	if err := strict(v.Out, &want); err != nil {
		return err
	}
	if scheduler != want.SBS || hash != want.HBS {
		return fmt.Errorf("sizes: %d, %d, want %+v", scheduler, hash, want)
	}
	return nil
}

func (v *validateVector) checkFind() error {
	var in struct {
		Cfg        vectorConfig `json:"cfg"`
		Hashes     []string     `json:"hashes"`
		MaxLen     int          `json:"max_len"`
		ApplyEagle bool         `json:"apply_eagle"`
		Exists     []string     `json:"exists"`
	}
	if err := strict(v.In, &in); err != nil {
		return err
	}
	spec, err := in.Cfg.spec()
	if err != nil {
		return err
	}
	c, err := build(spec.withDefaults())
	if err != nil {
		return err
	}
	p, err := newPresence(in.Hashes, in.Exists, nil, len(spec.Groups))
	if err != nil {
		return err
	}
	hit, masks, err := c.Find(in.MaxLen, len(in.Hashes), in.ApplyEagle, p.exists(len(spec.Groups)))
	if p != nil && p.err != nil {
		return p.err
	}
	switch {
	case v.OK:
		var want findAnswer
		if err := errors.Join(err, strict(v.Out, &want)); err != nil {
			return err
		}
		if hit != want.Hit || fmt.Sprint(texts(masks)) != fmt.Sprint(want.Masks) {
			return fmt.Errorf("find: %d %v, want %+v", hit, texts(masks), want)
		}
		return nil
	case v.ErrType == "IndexError" && len(spec.Groups) == 0:
		// No groups are no hit, not an error (C18).
		if hit != 0 || len(masks) != 0 || err != nil {
			return fmt.Errorf("find: %d %v %w", hit, masks, err)
		}
		return nil
	case v.ErrType == "IndexError" || v.ErrType == "ValueError":
		// Upstream crashes beyond the hashes and below 0. Here that is an error.
		if !errors.Is(err, ErrRange) {
			return fmt.Errorf("find: %w, want a range error", err)
		}
		return nil
	case v.ErrType == "NotImplementedError":
		_, err = New(spec)
		if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), "CrossAttentionSpec") {
			return fmt.Errorf("New: %w, want a refusal of cross attention", err)
		}
		return nil
	}
	_, err = New(spec) // what upstream refuses at the first question, New refuses
	return v.same(err)
}

func (v *validateVector) checkStore() error {
	var in struct {
		Cfg    vectorConfig `json:"cfg"`
		Len    int          `json:"len"`
		Start  int          `json:"start"`
		Prompt *int         `json:"prompt"`
	}
	if err := strict(v.In, &in); err != nil {
		return err
	}
	spec, err := in.Cfg.spec()
	if err != nil {
		return err
	}
	c, err := build(spec.withDefaults())
	if err != nil {
		return err
	}
	if !v.OK {
		_, err := c.Store(in.Len, in.Start, -1)
		return v.same(err)
	}
	want := storeAnswer{Len: in.Len, Start: in.Start, Prompt: in.Prompt}
	var out struct {
		Masks []*string `json:"masks"`
	}
	if err := strict(v.Out, &out); err != nil {
		return err
	}
	want.Masks = out.Masks
	return checkStored(c, want)
}

func (v *validateVector) checkRetention() error {
	var in struct {
		Groups []vectorGroup `json:"groups"`
		Ret    *int          `json:"ret"`
		SBS    int           `json:"sbs"`
	}
	if err := strict(v.In, &in); err != nil {
		return err
	}
	groups, err := groupsOf(in.Groups)
	if err != nil {
		return err
	}
	spec := Spec{HashBlockSize: hashOf(groups), SchedulerBlockSize: in.SBS, Retention: in.Ret, Groups: groups}
	var r reasons
	spec.retention(&r)
	if err := v.same(r.err()); err != nil || v.OK {
		return err
	}
	_, err = New(spec)
	return v.same(err)
}
