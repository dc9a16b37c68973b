package query

import (
	"context"
	"io"
	"math"
	"time"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/hybrid"
	"github.com/kvfs/kvfs/tiers/names"
)

// The members of requests.
const (
	hasOp uint32 = 1 << iota
	hasKeys
	hasHashes
	hasTemplate
	hasGroup
	hasRanks
	hasRequest
	hasLease
	hasPromote
	hasDeadline
	hasSpec
	hasNumTokens
	hasCached
	hasFetch
	hasHitTokens
	hasNumHashes
	hasStart
	hasPromptTokens
	hasEscaped
	hasProgress
)

const (
	nameMembers     = hasKeys | hasHashes | hasTemplate | hasGroup | hasEscaped
	lookMembers     = hasRanks | hasRequest | hasLease | hasPromote | hasDeadline
	prefetchMembers = nameMembers | hasRanks | hasRequest | hasProgress
	queryMembers    = hasProgress - 1 // all before it
)

// member is a member of requests, with its name and its bit. A constant name saves an allocation.
type member struct {
	name string
	bit  uint32
}

// members is constant.
var members = func() map[string]member {
	all := map[string]member{}
	for i, name := range []string{"op", "keys", "hashes", "template", "group", "ranks", "request", "lease", "promote",
		"deadline_ms", "spec", "num_tokens", "cached", "fetch", "hit_tokens", "num_hashes", "start", "prompt_tokens", "escaped", "progress"} {
		all[name] = member{name, 1 << i}
	}
	return all
}()

// maxTokens bounds lengths of prompts. It is far beyond any prompt, and far from an overflow.
const maxTokens = 1 << 40

// query is a request to .kvfs/query or .kvfs/prefetch after it was read.
type query struct {
	has   uint32   // members in the request
	order []string // the same, in the order of the request

	op       []byte
	names    nameList
	request  string
	lease    bool
	promote  bool
	fetch    bool
	progress bool
	deadline int64 // ms

	specName []byte // of a spec that was set
	spec     *hybrid.Spec

	numTokens, cached, hitTokens, numHashes, start, promptTokens int64
}

// operation is one operation of .kvfs/query.
type operation struct {
	may  uint32 // members that it accepts
	must uint32 // members that it requires
	do   func(*Service, context.Context, *scratch, io.Writer) *strict.Error
}

// operations is constant.
var operations = map[string]operation{
	"exists": {hasOp | nameMembers | lookMembers, 0, (*Service).exists},
	"longest_hit": {hasOp | hasSpec | hasHashes | hasTemplate | hasEscaped | hasNumTokens | hasCached | hasFetch | lookMembers,
		hasSpec | hasHashes, (*Service).longestHit},
	"load_mask":  {hasOp | hasSpec | hasHitTokens | hasCached | hasNumHashes, hasSpec | hasHitTokens, (*Service).loadMask},
	"store_mask": {hasOp | hasSpec | hasNumTokens | hasStart | hasPromptTokens, hasSpec | hasNumTokens, (*Service).storeMask},
	"release":    {hasOp | hasRequest, hasRequest, (*Service).release},
	"why":        {hasOp | nameMembers, 0, (*Service).why},
}

// parse reads a request into sc.q. allowed are the members that the file accepts.
func (sc *scratch) parse(request []byte, allowed uint32) *strict.Error {
	r, q := &sc.read, &sc.q
	r.reset(request)
	*q = query{lease: true}
	q.names.ranks = 1
	q.promptTokens = -1
	r.object("", func(name []byte, field string) {
		m, ok := members[string(name)]
		if !ok || m.bit&allowed == 0 {
			r.fail(strict.Faulty(field, "there is no such member"))
			return
		}
		q.has |= m.bit
		q.order = append(q.order, field)
		sc.member(m.bit, field)
	})
	r.end()
	if r.err != nil {
		return r.err
	}
	if err := q.checkNames(); err != nil {
		return err
	}
	return q.names.unescape()
}

