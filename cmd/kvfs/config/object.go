package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
	"go.yaml.in/yaml/v3"
)

// TierObject is the type of the tiers that --object adds to the list. The program registers it.
const TierObject = "object"

// flagObject and envObject add tiers on object storage. They are no setting, but text for entries of tiers.
const (
	flagObject = "object"
	envObject  = "KVFS_OBJECT"
)

// overlayObjects appends to the list the tiers that the flag, or else the variable, has as
// "key=value,key=value". They come before the peers.
func (l *loader) overlayObjects(texts []string, o Origin) {
	s := schema().find("tiers")
	for _, text := range texts {
		n, err := entryOf(text)
		if err != nil {
			l.fail(o, "", err)
			continue
		}
		var t Tier
		at := len(l.cfg.Tiers)
		if at > 0 && l.cfg.Tiers[at-1].Type == TierPeer {
			at--
		}
		path := fmt.Sprintf("tiers[%d]", len(l.cfg.Tiers))
		l.cfg.origins[path] = o
		d := document{loader: l, source: o.Source, name: o.Name}
		d.tier(&t, n, s, path)
		l.cfg.Tiers = slices.Insert(l.cfg.Tiers, at, t)
		l.cfg.origins["tiers"] = o
	}
}

// entryOf makes an entry of tiers from "key=value,key=value". A dot is between the keys of a section.
func entryOf(text string) (*yaml.Node, error) {
	leaf := func(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }
	root := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{leaf("type"), leaf(TierObject)}}
	sections := map[string]*yaml.Node{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if key = strings.TrimSpace(key); !ok {
			return nil, scalar.Violate(scalar.ErrSyntax, "%q is not key=value: want url=s3://BUCKET/PREFIX,...", part)
		}
		in := root
		if section, below, nested := strings.Cut(key, "."); nested {
			if in = sections[section]; in == nil {
				in = &yaml.Node{Kind: yaml.MappingNode}
				sections[section] = in
				root.Content = append(root.Content, leaf(section), in)
			}
			key = below
		}
		in.Content = append(in.Content, leaf(key), leaf(strings.TrimSpace(value)))
	}
	return root, nil
}
