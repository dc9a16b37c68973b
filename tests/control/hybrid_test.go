package control

// hitAnswer is the answer of longest_hit.
type hitAnswer struct {
	Op      string     `json:"op"`
	Tokens  int        `json:"hit_tokens"`
	Capped  bool       `json:"capped"`
	Pending int        `json:"pending"`
	Late    int        `json:"late"`
	Groups  []hitGroup `json:"groups"`
	refusal
}

type hitGroup struct {
	Name  string `json:"name"`
	Load  string `json:"load"`
	Fetch []int  `json:"fetch"`
}

func (c *dialogue) longestHit(request obj) hitAnswer {
	c.t.Helper()
	request["op"] = "longest_hit"
	var a hitAnswer
	c.ask(request, &a)
	if a.Error != "" {
		c.t.Fatalf("longest_hit: %s (%s)", a.Error, a.Field)
	}
	return a
}

// layer is a group of the naive model: blocks of 16 tokens, as hash blocks are.
type layer struct {
	name, kind string
	window     int // tokens
}

const tokensPerBlock = 16

// spec returns the spec of the model's layers.
func specOf(layers []layer) obj {
	var groups []obj
	for _, l := range layers {
		g := obj{"name": l.name, "kind": l.kind, "block_size": tokensPerBlock}
		if l.window > 0 {
			g["window"] = l.window
		}
		groups = append(groups, g)
	}
	return obj{"hash_block_size": tokensPerBlock, "groups": groups}
}
