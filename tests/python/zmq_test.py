"""A subscriber of the events for routers, written from the description of vLLM's KV event
publisher with pyzmq and msgpack alone: run.py runs it on the mount KVFS_TEST_MOUNT, whose
daemon publishes with the default topic and blocks of 16 tokens.

KVFS_TEST_FORM says how: "new", events as maps and hashes as integers, of blocks in kvfs's own
layout; or "old", events as arrays and hashes as bytes, of blocks in that of vLLM's file tier.
The daemon connects to the endpoint KVFS_TEST_BOUND.
"""

import itertools
import json
import os
import time
import unittest

import msgpack
import zmq

MOUNT = os.environ["KVFS_TEST_MOUNT"]
BOUND = os.environ["KVFS_TEST_BOUND"]
OLD = os.environ["KVFS_TEST_FORM"] == "old"
DISK = "DISK" if OLD else "STORAGE"  # the medium
DEADLINE = 60  # seconds for what ought to happen; only a failure takes so long
TOPIC = b"kv-events"
END = (-1).to_bytes(8, "big", signed=True)
LEFT = "%064x" % 0x1EF7  # a block that Stream leaves for Snapshot

# Fields of events by position. The last ones may be missing.
ARRAYS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                    "extra_keys", "group_idx"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}

numbers = itertools.count(int(time.time() * 1000) << 16)  # of blocks, none twice


def control(name, request=None):
    """Ask a control file."""
    fd = os.open(os.path.join(MOUNT, ".kvfs", name), os.O_RDONLY if request is None else os.O_RDWR)
    try:
        if request is not None:
            os.write(fd, json.dumps(request).encode())
        return json.loads(b"".join(iter(lambda: os.read(fd, 1 << 20), b"")).decode())
    finally:
        os.close(fd)


def place(group, name):
    """Return the path of a block below the mount."""
    if OLD:
        return os.path.join("m_r0", name[:3], "%s_g%s" % (name[3:5], group), name + ".bin")
    return os.path.join(group, name)


