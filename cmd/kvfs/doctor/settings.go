package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/pki"
	"github.com/kvfs/kvfs/cmd/kvfs/config"
	"github.com/kvfs/kvfs/cmd/kvfs/exit"
)

// settingsChecks are about the configuration, and the files that it names.
func settingsChecks() []Check {
	return []Check{
		{Name: "configuration", Run: checkConfig},
		{Name: "certificates", Run: needConfig(checkCertificates), Fits: true},
		{Name: "gossip keys", Run: needConfig(checkKeys), Fits: true},
	}
}

func checkConfig(_ context.Context, e *Env) Result {
	if e.Config == nil {
		var all []Result
		for _, err := range exit.Each(e.ConfigErr) {
			remedy := "docs/configuration.md has all settings"
			if at, is := errors.AsType[*config.Error](err); is {
				remedy = "correct " + at.Origin.String() + "; " + remedy
			}
			all = append(all, fail(remedy, "the configuration %s is refused: %v", e.From, err))
		}
		return worst(all)
	}
	if w := e.Config.Warnings; len(w) > 0 {
		return warn("kvfs config check", "the configuration %s is accepted, with %d warnings: %s", e.From, len(w), strings.Join(w, "; "))
	}
	return ok("the configuration %s is accepted", e.From)
}

// soon is the time before the end of a certificate from which on it is reported.
const soon = 14 * 24 * time.Hour

func checkCertificates(_ context.Context, e *Env, cfg *config.Config) Result {
	if !cfg.TLS.On() {
		return skip("tls is not set")
	}
	const renew = "kvfs certs issue, see docs/security.md"
	f := pki.Files{CA: cfg.TLS.CA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key}
	var chain []*x509.Certificate
	for _, name := range []string{f.CA, f.Cert} {
		found, err := pki.ReadCertificates(name)
		if err != nil {
			return fail("kvfs certs show FILE", "%v", err)
		}
		for _, c := range found {
			if e.Now.After(c.NotAfter) {
				return fail(renew, "a certificate in %s is expired since %s", name, c.NotAfter.UTC().Format(time.RFC3339))
			}
		}
		chain = append(chain, found...)
	}
	loaded, err := pki.Load(f, zap.NewNop())
	if err == nil && cfg.NodeName != "" {
		err = loaded.CheckName(cfg.NodeName)
	}
	if err != nil {
		return fail("kvfs certs show "+f.Cert, "%v", err)
	}
	first := chain[0].NotAfter
	for _, c := range chain {
		if c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	until := first.UTC().Format(time.RFC3339)
	if left := first.Sub(e.Now); left < soon {
		return warn(renew, "a certificate expires at %s, in %d days", until, int(left.Hours()/24))
	}
	return ok("they can be read, belong together, and are valid until %s", until)
}

func checkKeys(_ context.Context, _ *Env, cfg *config.Config) Result {
	if cfg.Peer.GossipKeys == "" {
		return skip("peer.gossip_keys is not set")
	}
	if _, err := gossip.LoadKeyring(cfg.Peer.GossipKeys); err != nil {
		return fail("kvfs keys create FILE", "%v", err)
	}
	return ok("the keys in %s can be read", cfg.Peer.GossipKeys)
}
