package directio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
)

// Values of Options.Engine, and the names of engines.
const (
	EngineAuto  = "auto"
	EngineUring = "io_uring"
	EnginePread = "pread"
)

const (
	minEntries, maxEntries = 8, 4096
	maxThreads             = 1024
	maxChunkBytes          = 1 << 30 // below the most that Linux moves at once: 2 GiB less a page
)

// errNoUring is why a build without the tag giouring has no io_uring.
var errNoUring = errors.New("this program was built without io_uring (tag giouring)")

// closeLogInterval is how often Close logs what it waits for.
const closeLogInterval = 5 * time.Second

// withDefaults returns o filled in, or all violations.
func (o Options) withDefaults() (Options, error) {
	if o.Engine == "" {
		o.Engine = EngineAuto
	}
	if o.Entries == 0 {
		o.Entries = 128
	}
	if o.InFlightBytes == 0 {
		o.InFlightBytes = max(8<<20, int64(o.ChunkBytes))
	}
	if o.ChunkBytes == 0 {
		o.ChunkBytes = int(min(1<<20, max(o.InFlightBytes, Alignment)&^(Alignment-1)))
	}
	if o.Threads == 0 {
		o.Threads = 16
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("directio: %s %v: want %s: %w", field, value, want, os.ErrInvalid))
		}
	}
	check(o.Engine == EngineAuto || o.Engine == EngineUring || o.Engine == EnginePread,
		"Engine", o.Engine, "auto, io_uring or pread")
	check(o.Entries >= minEntries && o.Entries <= maxEntries, "Entries", o.Entries, "8 to 4096")
	check(o.ChunkBytes >= Alignment && o.ChunkBytes <= maxChunkBytes && o.ChunkBytes%Alignment == 0,
		"ChunkBytes", o.ChunkBytes, "a multiple of 4096 up to 1 GiB")
	check(o.InFlightBytes >= int64(o.ChunkBytes), "InFlightBytes", o.InFlightBytes,
		fmt.Sprintf("at least ChunkBytes, %d", o.ChunkBytes))
	check(o.Threads >= 1 && o.Threads <= maxThreads, "Threads", o.Threads, "1 to 1024")
	return o, errors.Join(errs...)
}

// Open starts an engine. It fails with os.ErrInvalid, once for each option that is out of range. If
// o.Engine is io_uring, it also fails with the kernel's error. ctx bounds only the opening.
func Open(ctx context.Context, o Options) (Engine, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if o.Engine != EnginePread {
		e, err := openUring(o)
		if err == nil {
			return e, nil
		}
		if o.Engine == EngineUring {
			return nil, fmt.Errorf("directio: the option asks for the engine io_uring, which is not usable: %w", err)
		}
		logFallback(o.Logger, err)
	}
	return openPread(o), nil
}

// logFallback logs once why there is no io_uring. It logs nothing in a build without io_uring.
func logFallback(log *zap.Logger, err error) {
	if errors.Is(err, errNoUring) {
		log.Info("no io_uring in this build, using pread and pwrite", zap.String("engine", EnginePread), zap.Error(err))
		return
	}
	log.Warn("io_uring is not usable, using pread and pwrite", zap.String("engine", EnginePread), zap.Error(err))
}