def store(group, name):
    """Store a block as engines do."""
    path = os.path.join(MOUNT, place(group, name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "wb") as f:
        f.write(b"x" * 4096)
    os.rename(path + ".tmp", path)
    return path


def told(name):
    """Return what stands for a name in messages."""
    return bytes.fromhex(name) if OLD else int(name, 16) & (1 << 64) - 1


def fresh():
    """Return the name of a new block, and what stands for it in messages."""
    n = next(numbers)
    name = "%048x%016x" % (n, n)
    return name, told(name)


class Base(unittest.TestCase):
    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, linger=0)
        self.zmq = control("status")["events"]["zmq"]

    def socket(self, kind, endpoint):
        s = self.context.socket(kind)
        self.addCleanup(s.close, 0)
        s.rcvtimeo = DEADLINE * 1000
        s.connect(endpoint)
        return s

    def decode(self, payload):
        """Return the events of a message, having checked the batch around them."""
        batch = msgpack.unpackb(payload)
        self.assertIsInstance(batch, list)
        ts, events, rank = batch
        self.assertIsInstance(ts, float)
        self.assertLess(abs(ts - time.time()), 3600)
        self.assertEqual(rank, 0)
        self.assertIsInstance(events, list)  # of none, for one who has just subscribed
        if OLD:
            events = [self.named(e) for e in events]
        for e in events:
            self.check(e)
        return events

    def named(self, event):
        """Return an event that came as an array with names."""
        self.assertIsInstance(event, list)
        kind, *values = event
        self.assertLessEqual(len(values), len(ARRAYS[kind]))
        fields = dict(zip(ARRAYS[kind], values), type=kind)
        self.assertIsNone(fields.pop("extra_keys", None))
        return fields

    def check(self, event):
        """Check the fields of an event, as the decoder of vLLM's types would."""
        kind = event["type"]
        fields = set(event) - {"type", "group_idx"}
        if event.get("medium") == "STORAGE":
            self.assertEqual(event["locality"], "LOCAL")
            fields.remove("locality")
        if "group_idx" in event:
            self.assertIsInstance(event["group_idx"], int)
        if kind == "BlockStored":
            self.assertEqual(fields, {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"})
            self.assertEqual(
                [event[f] for f in ("parent_block_hash", "token_ids", "block_size", "lora_id", "lora_name")],
                [None, [], 16, None, None])
        elif kind == "BlockRemoved":
            self.assertEqual(fields, {"block_hashes", "medium"})
        else:
            self.assertEqual((kind, fields), ("AllBlocksCleared", set()))
            return
        self.assertIn(event["medium"], ("CPU", DISK))
        self.assertTrue(event["block_hashes"])
        self.assertEqual(len(set(event["block_hashes"])), len(event["block_hashes"]))
        for h in event["block_hashes"]:
            if OLD:
                self.assertEqual((type(h), len(h)), (bytes, 32))
            else:
                self.assertIsInstance(h, int)
                self.assertTrue(0 <= h < 1 << 64)

    def replay(self, start):
        """Return the messages from a number on, {number: payload}, as the socket for replays has them."""
        s = self.socket(zmq.DEALER, self.zmq["replay_endpoint"])
        s.send_multipart([b"", start.to_bytes(8, "big")])
        got = {}
        while True:
            frames = s.recv_multipart()
            self.assertEqual(frames.pop(0), b"")
            if not OLD:
                topic = frames.pop(0)
            number, payload = frames
            self.assertEqual(len(number), 8)
            if not OLD:
                self.assertEqual(topic, b"" if number == END else TOPIC)
            if number == END:
                self.assertEqual(payload, b"")
                s.close()
                return got
            n = int.from_bytes(number, "big")
            if got:
                self.assertEqual(n, max(got) + 1)
            got[n] = payload


class Stream(Base):
    """What is published as things happen."""

    def subscribe(self):
        """Subscribe, and return when messages come. A subscriber misses earlier messages, except the first subscriber:
        all blocks are announced to it again."""
        s = self.socket(zmq.SUB, self.zmq["endpoint"])
        s.subscribe(TOPIC)
        self.messages = {}
        self.media = {}  # by number of the block: what is stored and removed, in order
        self.groups = {}
        end = time.monotonic() + DEADLINE
        while not s.poll(10) or control("status")["events"]["zmq"]["snapshots"] < 2:
            self.assertLess(time.monotonic(), end, "no message")
            store("waiting", fresh()[0])
        return s

    def receive(self, s):
        topic, number, payload = s.recv_multipart()
        self.assertEqual(topic, TOPIC)
        self.assertEqual(len(number), 8)
        n = int.from_bytes(number, "big")
        if self.messages:
            self.assertEqual(n, max(self.messages) + 1)
        self.messages[n] = payload
        for e in self.decode(payload):
            for h in e.get("block_hashes", ()):
                self.media.setdefault(h, []).append((e["type"], e["medium"]))
                self.groups.setdefault(h, set()).add(e.get("group_idx"))

    def until(self, s, number, *want):
        """Receive until the last that happened to a block is want."""
        while self.media.get(number, [])[-len(want):] != list(want):
            self.receive(s)

    def test_life_of_a_block(self):
        """Stored in memory, copied to the SSD, evicted from memory, unlinked."""
        s = self.subscribe()
        name, number = fresh()
        path = store("0", name)
        history = [("BlockStored", "CPU"), ("BlockStored", DISK)]
        self.until(s, number, *history)
        self.assertEqual(control("evict", {"tier": "memory", "paths": [place("0", name)]})["blocks"], 1)
        history += [("BlockRemoved", "CPU")]
        self.until(s, number, *history)
        with open(path, "rb") as f:  # brings it back
            self.assertEqual(f.read(1), b"x")
        history += [("BlockStored", "CPU")]
        self.until(s, number, *history)
        os.unlink(path)
        while len(self.media[number]) < len(history) + 2:
            self.receive(s)
        self.assertEqual(self.media[number][:4], history)
        self.assertEqual(set(self.media[number][4:]), {("BlockRemoved", "CPU"), ("BlockRemoved", DISK)})
        self.assertEqual(self.groups[number], {0})

    def test_replay(self):
        """All messages again, or those from a number on, to the end marker; none of the future."""
        s = self.subscribe()
        name, number = fresh()
        store("0", name)
        self.until(s, number, ("BlockStored", "CPU"), ("BlockStored", DISK))
        first, last = min(self.messages), max(self.messages)
        whole = self.replay(0)
        self.assertEqual(min(whole), 0)
        self.assertEqual(self.decode(whole[0])[0], {"type": "AllBlocksCleared"})
        self.assertEqual({n: whole[n] for n in self.messages}, self.messages)
        part = self.replay(last)
        self.assertEqual(min(part), last)
        self.assertEqual(part[last], self.messages[last])
        self.assertLessEqual(first, last)
        self.assertEqual(self.replay(1 << 60), {})

    def test_zz_leave_a_block(self):
        """Leave a block on the SSD for the daemon's next life. The last test, by its name."""
        s = self.subscribe()
        store("0", LEFT)
        self.until(s, told(LEFT), ("BlockStored", "CPU"), ("BlockStored", DISK))


class Snapshot(Base):
    """What a new daemon publishes of the blocks that it finds."""

    def test_snapshot(self):
        """AllBlocksCleared comes first, then what is there."""
        end = time.monotonic() + DEADLINE
        media = {}
        while ("BlockStored", DISK) not in media.get(told(LEFT), []):
            self.assertLess(time.monotonic(), end, "the block was not announced")
            media, got = {}, self.replay(0)
            if not got:
                continue
            events = [e for n in sorted(got) for e in self.decode(got[n])]
            self.assertEqual((min(got), events[0]), (0, {"type": "AllBlocksCleared"}))
            self.assertEqual([e["type"] for e in events].count("AllBlocksCleared"), 1)
            for e in events[1:]:
                for h in e["block_hashes"]:
                    media.setdefault(h, []).append((e["type"], e["medium"]))
        self.assertNotIn(("BlockRemoved", DISK), media[told(LEFT)])


class Idle(Base):
    """What those get who subscribe while nothing happens. The first one is one that is bound."""

    def receive(self, s):
        topic, number, payload = s.recv_multipart()
        self.assertEqual((topic, len(number)), (TOPIC, 8))
        return int.from_bytes(number, "big"), self.decode(payload)

    def test_bound(self):
        """All blocks, after AllBlocksCleared, though the daemon began long before."""
        s = self.context.socket(zmq.SUB)
        self.addCleanup(s.close, 0)
        s.rcvtimeo = DEADLINE * 1000
        s.subscribe(TOPIC)
        s.bind(BOUND)
        last, events = self.receive(s)
        self.assertEqual(events, [{"type": "AllBlocksCleared"}])
        while not any(told(LEFT) in e.get("block_hashes", ()) and e["medium"] == DISK for e in events):
            n, events = self.receive(s)
            self.assertEqual(n, last + 1)
            last = n
        self.assertEqual(control("status")["events"]["zmq"]["subscribers"], 1)

    def test_late(self):
        """A number, which tells what was missed."""
        s = self.socket(zmq.SUB, self.zmq["endpoint"])
        s.subscribe(TOPIC)
        n, events = self.receive(s)
        self.assertGreater(n, 0)
        self.assertEqual(events, [])
