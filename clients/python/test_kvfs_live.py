"""Tests of kvfs.py on a mount, as root or the user of its daemon:

    KVFS_TEST_MOUNT=/mnt/kv python3 -m unittest test_kvfs_live

The mount must have an SSD tier. Each test has a group of its own, which it evicts and removes.
"""

import os
import random
import shutil
import threading
import unittest
import uuid

import kvfs
from kvfs import Cancelled, Kvfs, KvfsError

MOUNT = os.environ.get("KVFS_TEST_MOUNT")
DEADLINE = 60  # seconds for what ought to happen; only a failure takes so long

SPEC = {
    "hash_block_size": 16,
    "groups": [{"kind": "full", "block_size": 16}, {"kind": "swa", "block_size": 16, "window": 32}],
}


@unittest.skipUnless(MOUNT, "KVFS_TEST_MOUNT names no mount")
class Live(unittest.TestCase):
    """Every method against a daemon."""

    def setUp(self):
        self.kv = Kvfs(MOUNT)
        self.addCleanup(self.kv.close)
        self.group = "py-" + uuid.uuid4().hex[:12]
        self.dir = os.path.join(MOUNT, self.group)
        os.mkdir(self.dir)
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def store(self, *names, data=b"x" * 4096):
        """Store blocks as engines do: below another name first."""
        for name in names:
            path = os.path.join(self.dir, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".tmp", "wb") as f:
                f.write(data)
            os.rename(path + ".tmp", path)

    def cold(self, *names, data=b"x" * 4096):
        """Store blocks and leave them on the SSD only."""
        with self.kv.events(groups=[self.group], events=["stored"]) as events:
            self.store(*names, data=data)
            left = set(names)
            self.read_until(events, lambda e: e.tier == "disk" and (left.discard(e.hash) or not left))
        got = self.kv.evict("memory", [self.group])
        self.assertEqual((got.blocks, got.kept), (len(names), []))

    def read_until(self, events, last):
        """Return events up to the one for which last is true; close them after the deadline."""
        timer = threading.Timer(DEADLINE, events.close)
        timer.start()
        try:
            seen = []
            for event in events:
                seen.append(event)
                if last(event):
                    return seen
            self.fail("not seen within %d s; got %r" % (DEADLINE, seen[-10:]))
        finally:
            timer.cancel()

    def random_hashes(self, n, size=32):
        seed = random.randrange(1 << 32)
        print("seed", seed)
        draw = random.Random(seed)
        return [bytes(draw.getrandbits(8) for _ in range(size)) for _ in range(n)]

    def test_put_and_get(self):
        """A block is written at once, and read into new memory or into a buffer."""
        data = os.urandom(3 << 20)
        key = self.group + "/a/b"
        self.kv.put(key, data)
        self.assertEqual(self.kv.get(key), data)
        self.assertEqual(self.kv.get(self.kv.path(key)), data)
        buffer = bytearray(4 << 20)
        self.assertEqual(self.kv.get_into(key, buffer), len(data))
        self.assertEqual(buffer[:len(data)], data)
        self.kv.put(key, memoryview(b"other"))
        self.assertEqual(self.kv.get(key), b"other")
        with self.assertRaises(BufferError):
            self.kv.get_into(key, bytearray(4))
        with self.assertRaises(FileNotFoundError):
            self.kv.get(self.group + "/absent")
        with self.assertRaises(TypeError):
            self.kv.put(self.group + "/a/c", "text")
        self.assertEqual(os.listdir(os.path.join(self.dir, "a")), ["b"])

    def test_exists_10000(self):
        """10,000 keys in binary, as text and in JSON have the same answer."""
        hashes = self.random_hashes(10000, 8)
        for i in range(0, 100, 3):
            self.store(hashes[i].hex())
        want = [i < 100 and i % 3 == 0 for i in range(10000)]
        texts = [h.hex() for h in hashes]
        for found in (
            self.kv.exists(hashes, group=self.group),
            self.kv.exists(texts, group=self.group),
            self.kv.exists(hashes, group=self.group, deadline=0),  # JSON
            self.kv.exists_keys([self.group + "/" + t for t in texts]),
            self.kv.exists_keys([os.path.join(self.dir, t) for t in texts]),
        ):
            self.assertEqual(found.bools(), want)
            self.assertEqual((found.hits, found.misses, found.pending, found.late, found.prefix), (34, 9966, 0, 0, 1))
            self.assertEqual(found.states[:4], "m..m")

    def test_exists_states(self):
        a, b, c = "aa" * 8, "bb" * 8, "cc" * 8
        self.cold(a)
        self.store(b)
        self.assertEqual(self.kv.exists([a, b, c], group=self.group, lease=False).states, "dm.")
        self.assertEqual(self.kv.exists([], group=self.group).states, "")

    def test_exists_template_and_ranks(self):
        hashes = [bytes([i]) * 8 for i in range(1, 4)]
        template = self.group + "/m_r{rank}/{hash:0:3}/{hash:3:5}_g{group}/{hash}.bin"
        for rank, some in ((0, hashes), (1, hashes[:2])):
            for h in some:
                t = h.hex()
                self.store("m_r%d/%s/%s_g0/%s.bin" % (rank, t[:3], t[3:5], t))
        self.assertEqual(self.kv.exists(hashes, group="0", template=template, ranks=1).states, "mmm")
        self.assertEqual(self.kv.exists(hashes, group="0", template=template, ranks=2).states, "mm.")

    def test_unicode(self):
        names = ["слот 0 – é", "日本", "a\"b\\c", "emoji 🎉"]
        self.store(*names)
        self.assertEqual(self.kv.exists(names, group=self.group).states, "mmmm")
        self.assertEqual(self.kv.exists_keys([self.group + "/" + n for n in names]).states, "mmmm")
        self.assertEqual(self.kv.why([self.group + "/" + names[0]])[0].path, self.group + "/" + names[0])

    def test_promote(self):
        names = ["%016x" % i for i in range(4)]
        self.cold(*names)
        with self.kv.events(groups=[self.group], events=["stored"]) as events:
            self.kv.exists(names, group=self.group, promote=True, request="req-1")
            left = set(names)
            seen = self.read_until(events, lambda e: e.tier == "memory" and (left.discard(e.hash) or not left))
        self.assertTrue(all(e.reason == "promoted" for e in seen if e.tier == "memory"), seen)

    def test_errors(self):
        for call in (
            lambda: self.kv.exists(["a"], group=self.group, template="{nothing}"),
            lambda: self.kv.exists([b"a"], group=self.group, template="{group}/{hash"),
            lambda: self.kv.longest_hit("no such spec", [b"a"]),
            lambda: self.kv.longest_hit("no such spec", []),
            lambda: self.kv.evict("no such tier", all=True),
            lambda: self.kv.set_specs({"bad": {"groups": []}}),
            lambda: self.kv.prefetch(["a"], template="{nothing}"),
            lambda: list(self.kv.events(events=["no such event"])),
        ):
            with self.assertRaises(KvfsError) as got:
                call()
            self.assertTrue(got.exception.message)
        with self.assertRaises(KvfsError) as got:
            self.kv.exists(["a", "b"], group=self.group, deadline=0, template="{nothing}")
        self.assertEqual(got.exception.field, "/template")
        self.assertEqual(self.kv.exists([], group=self.group).hits, 0)

    def test_specs(self):
        name = self.group
        got = self.kv.set_specs({name: SPEC})
        self.addCleanup(self.kv.remove_specs, [name])
        self.assertEqual(list(got), [name])
        self.assertEqual(got[name]["scheduler_block_size"], 16)
        self.assertEqual([g["name"] for g in got[name]["groups"]], ["0", "1"])
        self.assertEqual(self.kv.get_specs([name]), got)
        self.assertEqual(self.kv.get_specs()[name], got[name])
        with self.assertRaises(KvfsError) as refused:
            self.kv.set_specs({name: dict(SPEC, hash_block_size=5)})
        self.assertIn(name, refused.exception.message + str(refused.exception.field))
        self.assertEqual(self.kv.get_specs([name]), got)
        self.assertEqual(self.kv.remove_specs([name]), got)
        self.assertNotIn(name, self.kv.get_specs())
        self.kv.set_specs({name: SPEC})  # for the clean-up

    def test_longest_hit(self):
        """Group 0 has the first 5 of 8 blocks, group 1, a window of 2 blocks, the 4th and 5th."""
        self.kv.set_specs({self.group: SPEC})
        self.addCleanup(self.kv.remove_specs, [self.group])
        hashes = [bytes([i]) * 8 for i in range(1, 9)]
        for g, positions in (("0", range(5)), ("1", (3, 4))):
            self.store(*("%s/%s" % (g, hashes[i].hex()) for i in positions))
        template = self.group + "/{group}/{hash}"
        for options in ({}, {"num_tokens": 128}, {"fetch": True}, {"num_tokens": 128, "cached": 32, "fetch": True}):
            for spec in (self.group, SPEC):
                with self.subTest(options=options, spec=str(spec)[:10]):
                    hit = self.kv.longest_hit(spec, hashes, template=template, **options)
                    self.assertEqual((hit.hit_tokens, hit.capped, hit.pending, hit.late), (80, False, 0, 0))
                    self.assertEqual([g.blocks() for g in hit.groups], [[0, 1, 2, 3, 4], [3, 4]])
                    if options.get("fetch"):
                        first = options.get("cached", 0) // 16
                        self.assertEqual([g.name for g in hit.groups], ["0", "1"])
                        self.assertEqual([g.fetch for g in hit.groups], [list(range(first, 5)), [3, 4]])
        self.assertEqual(self.kv.longest_hit(self.group, []).hit_tokens, 0)

    def test_capped(self):
        spec = {"hash_block_size": 16, "groups": [{"kind": "full", "block_size": 16}]}
        hashes = [bytes([i]) * 8 for i in range(1, 3)]
        self.store(*("0/" + h.hex() for h in hashes))
        self.kv.set_specs({self.group: spec})
        self.addCleanup(self.kv.remove_specs, [self.group])
        for s in (self.group, spec):
            hit = self.kv.longest_hit(s, hashes, num_tokens=32, template=self.group + "/{group}/{hash}")
            self.assertEqual((hit.hit_tokens, hit.capped), (16, True))

    def test_masks(self):
        mask = self.kv.load_mask(SPEC, 80, num_hashes=8)
        self.assertEqual(mask.hit_tokens, 80)
        self.assertEqual([g.blocks() for g in mask.groups], [[0, 1, 2, 3, 4], [3, 4]])
        self.assertEqual([g.fetch for g in self.kv.load_mask(SPEC, 80, cached=64, num_hashes=8).groups], [[4], [4]])
        groups = self.kv.store_mask(SPEC, 128, prompt_tokens=128)
        self.assertEqual([(g.name, g.start, g.end) for g in groups], [("0", 0, 8), ("1", 0, 8)])
        self.assertEqual(groups[0].blocks(), list(range(8)))

    def test_why(self):
        self.store("here", "gone")
        os.unlink(os.path.join(self.dir, "gone"))
        here, gone, never = self.kv.why([os.path.join(self.dir, n) for n in ("here", "gone", "never")])
        self.assertEqual((here.path, here.verdict), (self.group + "/here", "present"))
        self.assertIn("memory", here.tier)
        self.assertEqual(gone.verdict, "removed")
        self.assertGreaterEqual(gone.age_seconds, 0)
        self.assertTrue(gone.time)
        self.assertEqual(never.verdict, "never_stored")
        self.assertTrue(all(v.text for v in (here, gone, never)))
        self.assertEqual(self.kv.why([]), [])

    def test_prefetch(self):
        """Prefetch from the SSD: results in order, and the blocks are in memory then."""
        names = ["%016x" % i for i in range(40)]
        self.cold(*names, data=os.urandom(64 << 10))
        self.store("ff" * 8)
        steps = []
        asked = ["ff" * 8] + names + ["ee" * 8]
        got = self.kv.prefetch(asked, group=self.group, request="req-2", progress=steps.append)
        self.assertEqual(got.results, "m" + "l" * 40 + ".")
        self.assertEqual((got.done, got.total, got.in_memory, got.loaded, got.absent, got.failed), (42, 42, 1, 40, 1, 0))
        self.assertEqual(got.bytes, 40 * (64 << 10))
        self.assertEqual([s.done for s in steps], sorted(s.done for s in steps))
        self.assertEqual(self.kv.exists(names, group=self.group).states, "m" * 40)
        self.assertEqual(self.kv.prefetch(keys=[self.group + "/" + n for n in names]).results, "m" * 40)
        self.assertEqual(self.kv.prefetch([]).results, "")

    def test_prefetch_cancelled(self):
        """A prefetch that is closed leaves a daemon that answers; so does one cancelled at once."""
        names = ["%016x" % i for i in range(200)]
        self.cold(*names)
        self.kv.start_prefetch(names, group=self.group).close()
        cancel = threading.Event()
        cancel.set()
        self.assertRaises(Cancelled, self.kv.prefetch, names, group=self.group, cancel=cancel)
        running = self.kv.start_prefetch(names, group=self.group)
        got = []

        def wait():
            try:
                got.append(running.result())
            except Cancelled as e:
                got.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        running.close()
        thread.join(DEADLINE)
        self.assertFalse(thread.is_alive())
        self.assertEqual(len(got), 1)
        again = self.kv.prefetch(names, group=self.group)
        self.assertEqual(again.in_memory + again.loaded, 200)

    def test_evict(self):
        self.cold("a", "b")
        self.assertEqual(self.kv.tiers(self.group + "/a"), ["disk"])
        kept = self.kv.evict("memory", [self.group + "/never"])
        self.assertEqual((kept.blocks, kept.kept_total), (0, 1))
        self.assertEqual(kept.kept[0]["path"], self.group + "/never")
        self.assertGreaterEqual(self.kv.evict("disk", [self.group], force=True).blocks, 2)
        self.assertEqual(self.kv.exists(["a", "b"], group=self.group).states, "..")

    def test_attributes(self):
        path = self.group + "/a"
        self.store("a", data=b"123456789")
        self.assertEqual(self.kv.state(path), "hit")
        self.assertIn("memory", self.kv.tiers(path))
        self.assertEqual(self.kv.checksum(path), "crc64nvme:ae8b14860a799888")  # the check value of the algorithm
        self.assertFalse(self.kv.pinned(path))
        self.kv.pin(path)
        self.assertTrue(self.kv.pinned(path))
        self.assertEqual(self.kv.evict("memory", [path], force=True).blocks, 0)
        self.kv.unpin(path)
        self.assertFalse(self.kv.pinned(path))
        self.assertIsNone(self.kv.ttl(path))
        self.kv.set_ttl(path, 3600.5)
        self.assertGreater(self.kv.ttl(path), 3000)
        self.kv.set_ttl(path, 0)
        self.assertIsNone(self.kv.ttl(path))
        for call in (self.kv.pin, self.kv.ttl, self.kv.state):
            self.assertRaises(FileNotFoundError, call, self.group + "/absent")

    def test_events(self):
        with self.kv.events(groups=[self.group]) as events:
            self.store("a", data=b"123")
            os.rename(os.path.join(self.dir, "a"), os.path.join(self.dir, "b"))
            os.unlink(os.path.join(self.dir, "b"))
            seen = self.read_until(events, lambda e: e.event == "removed" and e.hash == "b")
        seqs = [e.seq for e in seen]
        self.assertEqual(seqs, sorted(set(seqs)))
        self.assertEqual({e.group for e in seen}, {self.group})
        stored = [e for e in seen if e.event == "stored" and e.tier == "memory"]
        self.assertEqual([(e.hash, e.size) for e in stored], [("a", 3)])
        renamed = [e for e in seen if e.event == "renamed" and e.hash == "b"]
        self.assertEqual([e.from_path for e in renamed], [self.group + "/a"])
        self.assertEqual(seen[-1].reason, "unlink")

    def test_events_since(self):
        """What was before is there again by its number; a number that is gone gives a gap."""
        with self.kv.events(groups=[self.group], events=["stored"]) as events:
            self.store("a", "b")
            seen = self.read_until(events, lambda e: e.tier == "memory" and e.hash == "b")
        with self.kv.events(since=seen[0].seq, groups=[self.group], events=["stored"]) as events:
            again = self.read_until(events, lambda e: e.seq == seen[-1].seq)
        self.assertEqual(again, seen)
        with self.kv.events() as events:
            self.store("c")
            first = next(events)
        self.assertGreater(first.seq, seen[-1].seq)

    def test_events_gap(self):
        """A reader who asks for what the daemon has long forgotten gets a gap, then the rest."""
        path = os.path.join(self.dir, "a")
        with self.kv.events() as events:
            self.store("a")
            begin = next(events).seq
        while True:  # each turn makes events; the ring has 16,384
            for _ in range(1000):
                with open(path, "wb"):
                    pass
                os.unlink(path)
            with self.kv.events() as events:
                self.store("b")
                if next(events).seq > begin + 20000:
                    break
        with self.kv.events(since=begin) as events:
            gap, after = next(events), next(events)
        self.assertEqual(gap.event, "gap")
        self.assertEqual(gap.seq, begin + gap.missed)
        self.assertGreater(gap.missed, 0)
        self.assertEqual(after.seq, gap.seq)

    def test_events_close(self):
        """A reader that waits comes back when another thread closes, or sets the stop event."""
        stop = threading.Event()
        for end in ("close", "stop"):
            events = self.kv.events(groups=["no such group"], stop=stop)
            got = []
            thread = threading.Thread(target=lambda: got.append(list(events)))
            thread.start()
            events.close() if end == "close" else stop.set()
            thread.join(DEADLINE)
            self.assertFalse(thread.is_alive())
            self.assertEqual(got, [[]])

    def test_threads(self):
        hashes = self.random_hashes(500, 16)
        for h in hashes[::50]:
            self.store(h.hex())
        failures = []

        def work(i):
            try:
                part = hashes[i * 10:i * 10 + 100]
                want = [(i * 10 + j) % 50 == 0 for j in range(100)]
                for _ in range(50):
                    got = self.kv.exists(part, group=self.group).bools()
                    if got != want:
                        failures.append((i, got))
            except Exception as e:
                failures.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])

    def test_status_and_mount(self):
        self.assertIn("tiers", self.kv.status())
        self.assertEqual(kvfs.find_mount(self.dir), os.path.realpath(MOUNT))
        self.assertRaises(FileNotFoundError, kvfs.find_mount, "/proc")


if __name__ == "__main__":
    unittest.main()
