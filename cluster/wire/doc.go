// Package wire is the form in which nodes talk on the control channel: the messages
// and the gRPC service of control.proto, generated from it by go generate.
//
// Three of the messages travel elsewhere, too: BlockRef is the name of a block on the
// bulk channel (rdma.Item.Name), BlockInfo what its holder answers (rdma.Loan.Header),
// and Meta is what a node tells of itself in the gossip.
//
// # Rules for changes
//
// A field's number and type never change, and the number of one that is gone is not
// used again. What is new must be harmless to who does not know it: else it needs a
// feature bit, and the peer that lacks the bit must not be sent it. Paths and names are
// bytes because a file name need not be UTF-8.
package wire

//go:generate protoc -I ../.. --go_out=../.. --go_opt=paths=source_relative --go-grpc_out=../.. --go-grpc_opt=paths=source_relative cluster/wire/control.proto
