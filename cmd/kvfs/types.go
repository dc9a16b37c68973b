package main

import (
	"errors"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/object"
	"github.com/kvfs/kvfs/tiers/driver"
)

// tierTypes returns the types of tiers of this program. Add a type here, in one line.
func tierTypes() (*driver.Registry, error) {
	r := &driver.Registry{}
	return r, errors.Join(
		r.Register(config.TierMemory, nil),
		r.Register(config.TierDisk, nil),
		r.Register(config.TierPeer, nil),
		r.Register(config.TierObject, object.New),
	)
}

// load reads the configuration of a program that has these types of tiers.
func load(src config.Sources) (*config.Config, error) {
	types, err := tierTypes()
	if err != nil {
		return nil, err
	}
	src.TierTypes = types
	return config.Load(src)
}
