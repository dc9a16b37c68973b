"""Tests of kvfs.py with a daemon made of functions: python3 -m unittest test_kvfs"""

import ast
import errno
import json
import os
import pickle
import socket
import struct
import tempfile
import threading
import unittest
from unittest import mock

import kvfs
from kvfs import Cancelled, Event, Kvfs, KvfsError, Progress

DEADLINE = 60  # seconds for what ought to happen; only a failure takes so long


class Fake:
    """A daemon of one control file after another: answers[name] makes the pieces of an answer of
    a request. A piece is bytes, an OSError that the read fails with, or a function that is called
    in its place and returns one of these, or None to be left out."""

    def __init__(self, **answers):
        self.answers = answers
        self.requests = []  # (name, request)
        self.opened = []  # (name, flags)
        self.closed = 0
        self.lock = threading.Lock()


class FakeFile(kvfs._File):
    def __init__(self, fake, name, flags):
        self.fd, self.fake, self.name = 1 << 30, fake, name
        self.request, self.pieces, self.used = b"", None, flags & os.O_ACCMODE == os.O_RDONLY

    def write(self, data):
        if self.pieces is not None:
            self.request, self.pieces = b"", None
        self.request += data
        self.used = True

    def read(self):
        if self.pieces is None:
            assert self.used, "read before a request"
            with self.fake.lock:
                self.fake.requests.append((self.name, self.request))
            self.pieces = self.fake.answers[self.name](self.request)
        while self.pieces:
            piece = self.pieces.pop(0)
            if callable(piece):
                piece = piece()
            if isinstance(piece, BaseException):
                raise piece
            if piece is not None:
                return piece
        return b""

    def close(self):
        if self.fd >= 0:
            self.fd = -1
            self.fake.closed += 1


class FakeKvfs(Kvfs):
    """A client of a Fake."""

    def __init__(self, **answers):
        super().__init__("/mnt/kv")
        self.fake = Fake(**answers)

    def _open(self, name, flags):
        with self.fake.lock:
            self.fake.opened.append((name, flags))
        return FakeFile(self.fake, name, flags)

    def request(self):
        """The last request, decoded from JSON."""
        return json.loads(self.fake.requests[-1][1].decode())


def answer(fields):
    """Make the answer of a fake: one line of JSON."""
    return lambda request: [json.dumps(fields).encode() + b"\n"]


