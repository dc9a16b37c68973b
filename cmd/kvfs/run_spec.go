package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/client"
	"github.com/kvfs/kvfs/cmd/kvfs/launch"
	"github.com/kvfs/kvfs/cmd/kvfs/mounts"
	"github.com/kvfs/kvfs/cmd/kvfs/plan"
	"github.com/kvfs/kvfs/tiers/hybrid"
)

// setSpec sets the spec of a hybrid model that vLLM will serve, under the model's name, unless
// the mount has one of that name. The command does not depend on it, so faults are only logged.
func (r *runner) setSpec(dir string, p *launch.Plan) {
	if p.Model == nil && p.NoModel == "" {
		return
	}
	spec, err := specOf(p)
	if err != nil {
		r.log.Debug("no spec of the model is set", zap.Error(err))
		return
	}
	log := r.log.With(zap.String("spec", p.Model.Name), zap.Int("groups", len(spec.Groups)))
	before, err := addSpec(dir, p.Model.Name, spec)
	switch {
	case err != nil:
		log.Info("no spec of the model is set", zap.Error(err))
	case before == nil:
		log.Info("the spec of the model is set", zap.String("from", p.Model.Path))
	case !reflect.DeepEqual(before, spec):
		log.Info("the mount has another spec of this name: it stays. To remove it, run: kvfs specs DIR remove NAME")
	}
}

// specOf returns the spec from the model's config.json. It fails if there is none.
func specOf(p *launch.Plan) (*hybrid.Spec, error) {
	m := p.Model
	if m == nil {
		return nil, errors.New(p.NoModel)
	}
	if info, err := os.Stat(m.Path); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("%s is not a local directory", m.Path)
	}
	model, err := readModel(filepath.Join(m.Path, "config.json"), nil)
	if err != nil {
		return nil, err
	}
	return plan.SpecOf(model, plan.Options{TP: m.TP, PP: m.PP, BlockTokens: m.BlockTokens, KVDtype: m.KVDtype, StateDtype: m.StateDtype})
}

// addSpec sets a spec of the mount at dir. If the mount has one of that name, addSpec keeps and returns it.
func addSpec(dir, name string, spec *hybrid.Spec) (before *hybrid.Spec, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), mounts.Timeout)
	defer cancel()
	c, err := client.System()
	if err != nil {
		return nil, err
	}
	d, err := c.Dial(dir, "specs")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var all struct {
		Specs map[string]*hybrid.Spec `json:"specs"`
	}
	if err := d.AskInto(ctx, struct{}{}, &all); err != nil || all.Specs[name] != nil {
		return all.Specs[name], err
	}
	return nil, d.AskInto(ctx, map[string]any{"set": map[string]*hybrid.Spec{name: spec}}, &struct{}{})
}
