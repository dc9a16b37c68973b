// Package otlp sends spans of requests to a collector of OpenTelemetry, with OTLP over HTTP.
//
// A request of .kvfs/query or .kvfs/prefetch is traced if its name is a traceparent with the sampled flag (W3C Trace
// Context). So the engine that asks decides which requests are traced, and the spans are children of its own. Other
// requests cost one comparison.
//
//	kvfs.exists, kvfs.longest_hit, ..., kvfs.prefetch   a request; kvfs.blocks: blocks that it named
//	kvfs.load   a job that loads blocks for it from a lower tier
package otlp

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kvfs/kvfs/fs/query"
	"github.com/kvfs/kvfs/tiers/lane"
)

// farewell bounds the wait of Close for the collector.
const farewell = time.Second

// quiet is the shortest time between two lines about a collector that does not take spans.
const quiet = time.Minute

// Options describes an Exporter.
type Options struct {
	Endpoint string // http(s)://host:port of the collector; the path defaults to /v1/traces
	Node     string // name of this node
	Version  string // of the program
	Log      *zap.Logger
}

// Exporter sends spans in the background, in batches. If the collector is slow or gone, it drops spans: no method but
// Close blocks. A nil Exporter does nothing.
type Exporter struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// Open makes an Exporter. It does not connect to the collector. It fails if the endpoint is no URL.
func Open(ctx context.Context, o Options) (*Exporter, error) {
	to, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(o.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("otlp: %w", err)
	}
	log := o.Log.Named("otlp").WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewSamplerWithOptions(c, quiet, 1, 0) }))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("the collector does not take spans; they are dropped", zap.Error(err))
	}))
	about := resource.NewSchemaless(
		attribute.String("service.name", "kvfs"), attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Node),
	)
	p := sdk.NewTracerProvider(sdk.WithBatcher(to), sdk.WithResource(about), sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	return &Exporter{provider: p, tracer: p.Tracer("github.com/kvfs/kvfs")}, nil
}

// Query takes a request that was answered.
func (e *Exporter) Query(r query.Traced) {
	e.span(r.Context, "kvfs."+r.Operation, r.Start, r.End, r.Err, attribute.Int("kvfs.blocks", r.Blocks))
}

// Load takes a load job that has ended.
func (e *Exporter) Load(b *lane.Batch) {
	if e == nil || !query.IsTraceparent(b.Request) {
		return
	}
	end := time.Now()
	e.span(b.Request, "kvfs.load", end.Add(-b.Took), end, nil,
		attribute.String("kvfs.tier", b.Tier), attribute.Int("kvfs.blocks", b.Keys), attribute.Int("kvfs.loaded_blocks", b.Success),
		attribute.Int64("kvfs.loaded_bytes", b.Bytes))
}

// span records a span below a traceparent. It does nothing if that is not valid, or not sampled.
func (e *Exporter) span(parent, name string, start, end time.Time, err error, attrs ...attribute.KeyValue) {
	if e == nil {
		return
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	_, s := e.tracer.Start(ctx, name, trace.WithTimestamp(start), trace.WithAttributes(attrs...), trace.WithSpanKind(trace.SpanKindServer))
	if err != nil {
		s.SetStatus(codes.Error, err.Error())
	}
	s.End(trace.WithTimestamp(end))
}

// Close sends what is left, for at most a second, and ends. What it cannot send is lost.
func (e *Exporter) Close() {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if err := e.provider.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}