def exists_answer(states, pieces=1):
    hits = sum(s in "mdp" for s in states)
    head = struct.pack("<4s5I", b"KVA1", hits, states.count("w"), states.count("l"), 1, len(states))
    whole = head + states.encode()
    step = -(-len(whole) // pieces)
    return lambda request: [whole[i:i + step] for i in range(0, len(whole), step)]


NO_BLOCKS = {"op": "exists", "states": "", "hits": 0, "pending": 0, "late": 0, "misses": 0, "prefix": 0}


class Binary(unittest.TestCase):
    """The binary form, byte by byte, written from docs/control.md."""

    def test_exists_bytes(self):
        kv = FakeKvfs(query=exists_answer("m."))
        kv.exists([b"\x9f\x08", b"\x77\xaa"], group="g0", template="{group}/{hash}", ranks=3, lease=False,
                  promote=True, deadline=0.25, request="req-1")
        self.assertEqual(kv.fake.requests[-1], ("query", bytes((
            *b"KVQ1", 1, 1 | 2,
            2, 0,  # bytes of a hash
            2, 0, 0, 0,  # hashes
            250, 0, 0, 0,  # ms
            2, 0, 14, 0, 5, 0,  # group, template, request
            3, 0,  # ranks
            0, 0, 0, 0,
            0, 0, 0, 0,
            *b"g0{group}/{hash}req-1", 0x9f, 0x08, 0x77, 0xaa))))

    def test_exists_text(self):
        kv = FakeKvfs(query=exists_answer("m"))
        kv.exists(["9f08"], group="g0")
        self.assertEqual(kv.fake.requests[-1][1], bytes((
            *b"KVQ1", 1, 4, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            *b"g09f08")))

    def test_longest_hit(self):
        body = struct.pack("<4s5I", b"KVA1", 48, 1, 2, 1, 2) + struct.pack("<I", 3) + b"111" + struct.pack("<I", 2) + b"01"
        kv = FakeKvfs(query=lambda request: [body])
        hit = kv.longest_hit("gemma", [b"\x01", b"\x02", b"\x03"], num_tokens=70000, template="x{hash}")
        self.assertEqual(kv.fake.requests[-1][1], bytes((
            *b"KVQ1", 2, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 7, 0, 0, 0, 1, 0,
            0x70, 0x11, 1, 0,  # 70000
            0, 0, 0, 0, *b"gemmax{hash}", 1, 2, 3)))
        self.assertEqual((hit.hit_tokens, hit.pending, hit.late, hit.capped), (48, 1, 2, True))
        self.assertEqual([g.load for g in hit.groups], ["111", "01"])
        self.assertEqual(hit.groups[1].blocks(), [1])
        self.assertIsNone(hit.groups[1].name)
        self.assertIsNone(hit.groups[1].fetch)

    def test_lengths_are_of_utf8(self):
        kv = FakeKvfs(query=exists_answer("m"))
        kv.exists([b"a"], group="gé")
        request = kv.fake.requests[-1][1]
        self.assertEqual(request[16:18], b"\x03\x00")
        self.assertEqual(request[32:], "géa".encode())

    def test_answer(self):
        kv = FakeKvfs(query=exists_answer("md.pwl", pieces=3))
        found = kv.exists([bytes([i]) for i in range(6)])
        self.assertEqual(found.states, "md.pwl")
        self.assertEqual((found.hits, found.pending, found.late, found.misses, found.prefix), (3, 1, 1, 1, 1))
        self.assertEqual(found.bools(), [True, True, False, True, False, False])
        self.assertEqual(list(found), found.bools())
        self.assertEqual(found[1:3], [True, False])
        self.assertEqual(len(found), 6)
        self.assertIn("hits=3", repr(found))

    def test_error(self):
        text = "no spec \"gemmä\"".encode()
        kv = FakeKvfs(query=lambda request: [b"KVE1" + struct.pack("<I", len(text)) + text])
        with self.assertRaises(KvfsError) as got:
            kv.longest_hit("gemmä", [b"a"])
        self.assertEqual((got.exception.message, got.exception.field), ("no spec \"gemmä\"", None))

    def test_nonsense(self):
        good = exists_answer("m")(b"")[0]
        for bad in (b"", b"KVA1", b"{}", good[:-1], good + b".", b"KVA2" + good[4:]):
            with self.subTest(bad=bad):
                kv = FakeKvfs(query=lambda request, bad=bad: [bad])
                if bad == good + b".":
                    self.assertEqual(kv.exists([b"a"]).states, "m")  # what follows is not ours
                    continue
                with self.assertRaises(OSError) as got:
                    kv.exists([b"a"])
                self.assertEqual(got.exception.errno, errno.EPROTO)
        short = struct.pack("<4s5I", b"KVA1", 1, 0, 0, 0, 1)
        for bad in (short, short + struct.pack("<I", 5) + b"11"):
            with self.subTest(bad=bad), self.assertRaises(OSError):
                FakeKvfs(query=lambda request, bad=bad: [bad]).longest_hit("s", [b"a"])

    def test_json_where_binary_cannot(self):
        long = "x" * 70000
        cases = [
            ([b"a", b"bc"], {}, {"hashes": ["61", "6263"]}),
            ([b"a", "b"], {}, {"hashes": ["61", "b"]}),
            (["é"], {}, {"hashes": ["é"]}),
            ([""], {}, {"hashes": [""]}),
            ([], {}, {"hashes": []}),
            ([b"a"], {"deadline": 0}, {"deadline_ms": 0}),
            ([b"a"], {"deadline": 1e9}, {"deadline_ms": 10**12}),
            ([b"a"], {"deadline": -1}, {"deadline_ms": -1000}),
            ([b"a"], {"ranks": 0}, {"ranks": 0}),
            ([b"a"], {"ranks": 70000}, {"ranks": 70000}),
            ([b"a"], {"group": long}, {"group": long}),
            ([b"a"], {"template": long}, {"template": long}),
            ([b"a"], {"request": long}, {"request": long}),
            (["y" * 70000], {}, {"hashes": ["y" * 70000]}),
        ]
        for hashes, options, want in cases:
            with self.subTest(hashes=str(hashes)[:40], options=str(options)[:40]):
                states = "." * len(hashes)
                kv = FakeKvfs(query=answer(dict(NO_BLOCKS, states=states, misses=len(states))))
                kv.exists(hashes, **options)
                got = kv.request()
                self.assertEqual({k: got[k] for k in want}, want)
                self.assertEqual(got["op"], "exists")

    def test_longest_hit_json_where_binary_cannot(self):
        got = {"op": "longest_hit", "hit_tokens": 0, "capped": False, "pending": 0, "late": 0, "groups": []}
        for options, want in [
            ({"fetch": True}, {"fetch": True}),
            ({"cached": 16}, {"cached": 16}),
            ({"num_tokens": 0}, {"num_tokens": 0}),
            ({"num_tokens": 1 << 32}, {"num_tokens": 1 << 32}),
            ({"spec": {"groups": []}}, {"spec": {"groups": []}}),
        ]:
            with self.subTest(options=options):
                kv = FakeKvfs(query=answer(got))
                kv.longest_hit(**dict({"spec": "s", "hashes": [b"a"]}, **options))
                self.assertEqual({k: kv.request()[k] for k in want}, want)

    def test_deadline_is_rounded_up(self):
        kv = FakeKvfs(query=exists_answer("m"))
        for seconds, ms in [(1e-9, 1), (0.0011, 2), (2, 2000)]:
            kv.exists([b"a"], deadline=seconds)
            self.assertEqual(struct.unpack_from("<I", kv.fake.requests[-1][1], 12), (ms,))

    def test_one_name_is_no_list(self):
        kv = FakeKvfs()
        for call in (lambda: kv.exists("9f08"), lambda: kv.exists(b"9f"), lambda: kv.exists_keys("g0/a"),
                     lambda: kv.why("g0/a"), lambda: kv.get_specs("gemma"), lambda: kv.exists([1])):
            self.assertRaises(TypeError, call)

    def test_any_iterable(self):
        kv = FakeKvfs(query=exists_answer("mm"))
        self.assertEqual(kv.exists(h for h in (b"a", b"b")).hits, 2)


class Json(unittest.TestCase):
    """Requests and answers in JSON."""

    def test_exists_keys(self):
        kv = FakeKvfs(query=answer({"op": "exists", "states": "md.w", "hits": 2, "pending": 1, "late": 0, "misses": 1, "prefix": 2}))
        found = kv.exists_keys(["g0/слот 0", "/mnt/kv/g0//b", b"g0/c", "d"], lease=False, promote=True, deadline=0.5, request="r")
        self.assertEqual(kv.request(), {
            "op": "exists", "keys": ["g0/слот 0", "g0/b", "g0/c", "d"], "lease": False, "promote": True,
            "deadline_ms": 500, "request": "r"})
        self.assertEqual((found.states, found.hits, found.pending, found.misses, found.prefix), ("md.w", 2, 1, 1, 2))

    def test_defaults_are_left_out(self):
        kv = FakeKvfs(query=answer(NO_BLOCKS))
        kv.exists_keys([])
        self.assertEqual(kv.request(), {"op": "exists", "keys": []})
        kv.exists([])
        self.assertEqual(kv.request(), {"op": "exists", "hashes": []})

    def test_keys_elsewhere(self):
        kv = FakeKvfs()
        for path in ("/mnt/kvx/a", "/mnt", "/mnt/kv/../a"):
            self.assertRaises(ValueError, kv.exists_keys, [path])

    def test_not_utf8(self):
        kv = FakeKvfs()
        self.assertRaises(ValueError, kv.exists_keys, [b"g0/\xff"])

    def test_longest_hit(self):
        kv = FakeKvfs(query=answer({
            "op": "longest_hit", "hit_tokens": 32, "capped": True, "pending": 1, "late": 2,
            "groups": [{"name": "0", "load": "11", "fetch": [0, 1]}, {"name": "1", "load": "01", "fetch": [1]}]}))
        hit = kv.longest_hit("gemma", ["aa", "bb"], num_tokens=33, cached=16, fetch=True, template="{hash}", ranks=2,
                             lease=False, promote=True, deadline=1, request="r")
        self.assertEqual(kv.request(), {
            "op": "longest_hit", "spec": "gemma", "hashes": ["aa", "bb"], "num_tokens": 33, "cached": 16, "fetch": True,
            "template": "{hash}", "ranks": 2, "lease": False, "promote": True, "deadline_ms": 1000, "request": "r"})
        self.assertEqual((hit.hit_tokens, hit.capped, hit.pending, hit.late), (32, True, 1, 2))
        self.assertEqual(hit.groups[1], kvfs.GroupLoad("1", "01", [1]))

    def test_masks(self):
        kv = FakeKvfs(query=answer({"op": "load_mask", "hit_tokens": 32, "groups": [{"name": "0", "load": "01", "fetch": [1]}]}))
        mask = kv.load_mask("gemma", 32, cached=16, num_hashes=2)
        self.assertEqual(kv.request(), {"op": "load_mask", "spec": "gemma", "hit_tokens": 32, "cached": 16, "num_hashes": 2})
        self.assertEqual((mask.hit_tokens, mask.groups[0].blocks(), mask.groups[0].fetch), (32, [1], [1]))
        kv = FakeKvfs(query=answer({"op": "store_mask", "groups": [
            {"name": "0", "start": 1, "end": 4, "store": None}, {"name": "1", "start": 1, "end": 4, "store": "011"}]}))
        groups = kv.store_mask("gemma", 64, start=16, prompt_tokens=60)
        self.assertEqual(kv.request(), {"op": "store_mask", "spec": "gemma", "num_tokens": 64, "start": 16, "prompt_tokens": 60})
        self.assertEqual([g.blocks() for g in groups], [[1, 2, 3], [2, 3]])

    def test_why(self):
        kv = FakeKvfs(query=answer({"op": "why", "verdicts": [
            {"path": "g0/a", "verdict": "evicted", "tier": "memory", "rule": "capacity", "time": "2026-11-20T10:00:00.5Z",
             "age_seconds": 12.5, "text": "evicted", "of the future": 1},
            {"path": "g0/b", "verdict": "elsewhere", "groups": ["g1"], "text": "elsewhere"}]}))
        a, b = kv.why(["g0/a", "/mnt/kv/g0/b"])
        self.assertEqual(kv.request(), {"op": "why", "keys": ["g0/a", "g0/b"]})
        self.assertEqual((a.verdict, a.rule, a.age_seconds, a.by), ("evicted", "capacity", 12.5, None))
        self.assertEqual((b.groups, b.time), (["g1"], None))

    def test_specs(self):
        kv = FakeKvfs(specs=answer({"specs": {"gemma": {"hash_block_size": 16}}}))
        spec = {"gemma": {"hash_block_size": 16, "groups": []}}
        for call, want in [
            (lambda: kv.get_specs(), {}),
            (lambda: kv.get_specs(["gemma"]), {"get": ["gemma"]}),
            (lambda: kv.set_specs(spec), {"set": spec}),
            (lambda: kv.remove_specs(["gemma"]), {"remove": ["gemma"]}),
        ]:
            self.assertEqual(call(), {"gemma": {"hash_block_size": 16}})
            self.assertEqual(kv.request(), want)

    def test_evict(self):
        kv = FakeKvfs(evict=answer({"blocks": 2, "bytes": 9, "kept_total": 1, "kept": [{"path": "g0/a", "reason": "open"}]}))
        got = kv.evict("memory", ["g0", "/mnt/kv/g1/a"], force=True)
        self.assertEqual(kv.request(), {"tier": "memory", "paths": ["g0", "g1/a"], "force": True})
        self.assertEqual(got, (2, 9, 1, [{"path": "g0/a", "reason": "open"}]))
        kv.evict("disk", all=True)
        self.assertEqual(kv.request(), {"tier": "disk", "all": True})

    def test_error(self):
        kv = FakeKvfs(query=answer({"error": "hashes[1]: got number, want string", "field": "/hashes/1"}))
        for _ in range(2):  # the descriptor remains usable
            with self.assertRaises(KvfsError) as got:
                kv.exists([])
            self.assertEqual((got.exception.message, got.exception.field), ("hashes[1]: got number, want string", "/hashes/1"))
            self.assertIn("/hashes/1", str(got.exception))
        self.assertEqual(len(kv.fake.opened), 1)
        again = pickle.loads(pickle.dumps(got.exception))
        self.assertEqual((again.message, again.field, str(again)), (got.exception.message, "/hashes/1", str(got.exception)))

    def test_nonsense(self):
        for bad in (b"", b"nonsense\n", b"[]\n", b"{}\n", b'{"verdicts":[{}]}\n', b'{"specs":', b"\xff"):
            kv = FakeKvfs(**{name: lambda request: [bad] for name in ("query", "specs", "evict", "prefetch", "status")})
            for call in (lambda: kv.exists([]), lambda: kv.longest_hit("s", []), lambda: kv.load_mask("s", 1, num_hashes=1),
                         lambda: kv.store_mask("s", 1, prompt_tokens=1), lambda: kv.why(["a"]), lambda: kv.get_specs(),
                         lambda: kv.evict("memory"), lambda: kv.prefetch([])):
                with self.subTest(bad=bad), self.assertRaises(OSError) as got:
                    call()
                self.assertEqual(got.exception.errno, errno.EPROTO)

    def test_status(self):
        kv = FakeKvfs(status=lambda request: [b'{"version": ', b'"1"}'])
        self.assertEqual(kv.status(), {"version": "1"})
        self.assertEqual(kv.fake.opened, [("status", os.O_RDONLY)])


class Descriptors(unittest.TestCase):
    """How descriptors are used: again, in parallel, after errors, after a fork."""

    def test_used_again(self):
        kv = FakeKvfs(query=answer(NO_BLOCKS), specs=answer({"specs": {}}))
        for _ in range(3):
            kv.exists([])
            kv.get_specs()
        self.assertEqual(kv.fake.opened, [("query", os.O_RDWR), ("specs", os.O_RDWR)])
        kv.close()
        self.assertEqual(kv.fake.closed, 2)
        for call in (lambda: kv.exists([]), kv.status, kv.events, lambda: kv.start_prefetch([])):
            self.assertRaises(ValueError, call)
        kv.close()

    def test_context(self):
        with FakeKvfs(query=answer(NO_BLOCKS)) as kv:
            kv.exists([])
        self.assertEqual(kv.fake.closed, 1)

    def test_threads_run_in_parallel(self):
        """All threads are inside their calls at the same time, and each gets its own answer."""
        n = 8
        inside = threading.Barrier(n)

        def query(request):
            size = json.loads(request.decode())["keys"][0]
            inside.wait(DEADLINE)
            return [json.dumps({"verdicts": [{"path": size, "verdict": "present", "text": ""}]}).encode()]

        kv = FakeKvfs(query=query)
        failures = []

        def work(i):
            try:
                for j in range(20):
                    name = "%d-%d" % (i, j)
                    got = kv.why([name])[0].path
                    if got != name:
                        failures.append((got, name))
            except Exception as e:
                inside.abort()
                failures.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(kv.fake.opened), n)

    def test_idle_descriptors_are_bounded(self):
        n = kvfs._MAX_IDLE + 5
        inside = threading.Barrier(n)

        def query(request):
            inside.wait(DEADLINE)
            return answer(NO_BLOCKS)(request)

        kv = FakeKvfs(query=query)
        threads = [threading.Thread(target=kv.exists, args=([],)) for _ in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual((len(kv.fake.opened), kv.fake.closed), (n, 5))

    def test_close_during_a_call(self):
        kv = FakeKvfs(query=lambda request: [lambda: kv.close(), json.dumps(NO_BLOCKS).encode()])
        self.assertEqual(len(kv.exists([])), 0)
        self.assertEqual(kv.fake.closed, 1)

    def test_daemon_started_again(self):
        for number in (errno.ENOTCONN, errno.ENODEV, errno.ESTALE, errno.ECONNABORTED, errno.EIO):
            with self.subTest(errno.errorcode[number]):
                kv = FakeKvfs(query=answer(NO_BLOCKS))
                kv.exists([])
                first = kv._idle["query"][0]
                other = kvfs_file = FakeFile(kv.fake, "query", os.O_RDWR)
                kv._idle["query"].insert(0, other)  # of the same old daemon
                first.read = mock.Mock(side_effect=OSError(number, "gone"))
                kv.exists([])
                self.assertEqual(len(kv.fake.opened), 2)
                self.assertEqual((first.fd, kvfs_file.fd), (-1, -1))

    def test_daemon_gone(self):
        kv = FakeKvfs(query=lambda request: [OSError(errno.ENOTCONN, "gone")])
        with self.assertRaises(OSError) as got:
            kv.exists([])
        self.assertEqual(got.exception.errno, errno.ENOTCONN)
        self.assertEqual((len(kv.fake.opened), kv.fake.closed), (2, 2))

    def test_other_errors_are_not_repeated(self):
        kv = FakeKvfs(query=lambda request: [PermissionError(errno.EACCES, "no")])
        self.assertRaises(PermissionError, kv.exists, [])
        self.assertEqual((len(kv.fake.opened), kv.fake.closed), (1, 1))

    def test_interrupt_closes(self):
        """Closing is what cancels, and half an answer must not be met by the next call."""
        kv = FakeKvfs(query=lambda request: [b"{", KeyboardInterrupt()])
        self.assertRaises(KeyboardInterrupt, kv.exists, [])
        self.assertEqual(kv.fake.closed, 1)
        kv.fake.answers["query"] = answer(NO_BLOCKS)
        self.assertEqual(len(kv.exists([])), 0)

    def test_fork(self):
        """A child does not write into the dialogues of its parent, not even if another thread
        held the lock at the fork."""
        kv = FakeKvfs(query=answer(NO_BLOCKS))
        kv.exists([])
        with kv._lock:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    kv.exists([])
                    code = 0 if len(kv.fake.opened) == 2 else 3
                finally:
                    os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        kv.exists([])
        self.assertEqual(len(kv.fake.opened), 1)

    def test_file(self):
        """The real file: short writes, several reads, and an empty one at the end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, tempfile.TemporaryDirectory() as dir:
            path = os.path.join(dir, "file")
            open(path, "w").close()
            file = kvfs._File(path, os.O_RDWR)
            self.assertFalse(os.get_inheritable(file.fd))
            os.dup2(ours.fileno(), file.fd, inheritable=False)
            theirs.sendall(b"an ")
            theirs.sendall(b"answer")
            theirs.sendall(b"")
            real = os.write
            with mock.patch("kvfs.os.write", side_effect=lambda fd, data: real(fd, bytes(data)[:3])):
                self.assertEqual(kvfs._ask(file, b"a request"), b"an answer")
            self.assertEqual([theirs.recv(100) for _ in range(3)], [b"a r", b"equ", b"est"])
            fd = file.fd
            file.close()
            file.close()
            with self.assertRaises(OSError):
                os.fstat(fd)

    def test_open_fails(self):
        with tempfile.TemporaryDirectory() as dir, Kvfs(dir) as kv:
            self.assertRaises(FileNotFoundError, kv.exists, [])
            self.assertRaises(FileNotFoundError, kv.status)


def later(n):
    """Pieces that say n times that there is nothing yet."""
    return [BlockingIOError(errno.EAGAIN, "not yet")] * n


class Streams(unittest.TestCase):
    """Prefetch and events: answers that come bit by bit."""

    RESULT = {"results": "ml.", "done": 3, "total": 3, "bytes": 10, "in_memory": 1, "loaded": 1, "absent": 1,
              "pending": 0, "failed": 0, "errors": []}

    def pieces(self):
        steps = [{"done": i, "total": 3, "bytes": 5 * i} for i in (1, 2)]
        text = b"".join(json.dumps(s).encode() + b"\n" for s in steps + [self.RESULT])
        return [*later(3), text[:5], *later(2), text[5:50], text[50:]]

    def test_prefetch(self):
        kv = FakeKvfs(prefetch=lambda request: self.pieces())
        steps = []
        got = kv.prefetch(["aa", "bb", "cc"], group="g0", template="{hash}", ranks=2, request="r", progress=steps.append)
        self.assertEqual(kv.request(), {"progress": True, "group": "g0", "hashes": ["aa", "bb", "cc"],
                                        "template": "{hash}", "ranks": 2, "request": "r"})
        self.assertEqual(steps, [Progress(1, 3, 5), Progress(2, 3, 10)])
        self.assertEqual(got._asdict(), self.RESULT)
        self.assertEqual(kv.fake.opened, [("prefetch", os.O_RDWR | os.O_NONBLOCK)])
        self.assertEqual(kv.fake.closed, 1)

    def test_prefetch_keys(self):
        kv = FakeKvfs(prefetch=lambda request: self.pieces())
        kv.prefetch(keys=["/mnt/kv/g0/a"])
        self.assertEqual(kv.request(), {"progress": True, "keys": ["g0/a"]})
        self.assertRaises(TypeError, kv.prefetch)
        self.assertRaises(TypeError, kv.prefetch, ["a"], keys=["a"])

    def test_prefetch_iterator(self):
        kv = FakeKvfs(prefetch=lambda request: self.pieces())
        running = kv.start_prefetch([b"a"])
        self.assertEqual([s.done for s in running], [1, 2])
        self.assertEqual(running.result().results, "ml.")
        self.assertEqual(list(running), [])
        running.close()
        self.assertEqual(running.result().results, "ml.")
        self.assertEqual(kv.fake.closed, 1)

    def test_prefetch_error(self):
        for call in (lambda kv: kv.prefetch([]), lambda kv: kv.start_prefetch([]).result()):
            kv = FakeKvfs(prefetch=answer({"error": "no", "field": "/keys"}))
            with self.assertRaises(KvfsError) as got:
                call(kv)
            self.assertEqual(got.exception.field, "/keys")
            self.assertEqual(kv.fake.closed, 1)

    def test_progress_raises(self):
        class Enough(Exception):
            pass

        def enough(step):
            raise Enough

        kv = FakeKvfs(prefetch=lambda request: self.pieces())
        self.assertRaises(Enough, kv.prefetch, [b"a"], progress=enough)
        self.assertEqual(kv.fake.closed, 1)

    def test_prefetch_close_from_another_thread(self):
        self.cancelled(lambda running, cancel: running.close())

    def test_prefetch_cancel_event(self):
        self.cancelled(lambda running, cancel: cancel.set())

    def cancelled(self, end):
        """A prefetch of which nothing is ever heard ends when it is cancelled."""
        waiting, reads = threading.Event(), []

        def never():
            reads.append(1)
            if len(reads) > 1:  # the first one was that of start_prefetch
                waiting.set()
            return BlockingIOError(errno.EAGAIN, "not yet")

        kv = FakeKvfs(prefetch=lambda request: Forever(never))
        cancel = threading.Event()
        running = kv.start_prefetch([b"a"], cancel=cancel)
        got = []
        thread = threading.Thread(target=lambda: got.append(self.catch(running.result)))
        thread.start()
        self.assertTrue(waiting.wait(DEADLINE))
        end(running, cancel)
        thread.join(DEADLINE)
        self.assertFalse(thread.is_alive())
        self.assertIsInstance(got[0], Cancelled)
        self.assertEqual(kv.fake.closed, 1)

    def catch(self, call):
        try:
            return call()
        except Exception as e:
            return e

    def test_events(self):
        lines = [
            {"seq": 41, "time": 1795084800.123456, "event": "stored", "tier": "memory", "group": "g0", "hash": "9f08", "size": 1048576},
            {"seq": 43, "time": 1795084801.000002, "event": "renamed", "group": "g0", "hash": "new", "size": 1, "from": "g0/old"},
            {"seq": 44, "event": "renamed", "hash": "g1", "from": "g0", "directory": True},
            {"seq": 50, "event": "gap", "missed": 6},
            {"seq": 51, "event": "removed", "hash": "ü", "reason": "unlink", "of the future": 1},
        ]
        text = "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in lines).encode()
        kv = FakeKvfs(events=lambda request: [*later(2), *(text[i:i + 7] for i in range(0, len(text), 7))],
                      status=answer({"events": {"next": 41}}))
        got, events = [], kv.events()
        with self.assertRaises(OSError) as end:  # of the daemon
            for event in events:
                got.append(event)
        self.assertEqual(end.exception.errno, errno.ENOTCONN)
        self.assertEqual(got, [
            Event(41, "stored", 1795084800.123456, "memory", "g0", "9f08", 1048576),
            Event(43, "renamed", 1795084801.000002, group="g0", hash="new", size=1, from_path="g0/old"),
            Event(44, "renamed", hash="g1", from_path="g0", directory=True),
            Event(50, "gap", missed=6),
            Event(51, "removed", hash="ü", reason="unlink"),
        ])
        self.assertEqual([e.path for e in got], ["g0/9f08", "g0/new", "g1", "", "ü"])
        self.assertEqual(kv.fake.opened, [("status", os.O_RDONLY), ("events", os.O_RDWR | os.O_NONBLOCK)])
        self.assertEqual(kv.fake.closed, 2)
        self.assertEqual(kv.request(), {"since": 41})  # nothing between the call and the following is lost

    def test_events_request(self):
        kv = FakeKvfs(events=lambda request: later(1))
        kv.events(since=0, groups=["g0"], events=("stored", "removed"))
        self.assertEqual(kv.request(), {"since": 0, "groups": ["g0"], "events": ["stored", "removed"]})
        self.assertEqual(kv.fake.opened, [("events", os.O_RDWR | os.O_NONBLOCK)])

    def test_runs_at_once(self):
        """A request is run by the first read, so that there is one before anybody iterates."""
        kv = FakeKvfs(events=lambda request: later(1), prefetch=lambda request: later(1))
        kv.events(since=1)
        kv.start_prefetch([b"a"])
        self.assertEqual([name for name, _ in kv.fake.requests], ["events", "prefetch"])

    def test_events_errors(self):
        for pieces, want in [
            ([b'{"error": "no such event"}\n'], KvfsError),
            ([b'{"seq": 1, "eve'], OSError),
            ([b'{"time": 1}\n'], OSError),
            ([b"nonsense\n"], OSError),
            ([OSError(errno.ENOTCONN, "gone")], OSError),
        ]:
            with self.subTest(pieces=pieces):
                kv = FakeKvfs(events=lambda request: list(pieces))
                with self.assertRaises(want):
                    with kv.events(since=1) as events:
                        list(events)
                self.assertEqual((len(kv.fake.opened), kv.fake.closed), (1, 1))

    def test_events_close_from_another_thread(self):
        self.ended(lambda events, stop: events.close())

    def test_events_stop(self):
        self.ended(lambda events, stop: stop.set())

    def ended(self, end):
        waiting, reads = threading.Event(), []

        def never():
            reads.append(1)
            if len(reads) > 1:  # the first one was that of events
                waiting.set()
            return BlockingIOError(errno.EAGAIN, "not yet")

        kv = FakeKvfs(events=lambda request: Forever(never))
        stop = threading.Event()
        events = kv.events(since=1, stop=stop)
        got = []
        thread = threading.Thread(target=lambda: got.append(self.catch(lambda: list(events))))
        thread.start()
        self.assertTrue(waiting.wait(DEADLINE))
        end(events, stop)
        thread.join(DEADLINE)
        self.assertFalse(thread.is_alive())
        self.assertEqual(got, [[]])
        self.assertEqual(kv.fake.closed, 1)
        self.assertEqual(list(events), [])
        events.close()

    def test_close_drops_what_was_read(self):
        kv = FakeKvfs(events=lambda request: [b'{"seq": 1, "event": "stored"}\n{"seq": 2, "event": "stored"}\n'])
        events = kv.events(since=1)
        self.assertEqual(next(events).seq, 1)
        events.close()
        self.assertEqual(kv.fake.closed, 1)
        self.assertEqual(list(events), [])

    def test_two_readers(self):
        """A second thread is refused, and the first one goes on."""
        got = []

        def second():
            thread = threading.Thread(target=lambda: got.append(self.catch(lambda: next(events))))
            thread.start()
            thread.join(DEADLINE)

        kv = FakeKvfs(events=lambda request: [*later(1), second, b'{"seq": 1, "event": "stored"}\n'])
        events = kv.events(since=1)
        self.assertEqual(next(events).seq, 1)
        self.assertIsInstance(got[0], ValueError)


class Forever(list):
    """Pieces of an answer that never ends: always the same one."""

    def __init__(self, piece):
        super().__init__([piece])

    def pop(self, at=0):
        return self[0]


class Names(unittest.TestCase):
    """Mounts, attributes, and what needs no daemon."""

    MOUNTINFO = (
        "22 1 0:20 / / rw - ext4 /dev/sda rw\n"
        "30 22 0:40 / /mnt/a\\040b\\134 rw,nosuid shared:1 - fuse.kvfs kv rw\n"
        "31 30 0:41 / /mnt/a\\040b\\134/below rw - tmpfs tmpfs rw\n"
        "32 22 0:42 / /mnt/hidden rw - fuse.kvfs kv rw\n"
        "33 22 0:43 / /mnt/hidden rw - tmpfs tmpfs rw\n"
        "broken\n")

    def mountinfo(self, text):
        file = tempfile.NamedTemporaryFile("w", suffix="-mountinfo")
        self.addCleanup(file.close)
        file.write(text)
        file.flush()
        return file.name

    def test_find_mount(self):
        info = self.mountinfo(self.MOUNTINFO)
        for path in ("/mnt/a b\\", "/mnt/a b\\/g0/x", b"/mnt/a b\\/g0"):
            self.assertEqual(kvfs.find_mount(path, info), "/mnt/a b\\")
        for path in ("/", "/mnt", "/mnt/a b\\x", "/mnt/a b\\/below/x", "/mnt/hidden/x"):
            self.assertRaises(FileNotFoundError, kvfs.find_mount, path, info)

    def test_only_mount(self):
        line = self.MOUNTINFO.splitlines(True)[1]
        other = "40 22 0:50 / /mnt/c rw - fuse.kvfs kv rw\n"
        self.assertEqual(kvfs.find_mount(None, self.mountinfo(line + line)), "/mnt/a b\\")
        for text in ("", line + other):
            self.assertRaises(FileNotFoundError, kvfs.find_mount, None, self.mountinfo(text))

    def test_default_mount(self):
        with mock.patch.dict(os.environ, KVFS_MOUNT="/mnt/x/"):
            self.assertEqual(Kvfs().mount, "/mnt/x")
        with mock.patch.dict(os.environ), mock.patch("kvfs.find_mount", return_value="/mnt/y"):
            os.environ.pop("KVFS_MOUNT", None)
            self.assertEqual(Kvfs().mount, "/mnt/y")

    def test_attributes(self):
        kv, set_, values = Kvfs("/mnt/kv"), [], {}

        def get(path, name):
            self.assertEqual(path, "/mnt/kv/g0/a")
            return values[name]

        with mock.patch("kvfs.os.setxattr", side_effect=lambda *a: set_.append(a)), \
                mock.patch("kvfs.os.getxattr", side_effect=get):
            kv.pin("g0/a")
            kv.unpin(b"/mnt/kv/g0/a")
            for seconds in (0, 90, 0.0001, 1.5):
                kv.set_ttl("g0/a", seconds)
            for seconds in (-1, float("inf"), float("nan")):
                self.assertRaises(ValueError, kv.set_ttl, "g0/a", seconds)
            for text, want in [(b"0", None), (b"1h2m3.5s", 3723.5), (b"10m0s", 600), (b"250ms", 0.25)]:
                values["user.kvfs.ttl"] = text
                self.assertEqual(kv.ttl("g0/a"), want)
            for text, want in [(b"1", True), (b"0", False)]:
                values["user.kvfs.pinned"] = text
                self.assertEqual(kv.pinned("g0/a"), want)
            for text, want in [(b"memory,disk", ["memory", "disk"]), (b"", [])]:
                values["user.kvfs.tier"] = text
                self.assertEqual(kv.tiers("g0/a"), want)
        self.assertEqual(set_, [("/mnt/kv/g0/a", "user.kvfs." + n, v) for n, v in [
            ("pinned", b"1"), ("pinned", b"0"), ("ttl", b"0ms"), ("ttl", b"90000ms"), ("ttl", b"1ms"), ("ttl", b"1500ms")]])

    def test_old_python(self):
        """The file has no syntax that Python 3.8 lacks."""
        with open(kvfs.__file__, encoding="utf-8") as f:
            ast.parse(f.read(), feature_version=(3, 8))

    def test_all(self):
        for name in kvfs.__all__:
            self.assertTrue(getattr(kvfs, name).__doc__, name)
        for name, method in vars(Kvfs).items():
            if not name.startswith("_"):
                self.assertTrue(method.__doc__, name)


if __name__ == "__main__":
    unittest.main()
