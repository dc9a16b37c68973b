package control

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/tiers/block"
)

// fieldCost is the most memory, in bytes, that a decoded field takes besides its contents: a
// BlockInfo of an offer.
const fieldCost = 256

// messageLimit bounds one kind of message, close to what nodes really send. Raise it if a
// message gets a new field.
type messageLimit struct{ bytes, fields int }

// limitOf returns the limit of a message that a peer sends with a call.
func limitOf(m proto.Message) messageLimit {
	switch m.(type) {
	case *wire.StatRequest, *wire.FindRequest:
		return messageLimit{MaxStatBytes + block.MaxPath + 8*MaxStat, MaxStat + 16}
	case *wire.LeaseRequest:
		return messageLimit{MaxOffers * (block.MaxPath + 64), 4*MaxOffers + 16}
	case *wire.ReleaseRequest:
		return messageLimit{16 * MaxReleases, MaxReleases + 16}
	case *wire.StoreRequest:
		return messageLimit{MaxMessage, MaxStoreFields}
	case *wire.Graves:
		return messageLimit{MaxMessage, 8*MaxGraves + 16}
	case *wire.SubscribeRequest:
		return messageLimit{2*MaxParts/8 + 64, 16}
	case *wire.DigestRequest:
		return messageLimit{MaxParts/8 + block.MaxPath, 16}
	case *wire.ListRequest:
		return messageLimit{2*block.MaxPath + 64, 16}
	}
	return messageLimit{block.MaxPath, 64}
}

// incoming is a message of a peer that is checked before it is decoded.
type incoming struct {
	message any // where the message is decoded to
	calls   *callTable
	charged int64 // bytes charged to calls
	refused error // a gRPC status; gRPC would replace a status that the codec returns
}

// codec is the codec of protobuf. It checks received messages of the type incoming first.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m := in.message.(proto.Message) // the services take nothing else
	limit := limitOf(m)
	if data.Len() > limit.bytes {
		in.refused = status.Errorf(codes.ResourceExhausted, "message of %d bytes, %d is the limit", data.Len(), limit.bytes)
		return nil
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	fields, err := countFields(b.ReadOnlyData(), m.ProtoReflect().Descriptor(), limit.fields)
	if err != nil {
		in.refused = status.Errorf(codes.InvalidArgument, "message: %v", err)
		return nil
	}
	cost := int64(data.Len() + fields*fieldCost)
	if !in.calls.charge(cost) {
		in.refused = status.Error(codes.Aborted, "too many messages")
		return nil
	}
	in.charged = cost
	return proto.Unmarshal(b.ReadOnlyData(), m)
}

var errFields = errors.New("too many elements")

// countFields returns the number of fields of b and of the messages in it. It stops above
// limit.
func countFields(b []byte, d protoreflect.MessageDescriptor, limit int) (int, error) {
	count := 0
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return 0, protowire.ParseError(n)
		}
		if count++; count > limit {
			return 0, errFields
		}
		f := d.Fields().ByNumber(num)
		switch {
		case f == nil || typ != protowire.BytesType:
		case f.Kind() == protoreflect.MessageKind:
			inner, _ := protowire.ConsumeBytes(b)
			more, err := countFields(inner, f.Message(), limit-count)
			if err != nil {
				return 0, err
			}
			count += more
		case f.IsList() && f.IsPacked():
			count += n / 8 // each is a fixed64
		}
		b = b[n:]
	}
	return count, nil
}
