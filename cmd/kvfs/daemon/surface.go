package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/user"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
	"github.com/kvfs/kvfs/cmd/kvfs/otlp"
	"github.com/kvfs/kvfs/cmd/kvfs/show"
	"github.com/kvfs/kvfs/cmd/kvfs/status"
	"github.com/kvfs/kvfs/fs/control"
	"github.com/kvfs/kvfs/fs/query"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/publish"
	"github.com/kvfs/kvfs/tiers/state"
)

// surface is what engines, routers and operators use besides files: the control directory, and the events for routers.
type surface struct {
	engine    *tiers.Engine
	audit     *zap.Logger
	queries   *query.Service
	lines     *publish.Lines
	publisher *publish.Publisher // nil unless it is configured

	users, gids []uint32 // users and groups that may ask, beside root and the user of the daemon
}

func media(cfg *config.Config, below []state.SecondaryOptions) map[string]string {
	names := map[string]string{"disk": cfg.Events.ZMQ.DiskMedium}
	for _, b := range below {
		if cfg.TypeOf(b.Name) == config.TierObject {
			names[b.Name] = "OBJ"
		}
	}
	return names
}

// openSurface opens the surface over an engine with the given secondary tiers.
func openSurface(ctx context.Context, cfg *config.Config, engine *tiers.Engine, below []state.SecondaryOptions, traces *otlp.Exporter, log *zap.Logger) (*surface, error) {
	s := &surface{engine: engine, audit: log.Named("audit")}
	o := query.Options{Engine: engine, Tiers: []string{"memory"}, Specs: cfg.Specs}
	if traces != nil {
		o.Traced = traces.Query
	}
	for _, b := range below {
		o.Tiers = append(o.Tiers, cfg.TypeOf(b.Name))
	}
	var err error
	if s.users, s.gids, err = controlUsers(&cfg.Control); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	if s.queries, err = query.New(o); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	if z := cfg.Events.ZMQ; z.Bind != "" || len(z.Connect) > 0 {
		s.publisher, err = publish.Open(ctx, publish.Options{
			Log: engine.Events(), Bind: z.Bind, Connect: z.Connect, Replay: z.Replay, ReplayBare: z.ReplayBare, Topic: z.Topic, Hash: z.Hash, Encoding: z.Encoding,
			Templates: z.Templates, BlockSize: z.BlockSize, Media: media(cfg, below), Snapshot: engine.Blocks, Tiers: engine.TiersOf, Logger: log.Named("zmq"),
		})
		if err != nil {
			return nil, err
		}
	}
	s.lines = publish.NewLines(engine.Events())
	return s, nil
}

func (s *surface) files() []control.File {
	if s == nil {
		return nil
	}
	return []control.File{
		{Name: "query", Open: asking(s.queries.Query), Users: s.users, Groups: s.gids},
		{Name: "prefetch", Open: asking(s.queries.Prefetch), Users: s.users, Groups: s.gids},
		{Name: "specs", Open: control.Same(s.specs), Users: s.users, Groups: s.gids},
		{Name: "events", Open: s.followEvents, Stream: true, Users: s.users, Groups: s.gids},
		control.QuotaFile(s.engine.Accounts(), s.users, s.gids, s.audit),
		{Name: "usage", Open: control.Same(control.StreamJSON(s.usage)), Users: s.users, Groups: s.gids},
		{Name: "jobs", Text: s.jobs},
		{Name: "drain", Open: control.Same(control.StreamJSON(s.drain))},
	}
}

func (s *surface) drain(ctx context.Context, _ struct{}, answer io.Writer) error {
	err := s.engine.Drain(ctx)
	control.Audit(ctx, s.audit, "drain", zap.Error(err))
	if err == nil {
		_, err = answer.Write([]byte("{}\n"))
	}
	return err
}

func (s *surface) specs(ctx context.Context, request []byte, answer io.Writer) {
	var text bytes.Buffer // the client may be gone once it has the answer
	if set, removed := s.queries.SpecsFile(ctx, request, &text); len(set)+len(removed) > 0 {
		control.Audit(ctx, s.audit, "specs", zap.Strings("set", set), zap.Strings("removed", removed))
	}
	answer.Write(text.Bytes())
}

func (s *surface) usage(_ context.Context, _ struct{}, answer io.Writer) error {
	doc := status.Lower{Groups: map[string]map[string]status.Share{}}
	for group, shares := range s.engine.Accounts().Shares() {
		tiers := map[string]status.Share{}
		for tier, share := range shares {
			tiers[tier] = status.Share(share)
		}
		doc.Groups[show.Text(string(group))] = tiers
	}
	return json.NewEncoder(answer).Encode(doc)
}

