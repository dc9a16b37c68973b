// Package publish tells others what happens to blocks: the event log of the engine as lines of
// JSON for .kvfs/events, and as messages of ZeroMQ in the format of vLLM's KV event publisher.
//
//	Lines      the log as JSON, encoded once for all who follow it
//	Follower   one who follows
//	Publisher  the ZeroMQ PUB socket, bound or connected, and the ROUTER socket for replays
//
// docs/control.md has the lines, docs/events.md the messages. Both read the log at their own
// pace: whoever is slow gets a gap, and nobody slows the engine.
//
// # Limits
//
// Followers share 64 chunks of 64 KiB of lines. One that is too slow for these reads the log by
// itself from then on, as those with a filter do, and loses no more than the log has lost.
//
// Whoever subscribes gets a message within about a second, even if nothing happens, and the first one all blocks (greet.go). A
// subscriber that is bound is connected to again and again, with pauses of up to 5 s, by one goroutine each.
//
// The publisher keeps Options.Buffer messages for replays, at most 64 MiB of them. A subscriber has
// a queue of 4,096 messages and 8 MiB, which refer to the same memory; what does not fit is dropped
// for it and counted. A subscriber that takes nothing for 30 s is disconnected. There may be 256
// connections for each socket that others made, and 64 that the publisher makes.
//
// # Decisions
//
// The publisher speaks ZMTP 3.0 with the NULL mechanism itself (zmtp.go). The sockets of
// github.com/go-zeromq/zmq4 v0.17.0 serve as clients in the tests, but are not fit for a port
// that strangers reach:
//
//   - A frame that claims more bytes than there is memory, a Socket-Type that is unknown, or
//     metadata that is cut short, panics in a goroutine of the library: any client can end the daemon,
//     before any handshake is complete.
//   - The handshake runs in the accept loop without a deadline: a client that connects and says
//     nothing keeps out all others.
//   - PUB writes to one subscriber after the other under a lock, from a queue without a limit: one that is
//     stopped stops all, and memory grows. With a limit, all lose messages because of one.
//   - Close leaves a goroutine of each PUB socket behind.
//
// Events are maps with field names, as vLLM sends them since June 2026
// (vllm-project/vllm#42892), not arrays as before: fields may be added without breaking anybody. Consumers that
// know arrays only are served with Options.Encoding.
//
// Removals name each medium. A removal without one would mean the GPU to routers.
package publish
