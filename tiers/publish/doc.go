// Package publish tells other programs what happens to blocks: it publishes the event log of the
// engine as lines of JSON for .kvfs/events, and as ZeroMQ messages in the format of vLLM's KV event
// publisher.
//
//	Lines      the log as JSON, encoded once for all followers
//	Follower   a reader of the lines
//	Publisher  the ZeroMQ PUB socket, bound or connected, and the ROUTER socket for replays
//
// docs/control.md describes the lines, docs/events.md the messages. Both read the log at their own
// pace: a slow reader gets a gap, and no reader slows the engine.
//
// # Limits
//
// All followers read the same 64 chunks of 64 KiB of lines. A follower that is too slow for these
// reads the log by itself from then on, as followers with a filter do. It then loses only what the
// log has lost.
//
// A new subscriber gets a message within about a second, even if nothing happens. The first one
// gets all blocks (greet.go). The publisher connects to a bound subscriber again and again, with
// pauses of up to 5 s, by one goroutine each.
//
// The publisher keeps Options.Buffer messages for replays, at most 64 MiB of them. A subscriber has
// a queue of 4,096 messages and 8 MiB, which refer to the same memory. Messages that do not fit are
// dropped and counted. A subscriber that takes nothing for 30 s is disconnected. Each socket takes
// 256 incoming connections, and the publisher makes at most 64.
//
// # Decisions
//
// The publisher implements ZMTP 3.0 with the NULL mechanism itself (zmtp.go). The tests use the
// sockets of github.com/go-zeromq/zmq4 v0.17.0 as clients, but these are not fit for a port that
// strangers reach:
//
//   - A frame that claims more bytes than there is memory, an unknown Socket-Type, or truncated
//     metadata panics in a goroutine of the library: any client can end the daemon before any
//     handshake is complete.
//   - The handshake runs in the accept loop without a deadline: a client that connects and stays
//     silent keeps out all others.
//   - PUB writes to one subscriber after the other under a lock, from a queue without a limit: a
//     stopped subscriber stops all, and memory grows. With a limit, one makes all lose messages.
//   - Close leaves a goroutine of each PUB socket behind.
//
// Events are maps with field names, as vLLM sends them since June 2026 (vllm-project/vllm#42892),
// not arrays as before: new fields then break no consumer. Options.Encoding serves consumers that
// know only arrays.
//
// A removal names each medium. Routers would take a removal without one for the GPU.
package publish
