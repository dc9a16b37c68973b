package control

// specsAnswer is the answer of .kvfs/specs.
type specsAnswer struct {
	Specs map[string]map[string]any `json:"specs"`
	refusal
}

func (c *dialogue) specs(request string) specsAnswer {
	c.t.Helper()
	var a specsAnswer
	decode(c.t, string(c.raw(request)), &a)
	if a.Error != "" {
		c.t.Fatalf("specs %s: %s (%s)", cut(request), a.Error, a.Field)
	}
	return a
}
