// Package wire is the protocol of the control channel: the messages and the gRPC service of
// control.proto, generated from it by go generate.
//
// Three messages travel elsewhere, too: BlockRef is the name of a block on the bulk channel
// (rdma.Item.Name), BlockInfo is the holder's answer there (rdma.Loan.Header), and Meta is a node's
// description of itself in the gossip.
//
// # Rules for changes
//
// A field's number and type never change, and the number of a removed field is not reused. A new
// field must be harmless to a peer that does not know it. Otherwise it needs a feature bit, and
// must not be sent to a peer without the bit. Paths and names are bytes because a file name need
// not be UTF-8.
package wire

//go:generate protoc -I ../.. --go_out=../.. --go_opt=paths=source_relative --go-grpc_out=../.. --go-grpc_opt=paths=source_relative cluster/wire/control.proto
