package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kvfs/kvfs/cmd/kvfs/config/scalar"
)

// Types of tiers whose settings are sections of their own.
const (
	TierMemory = "memory"
	TierDisk   = "disk"
	TierPeer   = "peer"
)

// Tier is one entry of the list of tiers.
type Tier struct {
	Type         string      `kvfs:"type" required:"true" example:"disk" help:"memory, disk, peer, or a further type that this program was built with. memory, disk and peer take no other key here; their settings are in sections of their own. A further type has its own keys besides these."`
	Name         string      `kvfs:"name" check:"name" example:"-" auto:"the type" help:"Name of the tier. No two tiers have the same."`
	Cascade      string      `kvfs:"cascade" example:"-" enum:"async|sync|on_evict|off" default:"async" help:"When a committed block is copied to it; see disk.cascade."`
	CascadeQueue scalar.Size `kvfs:"cascade_queue" example:"-" default:"0" help:"Most bytes that wait to be copied to it; see disk.cascade_queue."`
	Admission    string      `kvfs:"admission" example:"-" enum:"all|second_hit" default:"all" help:"Which blocks are copied to it; see disk.admission."`

	// Options are those of its type, as TierTypes made them; nil for memory, disk and peer.
	Options any
}

// TierTypes are the types that an entry of the list may have. A driver.Registry is one.
type TierTypes interface {
	// Types lists their names.
	Types() []string
	// Options returns a pointer to a new struct for the options of a type, fields of which have the tags of
	// Config; nil if it has none. If it has a method Validate() error, that checks them once all keys are decoded.
	Options(name string) any
}

// settings returns the settings of an entry: those of all entries, and those of Options. s is the list.
func (t *Tier) settings(s *setting) (common, own []*setting) {
	if t.Options == nil {
		return s.settings[:1], nil // the type
	}
	return s.settings, settingsOf(reflect.TypeOf(t.Options).Elem(), s.path+"[].", true)
}

// tier decodes one entry of the list of tiers, of which s is the setting. Without its type none of its other keys can be.
func (d document) tier(t *Tier, n *yaml.Node, s *setting, path string) {
	common, before := reflect.ValueOf(t).Elem(), len(d.errs)
	if n.Kind == yaml.MappingNode && !d.tierType(t, n, s.settings[0], join(path, s.settings[0].key)) {
		return
	}
	all, own := t.settings(s)
	options := reflect.ValueOf(t.Options)
	if t.Options != nil {
		options = options.Elem()
		setDefaults(options, own)
	}
	d.fields(n, &setting{settings: slices.Concat(all, own)}, path, func(child *setting) reflect.Value {
		if slices.Contains(own, child) {
			return options.Field(child.index)
		}
		return common.Field(child.index)
	})
	d.required(options, &setting{settings: own}, path, d.origin(n))
	if v, ok := t.Options.(interface{ Validate() error }); ok && len(d.errs) == before {
		if err := v.Validate(); err != nil {
			d.fail(d.origin(n), path, scalar.Violate(scalar.ErrInvalid, "%v", err))
		}
	}
}

// tierType decodes the type of an entry and makes the options of that type. It reports whether there is such a type.
func (d document) tierType(t *Tier, n *yaml.Node, s *setting, path string) bool {
	o := d.origin(n)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if resolve(n.Content[i]).Value == s.key {
			o = d.origin(resolve(n.Content[i+1]))
			d.setting(reflect.ValueOf(&t.Type).Elem(), n.Content[i+1], s, path)
			break
		}
	}
	var types []string
	if d.types != nil {
		types = d.types.Types()
	}
	switch known := strings.Join(types, ", "); {
	case d.bad[path]:
	case t.Type == "":
		d.fail(o, path, scalar.Violate(scalar.ErrInvalid, "it is missing; one of %s", known))
	case !slices.Contains(types, t.Type):
		d.fail(o, path, scalar.Violate(scalar.ErrEnum, "unknown value %q; one of %s", t.Type, known))
	default:
		t.Options = d.types.Options(t.Type)
		return true
	}
	return false
}

// validateTiers checks that the tiers stand where they can, and that each has a name of its own.
func (l *loader) validateTiers() {
	seen := map[string]int{}
	for i, t := range l.cfg.Tiers {
		at := fmt.Sprintf("tiers[%d]", i)
		if !l.good(at, join(at, "type"), join(at, "name")) {
			continue
		}
		fail := func(format string, args ...any) {
			l.fail(l.cfg.Origin(at), at, scalar.Violate(scalar.ErrInvalid, format, args...))
		}
		name := cmp.Or(t.Name, t.Type)
		if other, taken := seen[name]; taken {
			fail("the name %q is that of tiers[%d], too", name, other)
			continue
		}
		seen[name] = i
		if why := l.cfg.misplaced(i, name); why != "" {
			fail("%s", why)
		}
	}
	if n := len(l.cfg.Below()); n > maxTiers {
		l.fail(l.cfg.Origin("tiers"), "tiers", scalar.Violate(scalar.ErrRange, "%d tiers below memory: want at most %d", n, maxTiers))
	}
}

// misplaced returns why the i-th tier, called name, cannot stand in the list, "" if it can.
func (c *Config) misplaced(i int, name string) string {
	t := &c.Tiers[i]
	switch {
	case t.Options != nil && (name == TierMemory || name == TierDisk || strings.HasPrefix(name, TierPeer)):
		return fmt.Sprintf("the name %q is kept for memory, disk and peers", name)
	case t.Type == TierMemory && i > 0:
		return "memory is the first tier: list it first, or leave it out"
	case t.Type == TierPeer && i < len(c.Tiers)-1:
		return "peers are the last tier: list them last, or leave them out"
	case t.Type == TierDisk && len(c.Disk.Dirs) == 0:
		return "it needs " + diskDirs
	case t.Type == TierPeer && c.Bind == "":
		return "it needs bind"
	}
	return ""
}

// maxTiers bounds the tiers between memory and peers: the engine has room for one more.
const maxTiers = 15

// Below returns the tiers of this machine below memory, fastest first: those of the list, and that of
// the disk, which comes first unless it is listed elsewhere.
func (c *Config) Below() []Tier {
	below := slices.DeleteFunc(slices.Clone(c.Tiers), func(t Tier) bool { return t.Type == TierMemory || t.Type == TierPeer })
	at := slices.IndexFunc(below, func(t Tier) bool { return t.Type == TierDisk })
	if at < 0 && len(c.Disk.Dirs) > 0 {
		at, below = 0, slices.Insert(below, 0, Tier{})
	}
	if at >= 0 {
		below[at] = Tier{Type: TierDisk, Name: TierDisk, Cascade: c.Disk.Cascade, CascadeQueue: c.Disk.CascadeQueue, Admission: c.Disk.Admission}
	}
	return below
}

// TypeOf returns the type of the tier with that name.
func (c *Config) TypeOf(name string) string {
	for _, t := range c.Tiers {
		if t.Name == name {
			return t.Type
		}
	}
	return name
}

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
		n := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{textNode("type"), textNode(TierObject)}}
		if err := addPairs(n, text, "url=s3://BUCKET/PREFIX,..."); err != nil {
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
		l.textDocument(o).tier(&t, n, s, path)
		l.cfg.Tiers = slices.Insert(l.cfg.Tiers, at, t)
		l.cfg.origins["tiers"] = o
	}
}