// member reads the value of one member.
func (sc *scratch) member(bit uint32, field string) {
	r, q := &sc.read, &sc.q
	switch bit {
	case hasOp:
		q.op = r.text(field)
	case hasKeys, hasHashes:
		if q.has&hasKeys != 0 && q.has&hasHashes != 0 {
			r.fail(strict.Faulty(field, "keys and hashes exclude each other"))
			return
		}
		sc.items = r.texts(field, maxNames, sc.items[:0])
		q.names.list, q.names.items, q.names.count = field, sc.items, len(sc.items)
	case hasTemplate:
		q.names.template = r.text(field)
	case hasGroup:
		q.names.group = r.text(field)
	case hasRanks:
		q.names.ranks = int(r.number(field, 1, maxRanks))
	case hasRequest:
		q.request = string(r.text(field))
		if len(q.request) > maxRequestID {
			r.fail(strict.Faulty(field, "has %d bytes, %d is the limit", len(q.request), maxRequestID))
		}
	case hasLease, hasPromote, hasFetch, hasEscaped, hasProgress:
		*q.flag(bit) = r.bool(field)
	case hasDeadline:
		q.deadline = r.number(field, 0, math.MaxInt32)
	case hasSpec:
		sc.spec(field)
	default:
		*q.length(bit) = r.number(field, 0, maxTokens)
	}
}

// flag returns the boolean member of a bit.
func (q *query) flag(bit uint32) *bool {
	switch bit {
	case hasLease:
		return &q.lease
	case hasPromote:
		return &q.promote
	case hasFetch:
		return &q.fetch
	case hasEscaped:
		return &q.names.escaped
	}
	return &q.progress
}

// length returns the member of a bit that holds a number of tokens or hashes.
func (q *query) length(bit uint32) *int64 {
	switch bit {
	case hasNumTokens:
		return &q.numTokens
	case hasCached:
		return &q.cached
	case hasHitTokens:
		return &q.hitTokens
	case hasNumHashes:
		return &q.numHashes
	case hasStart:
		return &q.start
	}
	return &q.promptTokens
}

// spec reads the name of a spec, or a spec itself.
func (sc *scratch) spec(field string) {
	if sc.read.begins('{') {
		sc.q.spec = new(hybrid.Spec)
		sc.read.decode(sc.q.spec)
		return
	}
	if sc.read.begins('"') {
		sc.q.specName = sc.read.text(field)
		return
	}
	got := sc.read.dec.PeekKind()
	if got == 0 {
		sc.read.value(field, '"') // fails with what is wrong
		return
	}
	sc.read.fail(strict.Faulty(field, "got %s, want the name of a spec, or an object", strict.KindName(got)))
}

// checkNames checks the members that name blocks. The operation decides which lists it needs.
func (q *query) checkNames() *strict.Error {
	if q.has&hasKeys == 0 {
		return nil
	}
	for _, field := range q.order {
		m := members[field[1:]]
		if m.bit&(hasTemplate|hasGroup) != 0 || m.bit == hasRanks && q.names.ranks > 1 {
			return strict.Faulty(field, "is of no use with keys, which are whole paths")
		}
	}
	return nil
}

// allow fails at the first member that an operation does not accept.
func (q *query) allow(may uint32, op string) *strict.Error {
	for _, field := range q.order {
		if members[field[1:]].bit&may == 0 {
			return strict.Faulty(field, "is no member of %s", op)
		}
	}
	return nil
}

// require fails if a required member is missing.
func (q *query) require(must uint32) *strict.Error {
	for _, name := range []string{"spec", "hashes", "hit_tokens", "num_tokens", "request"} {
		if bit := members[name].bit; bit&must != 0 && q.has&bit == 0 {
			return strict.Faulty("/"+name, "is missing")
		}
	}
	return nil
}

// listed fails unless blocks are named.
func (q *query) listed() *strict.Error {
	if q.has&(hasKeys|hasHashes) == 0 {
		return &strict.Error{Why: "neither keys nor hashes are there"}
	}
	return nil
}

// presence returns how the engine is to look.
func (q *query) presence() names.PresenceOptions {
	o := names.PresenceOptions{Lease: q.lease}
	if q.has&hasDeadline != 0 {
		o.Deadline = time.Duration(q.deadline) * time.Millisecond
		if q.deadline == 0 {
			o.Deadline = -1
		}
	}
	return o
}
