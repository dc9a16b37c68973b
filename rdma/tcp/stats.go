package tcp

import "sync/atomic"

// Stats counts what a Transport has done since Open; the gauges show the present state.
type Stats struct {
	Accepted  int64 `json:"accepted"`  // connections that were accepted and greeted correctly
	Refused   int64 `json:"refused"`   // connections beyond a limit
	Strangers int64 `json:"strangers"` // connections of clients that do not speak the protocol, or may not
	Dialled   int64 `json:"dialled"`   // connections that were opened
	Broken    int64 `json:"broken"`    // connections that ended without being closed

	ProtocolErrors int64 `json:"protocol_errors"` // frames without sense, both sides

	ItemsOut int64 `json:"sent_blocks"`     // blocks sent
	BytesOut int64 `json:"sent_bytes"`      // their bytes
	ItemsIn  int64 `json:"received_blocks"` // blocks received
	BytesIn  int64 `json:"received_bytes"`  // bytes of blocks received, also of incomplete ones

	OpenIn  int64 `json:"open_in"`  // gauge: accepted connections
	OpenOut int64 `json:"open_out"` // gauge: dialled connections
	Regions int64 `json:"regions"`  // gauge: registered files
	Loans   int64 `json:"loans"`    // gauge: blocks and regions held for a reader
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
