package tcp

import "sync/atomic"

// Stats counts what a Transport has done since Open; the gauges show the present state.
type Stats struct {
	Accepted  int64 `json:"accepted" help:"connections accepted and greeted correctly" kind:"counter"`
	Refused   int64 `json:"refused" help:"connections beyond a limit" kind:"counter"`
	Strangers int64 `json:"strangers" help:"connections of clients that do not speak the protocol, or may not" kind:"counter"`
	Dialled   int64 `json:"dialled" help:"connections opened" kind:"counter"`
	Broken    int64 `json:"broken" help:"connections that ended without being closed" kind:"counter"`

	ProtocolErrors int64 `json:"protocol_errors" help:"frames that made no sense" kind:"counter"`

	ItemsOut int64 `json:"sent_blocks" help:"blocks sent" kind:"counter"`
	BytesOut int64 `json:"sent_bytes" help:"bytes of these blocks" kind:"counter"`
	ItemsIn  int64 `json:"received_blocks" help:"blocks received" kind:"counter"`
	BytesIn  int64 `json:"received_bytes" help:"bytes of blocks received, incomplete ones included" kind:"counter"`

	OpenIn  int64 `json:"open_in" help:"accepted connections"`
	OpenOut int64 `json:"open_out" help:"dialled connections"`
	Regions int64 `json:"regions" help:"registered files"`
	Loans   int64 `json:"loans" help:"blocks and regions held for a reader"`
}

// counters is the atomic form of Stats.
type counters struct {
	accepted, refused, strangers, dialled, broken atomic.Int64
	protocolErrors                                atomic.Int64
	itemsOut, bytesOut, itemsIn, bytesIn          atomic.Int64
	openIn, openOut, regions, loans               atomic.Int64
}

// Stats returns the present counts.
func (t *Transport) Stats() Stats {
	c := &t.counters
	return Stats{
		Accepted: c.accepted.Load(), Refused: c.refused.Load(), Strangers: c.strangers.Load(),
		Dialled: c.dialled.Load(), Broken: c.broken.Load(), ProtocolErrors: c.protocolErrors.Load(),
		ItemsOut: c.itemsOut.Load(), BytesOut: c.bytesOut.Load(),
		ItemsIn: c.itemsIn.Load(), BytesIn: c.bytesIn.Load(),
		OpenIn: c.openIn.Load(), OpenOut: c.openOut.Load(),
		Regions: c.regions.Load(), Loans: c.loans.Load(),
	}
}
