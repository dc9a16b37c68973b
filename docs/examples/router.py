#!/usr/bin/env python3
"""Answers which node holds the longest prefix of a prompt. It follows the events of the nodes.

    router.py 127.0.0.1:8080 a=tcp://10.0.0.1:5557,tcp://10.0.0.1:5558 b=tcp://10.0.0.2:5557,tcp://10.0.0.2:5558
    curl -d '["9f0817516aed", "77aa3cb0914f"]' http://127.0.0.1:8080
    {"node": "b", "blocks": 2, "in_memory": 1}

Each NODE=EVENTS,REPLAY has the endpoints events.zmq.bind and events.zmq.replay of one kvfs. The hashes are the names
of the blocks, first block first. The router needs pyzmq and msgpack. It takes a node that is down for one without news:
ask the engine beside it whether it lives. It is for models with one group of layers.
"""

import http.server
import json
import sys
import threading

import msgpack
import zmq

END = (-1).to_bytes(8, "big", signed=True)
context = zmq.Context()


class Node:
    """What one node holds."""

    def __init__(self, arg):
        self.name, _, endpoints = arg.partition("=")
        self.events, _, self.replays = endpoints.partition(",")
        self.media = {}  # hash: media that have the block. Whole entries are replaced: readers need no lock
        self.applied = -1  # number of the last message that is in media

    def follow(self):
        """Apply all messages, in order. Runs as long as the program."""
        sub = context.socket(zmq.SUB)
        sub.subscribe("kv-events")
        sub.connect(self.events)
        heard = None  # number of the last message of this socket
        while True:
            _, frame, payload = sub.recv_multipart()
            number = int.from_bytes(frame, "big")
            if heard is None or number <= heard:  # the first message, or the daemon has restarted
                self.forget()
            heard = number
            if number > self.applied + 1:
                self.replay()
            if number > self.applied:
                self.apply(number, payload)

    def forget(self):
        self.media, self.applied = {}, -1

    def replay(self):
        """Ask for the messages after the last one that was applied."""
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger, dealer.rcvtimeo = 0, 5000
            dealer.connect(self.replays)
            dealer.send_multipart([b"", (self.applied + 1).to_bytes(8, "big")])
            try:
                while True:
                    _, _, frame, payload = dealer.recv_multipart()
                    if frame == END:
                        return
                    self.apply(int.from_bytes(frame, "big"), payload)
            except zmq.Again:
                print("router: %s does not answer a replay" % self.name, file=sys.stderr)

    def apply(self, number, payload):
        if number != self.applied + 1:  # the daemon no longer has what is between
            self.forget()
        for event in msgpack.unpackb(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                self.media = {}
            for h in event.get("block_hashes", ()):
                if event["type"] == "BlockStored":
                    self.media[h] = self.media.get(h, frozenset()) | {event["medium"]}
                else:
                    self.media[h] = self.media.get(h, frozenset()) - {event["medium"]}
                    if not self.media[h]:
                        del self.media[h]
        self.applied = number

    def prefix(self, hashes):
        """Return how many leading blocks the node holds, and how many of them are in memory."""
        blocks = in_memory = 0
        for h in hashes:
            media = self.media.get(h)
            if not media:
                break
            blocks += 1
            in_memory += "CPU" in media
        return blocks, in_memory


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers POST with a list of hashes."""

    def do_POST(self):
        try:
            names = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            hashes = [int(name, 16) & (1 << 64) - 1 for name in names]
        except (ValueError, TypeError) as e:
            self.send_error(400, "want a JSON list of hashes: %s" % e)
            return
        best = max(nodes, key=lambda node: node.prefix(hashes))
        blocks, in_memory = best.prefix(hashes)
        self.send_response(200)
        self.end_headers()
        answer = {"node": best.name if blocks else None, "blocks": blocks, "in_memory": in_memory}
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def log_message(self, *args):
        pass


if len(sys.argv) < 3 or not all("=" in arg and "," in arg for arg in sys.argv[2:]):
    sys.exit("usage: router.py HOST:PORT NODE=EVENTS,REPLAY...")
host, _, port = sys.argv[1].rpartition(":")
server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
nodes = [Node(arg) for arg in sys.argv[2:]]
for node in nodes:
    threading.Thread(target=node.follow, daemon=True).start()
print("http://%s:%d" % server.server_address, flush=True)
server.serve_forever()