// asking makes the Open of a control file whose answers depend on the asking user.
func asking(do func(context.Context, *event.Viewer, []byte, io.Writer)) func(*event.Viewer) control.Dialogue {
	return func(as *event.Viewer) control.Dialogue {
		return func(ctx context.Context, request []byte, answer io.Writer) { do(ctx, as, request, answer) }
	}
}

// controlUsers returns the numbers of the users and of the group that may use control files. It
// fails at the first that this machine does not know.
func controlUsers(c *config.Control) (users, gids []uint32, err error) {
	for _, name := range c.Users {
		id := name
		if u, err := user.Lookup(name); err == nil {
			id = u.Uid
		}
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, nil, fmt.Errorf("control.users: this machine has no user %q", name)
		}
		users = append(users, uint32(n))
	}
	if c.Group != "" {
		id := c.Group
		if g, err := user.LookupGroup(id); err == nil {
			id = g.Gid
		}
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, nil, fmt.Errorf("control.group: this machine has no group %q", c.Group)
		}
		gids = []uint32{uint32(n)}
	}
	return users, gids, nil
}

// refuse frees the addresses of the publisher.
func (s *surface) refuse() {
	if s != nil && s.publisher != nil {
		s.publisher.Refuse()
	}
}

// close ends the readers of the engine's events. Call it after the engine's last event.
func (s *surface) close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.lines.Close()
	if s.publisher == nil {
		return nil
	}
	return s.publisher.Close(ctx)
}

type eventsFilter struct {
	Since  uint64   `json:"since"`
	Groups []string `json:"groups"`
	Events []string `json:"events"`
}

// eventsBuffer is the size of one write of events, in bytes.
const eventsBuffer = 256 << 10

// followEvents begins at the present number, so that no event after the open is left out.
func (s *surface) followEvents(as *event.Viewer) control.Dialogue {
	next := s.engine.Events().Next()
	return control.StreamJSON(func(ctx context.Context, q eventsFilter, answer io.Writer) error {
		if q.Since == 0 {
			q.Since = next
		}
		return s.events(ctx, publish.Filter{Since: q.Since, Groups: q.Groups, Events: q.Events, As: as}, answer)
	})
}

// events answers .kvfs/events with lines, until the reader is gone.
func (s *surface) events(ctx context.Context, q publish.Filter, answer io.Writer) error {
	f, err := s.lines.Follow(q)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, eventsBuffer)
	for {
		n, err := f.Read(ctx, buf)
		if err != nil {
			return nil // the daemon stops, or the reader has gone
		}
		if _, err := answer.Write(buf[:n]); err != nil {
			return nil // the reader has gone
		}
	}
}

type jobsDocument struct {
	Loads   []jobsLoad     `json:"loads"`
	Waiting map[string]int `json:"waiting"` // blocks to load that are in no job yet, by tier
	Stores  []jobsStore    `json:"stores"`
	Queued  map[string]int `json:"queued"` // blocks to store that are in no job yet, by tier
}

type jobsStore struct {
	ID         uint64  `json:"id"`
	Tier       string  `json:"tier"`
	Keys       int     `json:"keys"`
	Bytes      int64   `json:"bytes"`
	AgeSeconds float64 `json:"age_seconds"`
}

type jobsLoad struct {
	ID         uint64  `json:"id"`
	Kind       string  `json:"kind"` // "promotion": an open waits for it; or "prefetch"
	Tier       string  `json:"tier"`
	Request    string  `json:"request,omitempty"`
	Keys       int     `json:"keys"`
	Bytes      int64   `json:"bytes"`
	AgeSeconds float64 `json:"age_seconds"`
}

func (s *surface) jobs() []byte {
	jobs, waiting := s.engine.Jobs()
	stores, queued := s.engine.StoreJobs()
	doc := jobsDocument{Loads: []jobsLoad{}, Waiting: waiting, Stores: []jobsStore{}, Queued: queued}
	for _, j := range jobs {
		kind := "prefetch"
		if j.Promotion {
			kind = "promotion"
		}
		doc.Loads = append(doc.Loads, jobsLoad{uint64(j.ID), kind, j.Tier, j.Request, j.Keys, j.Bytes, time.Since(j.Started).Seconds()})
	}
	for _, j := range stores {
		doc.Stores = append(doc.Stores, jobsStore{uint64(j.ID), j.Tier, j.Keys, j.Bytes, time.Since(j.Started).Seconds()})
	}
	return status.JSON(doc)
}

func (s *surface) status() *status.Events {
	if s == nil {
		return nil
	}
	st := &status.Events{Next: s.engine.Events().Next()}
	if s.publisher != nil {
		z := s.publisher.Stats()
		st.ZMQ = &z
	}
	return st
}
