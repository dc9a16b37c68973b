"""Client of kvfs: look-ups of many blocks, prefetch, events, specs and eviction.

It uses the files in ``<mount>/.kvfs/``; docs/control.md has the protocol. It needs only Python
3.8. It is one file, so an engine can copy it.

    with Kvfs("/mnt/kv") as kv:
        found = kv.exists(hashes, group="g0")      # one call for thousands of blocks
        kv.prefetch(hashes[: found.prefix], group="g0")

Several threads may use one ``Kvfs``: their calls run in parallel, each on its own descriptor, and
descriptors are reused. It may also be used after a fork.

Errors: ``KvfsError`` when the daemon refuses a request, ``OSError`` for the rest, such as
``PermissionError`` (the control files are for root and the user of the daemon) and ENOTCONN (the
daemon is gone). The client finds a restarted daemon by itself: it repeats a call that fails because
the old daemon ended. ``ValueError`` for names that are not UTF-8, because requests are UTF-8.
"""

import errno
import json
import math
import os
import re
import struct
import threading
import weakref
from collections import deque
from typing import (
    Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union)

__all__ = [
    "Cancelled", "Event", "Events", "Evicted", "Exists", "GroupLoad", "GroupStore", "Kvfs", "KvfsError", "LoadMask",
    "LongestHit", "Prefetch", "Prefetched", "Progress", "Verdict", "find_mount"]

Hashes = Iterable[Union[bytes, str]]
Path = Union[str, bytes, "os.PathLike[str]"]
Spec = Union[str, Mapping[str, Any]]

# The largest read of a FUSE file, unless its daemon asks for more.
_READ_BYTES = 128 << 10

# The most idle descriptors of a control file. Others are closed after their call.
_MAX_IDLE = 32

# Errors of a descriptor whose daemon has ended.
_GONE = frozenset((errno.ENOTCONN, errno.ENODEV, errno.ESTALE, errno.ECONNABORTED, errno.EIO))

# Pauses between checks of a stream without news, in seconds. See _Stream.
_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.02


class KvfsError(Exception):
    """The daemon refuses a request.

    ``message`` says why. ``field`` is a JSON Pointer (RFC 6901) to the wrong part of the request,
    such as ``/hashes/17``; None if it is no single part, or the request was binary.
    """

    def __init__(self, message: str, field: Optional[str] = None) -> None:
        super().__init__(message if field is None else "%s (at %s)" % (message, field))
        self.message = message
        self.field = field

    def __reduce__(self) -> Any:
        return KvfsError, (self.message, self.field)


class Cancelled(Exception):
    """The prefetch was cancelled before its end."""


# Answers.


class Exists(Sequence):
    """Which of the requested blocks are there; as a sequence, a bool for each.

    states   a character a block, in order: "m" in memory, "d" on the SSD, "o" in object storage, "p" at a peer, "w"
             pending (being written, or on its way into memory), "l" late (there, but later than
             the deadline), "." miss, "/" a directory, which is a miss
    hits     how many are m, d, o or p
    pending  how many are w
    late     how many are l
    misses   how many are "." or "/"
    prefix   how many leading blocks are hits
    """

    __slots__ = ("states", "hits", "pending", "late", "misses", "prefix")

    def __init__(self, states: str, hits: int, pending: int, late: int, prefix: int) -> None:
        self.states = states
        self.hits = hits
        self.pending = pending
        self.late = late
        self.misses = len(states) - hits - pending - late
        self.prefix = prefix

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [s in "mdp" for s in self.states[i]]
        return self.states[i] in "mdp"

    def bools(self) -> List[bool]:
        """Return for each block whether it is a hit, in the form of LMCache and others."""
        return [s in "mdp" for s in self.states]

    def __repr__(self) -> str:
        return "Exists(hits=%d, pending=%d, late=%d, misses=%d, prefix=%d)" % (
            self.hits, self.pending, self.late, self.misses, self.prefix)


class GroupLoad(NamedTuple):
    """What to read of one group of layers, for a hit.

    name   of the group; None after longest_hit by the name of a spec without fetch: the request
           is binary, where groups have only positions
    load   a character for each block up to the hit: "1" read it, "0" it is not needed
    fetch  positions in the hashes of the blocks to be read beyond ``cached``; None if not requested
    """

    name: Optional[str]
    load: str
    fetch: Optional[List[int]]

    def blocks(self) -> List[int]:
        """Return the positions of the blocks to be read."""
        return [i for i, c in enumerate(self.load) if c == "1"]


class LongestHit(NamedTuple):
    """How much of a prompt need not be computed.

    hit_tokens  tokens from the beginning
    capped      all of the prompt was there, and the last token is left out to be computed
    pending     blocks on the way that were being written or loaded, and taken for absent
    late        blocks that would have come too late
    groups      what to read, in the order of the spec
    """

    hit_tokens: int
    capped: bool
    pending: int
    late: int
    groups: List[GroupLoad]


class LoadMask(NamedTuple):
    """What to read for a hit of ``hit_tokens`` tokens; groups in the order of the spec."""

    hit_tokens: int
    groups: List[GroupLoad]


class GroupStore(NamedTuple):
    """What is worth writing of one group of layers.

    start, end  the first considered block, and the one after the last
    store       a character for each of these: "1" write it, "0" not needed; None: write all
    """

    name: str
    start: int
    end: int
    store: Optional[str]

    def blocks(self) -> List[int]:
        """Return the positions of the blocks to be written."""
        if self.store is None:
            return list(range(self.start, self.end))
        return [self.start + i for i, c in enumerate(self.store) if c == "1"]


class Verdict(NamedTuple):
    """Why a block is not there, or that it is. docs/control.md lists the verdicts.

    time is RFC 3339, age_seconds its age; both None if nothing happened.
    """

    path: str
    verdict: str
    text: str
    tier: Optional[str] = None
    rule: Optional[str] = None
    by: Optional[str] = None
    to: Optional[str] = None
    groups: Optional[List[str]] = None
    time: Optional[str] = None
    age_seconds: Optional[float] = None


class Progress(NamedTuple):
    """The progress of a prefetch: blocks done, all blocks, and bytes loaded."""

    done: int
    total: int
    bytes: int


class Prefetched(NamedTuple):
    """The results of a prefetch.

    results  a character a block, in order: "m" it was in memory, "l" it was loaded, "." there is
             none, "w" it is being written, "!" it could not be loaded
    bytes    loaded
    errors   the reason, for the first 100 failures: {"path": ..., "error": ...}
    """

    results: str
    done: int
    total: int
    bytes: int
    in_memory: int
    loaded: int
    absent: int
    pending: int
    failed: int
    errors: List[Dict[str, str]]


class Evicted(NamedTuple):
    """The result of an eviction.

    blocks, bytes  evicted
    kept_total     blocks that were kept, and paths without a block
    kept           the first of these: {"path": ..., "reason": ...}
    """

    blocks: int
    bytes: int
    kept_total: int
    kept: List[Dict[str, str]]


class Event(NamedTuple):
    """One event of a block.

    event is "stored", "evicted", "removed", "renamed", or "gap": the reader was too slow, and
    ``missed`` events are lost, 0 if the number is not known. seq grows by one for each event
    of the daemon. time is in seconds since 1970, size in bytes.
    """

    seq: int
    event: str
    time: float = 0.0
    tier: str = ""
    group: str = ""
    hash: str = ""
    size: int = 0
    reason: str = ""
    from_path: str = ""
    missed: int = 0
    directory: bool = False  # renamed: a directory; all blocks below it have another path now

    @property
    def path(self) -> str:
        """The path of the block below the mount."""
        return self.group + "/" + self.hash if self.group else self.hash


# Files of the control directory.


class _File:
    """An open control file. Not for use in parallel."""

    def __init__(self, path: str, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags)
        self._buffer = bytearray(_READ_BYTES)  # reused: new memory costs more than the read

    def write(self, data: bytes) -> None:
        """Write all of data."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view):]

    def read(self) -> bytes:
        """Return the next bytes; b"" at the end."""
        n = os.readv(self.fd, (self._buffer,))
        return bytes(memoryview(self._buffer)[:n])

    def close(self) -> None:
        """Close the file, which cancels its request."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _ask(file: _File, request: bytes) -> bytes:
    """Return the whole answer to a request."""
    file.write(request)
    parts = []
    while True:
        part = file.read()
        if not part:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        parts.append(part)


class _Stream:
    """Lines of an open control file as they come, until the end, or until close.

    It reads without waiting (O_NONBLOCK), and pauses in between, at most 20 ms or until close.
    No thread could wake another one that waits in a read of a FUSE file: close(2) does not do
    that, and poll(2) always calls such a file readable.
    """

    def __init__(self, file: _File, stop: Optional[threading.Event] = None) -> None:
        self._file = file
        self._lines: Deque[bytes] = deque()
        self._rest = b""  # the beginning of a line
        self._stop = stop
        self._closed = threading.Event()
        self.ended = False  # by the daemon
        self._lock = threading.Lock()  # guards _reading, and the file from close while it is read
        self._reading = False

    @property
    def stopped(self) -> bool:
        """Whether close was called, or the stop event is set."""
        return self._closed.is_set() or (self._stop is not None and self._stop.is_set())

    def begin(self) -> None:
        """Read the first bytes without waiting: the daemon runs a request at its first read."""
        try:
            self._take(self._file.read())
        except BlockingIOError:
            pass

    def line(self) -> Optional[bytes]:
        """Return the next line without its end; None at the end, and once stopped."""
        while not self.stopped:
            if self._lines:
                return self._lines.popleft()
            if not self._fill():
                self.ended = not self.stopped
                break
        self.close()
        return None

    def fields(self) -> Optional[Dict[str, Any]]:
        """Return the object in the next line; None at the end, and once stopped. An error ends it."""
        line = self.line()
        if line is None:
            return None
        try:
            return _decode(line)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """End the stream, from any thread. A thread that is reading closes the file after its read."""
        self._closed.set()
        with self._lock:
            if not self._reading:
                self._file.close()

    def _fill(self) -> bool:
        """Wait for more lines; False at the end."""
        with self._lock:
            if self._closed.is_set():
                return False
            if self._reading:
                raise ValueError("another thread is reading from it")
            self._reading = True
        try:
            return self._take(self._read())
        except BaseException:
            self._closed.set()
            raise
        finally:
            with self._lock:
                self._reading = False
                if self._closed.is_set():
                    self._file.close()

    def _read(self) -> bytes:
        pause = _PAUSE_MIN
        wake = self._closed if self._stop is None else self._stop
        while not self.stopped:
            try:
                return self._file.read()
            except BlockingIOError:
                wake.wait(pause)
                pause = min(2 * pause, _PAUSE_MAX)
        return b""

    def _take(self, data: bytes) -> bool:
        """Split data into lines; False at the end."""
        if not data:
            if self._rest and not self.stopped:
                raise OSError(errno.EPROTO, "the answer ends within a line")
            return False
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        self._lines.extend(lines)
        return True


class Events:
    """Events as they happen: an iterator that waits for the next one, and a context manager.

    It ends when close is called, from any thread, or within 20 ms after the stop event is set.
    The end of the daemon is an OSError. The next daemon counts from 1 again: ask for everything
    again after that, as after a gap.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def __iter__(self) -> "Events":
        return self

    def __next__(self) -> Event:
        fields = self._stream.fields()
        if fields is None:
            if self._stream.ended:
                raise OSError(errno.ENOTCONN, "kvfs has stopped")
            raise StopIteration
        return Event(
            fields["seq"], fields["event"], fields.get("time", 0.0), fields.get("tier", ""),
            fields.get("group", ""), fields.get("hash", ""), fields.get("size", 0),
            fields.get("reason", ""), fields.get("from", ""), fields.get("missed", 0),
            fields.get("directory", False))

    def close(self) -> None:
        """End the iteration, from any thread. It may be called again."""
        self._stream.close()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class Prefetch:
    """A prefetch under way: an iterator over its Progress, and a context manager.

    Leaving the context, and close from any thread, cancel the loads that have not begun.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._result: Optional[Prefetched] = None

    def __iter__(self) -> Iterator[Progress]:
        return self

    def __next__(self) -> Progress:
        if self._result is not None:
            raise StopIteration
        fields = self._stream.fields()
        if fields is None:
            raise StopIteration
        if "results" not in fields:
            return Progress(fields["done"], fields["total"], fields["bytes"])
        self._result = Prefetched(
            fields["results"], fields["done"], fields["total"], fields["bytes"],
            fields["in_memory"], fields["loaded"], fields["absent"], fields["pending"],
            fields["failed"], fields.get("errors") or [])
        self._stream.close()
        raise StopIteration

    def result(self) -> Prefetched:
        """Wait for the end. Fail with Cancelled if the prefetch was cancelled before."""
        for _ in self:
            pass
        if self._result is None:
            if self._stream.ended:
                raise _broken("a prefetch without results")
            raise Cancelled("the prefetch was cancelled")
        return self._result

    def close(self) -> None:
        """Cancel the loads that have not begun, from any thread. After the end it does nothing."""
        self._stream.close()

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


# Requests and answers.


def _broken(what: str) -> OSError:
    return OSError(errno.EPROTO, "kvfs answered what this client does not understand: " + what)


def _encode(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


class _Fields(Dict[str, Any]):
    """An object of an answer. Reading a missing field is an error."""

    def __missing__(self, name: str) -> Any:
        raise _broken("no %s in %s" % (name, str(dict(self))[:200]))


def _given(**fields: Any) -> Dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _object(text: bytes) -> Dict[str, Any]:
    try:
        fields = json.loads(text.decode("utf-8"))
    except ValueError:
        raise _broken(repr(text[:200])) from None
    if not isinstance(fields, dict):
        raise _broken(repr(text[:200]))
    return _Fields(fields)


def _decode(answer: bytes) -> Dict[str, Any]:
    """Return the object in an answer; raise the error in it."""
    fields = _object(answer)
    if "error" in fields:
        raise KvfsError(fields["error"], fields.get("field"))
    return fields


_HEADER = struct.Struct("<4sBBHIIHHHHII")
_ANSWER = struct.Struct("<4sIIIII")
_OP_EXISTS, _OP_LONGEST_HIT = 1, 2
_NO_LEASE, _PROMOTE, _TEXT = 1, 2, 4


class _Options(NamedTuple):
    """The common part of exists and longest_hit."""

    template: str
    ranks: int
    lease: bool
    promote: bool
    deadline_ms: Optional[int]
    request: str

    def json(self) -> Dict[str, Any]:
        """Return the fields that differ from the defaults."""
        return _given(
            template=self.template or None, ranks=None if self.ranks == 1 else self.ranks,
            lease=None if self.lease else False, promote=self.promote or None, deadline_ms=self.deadline_ms,
            request=self.request or None)

    def pack(self, op: int, name: str, hashes: "_Packed", num_tokens: int = 0) -> Optional[bytes]:
        """Return the request in binary, or None if it does not fit that form."""
        first, template, request = name.encode("utf-8"), self.template.encode("utf-8"), self.request.encode("utf-8")
        if self.deadline_ms == 0:  # binary: that of the group
            return None
        flags = hashes.flags | (0 if self.lease else _NO_LEASE) | (_PROMOTE if self.promote else 0)
        if self.ranks < 1:  # binary: one
            return None
        try:
            header = _HEADER.pack(
                b"KVQ1", op, flags, hashes.size, hashes.count, self.deadline_ms or 0, len(first),
                len(template), len(request), self.ranks, num_tokens, 0)
        except struct.error:  # a number too large for its field
            return None
        return b"".join((header, first, template, request, hashes.data))


def _options(template: Optional[str], ranks: int, lease: bool, promote: bool, deadline: Optional[float],
             request: Optional[str]) -> _Options:
    # Rounded up, so that a short deadline is not none.
    ms = None if deadline is None else math.ceil(deadline * 1000)
    return _Options(template or "", ranks, lease, promote, ms, request or "")


class _Packed(NamedTuple):
    """Hashes one after another."""

    flags: int
    size: int
    count: int
    data: bytes


def _listed(items: Iterable[Any], what: str) -> Sequence[Any]:
    if isinstance(items, (str, bytes, bytearray)):
        raise TypeError("%s: got one %s, want several" % (what, type(items).__name__))
    return items if isinstance(items, (list, tuple)) else list(items)


def _pack(hashes: Sequence[Any]) -> Optional[_Packed]:
    """Return hashes for the binary form: all bytes or all ASCII, of one length; else None."""
    if len(set(map(len, hashes))) != 1:
        return None
    size = len(hashes[0])
    if size == 0:
        return None
    try:
        if isinstance(hashes[0], str):
            text = "".join(hashes)
            return _Packed(_TEXT, size, len(hashes), text.encode("ascii")) if text.isascii() else None
        return _Packed(0, size, len(hashes), b"".join(hashes))
    except TypeError:  # some are bytes, some are not
        return None


def _texts(hashes: Sequence[Any]) -> List[str]:
    """Return hashes for JSON."""
    return [h if isinstance(h, str) else h.hex() for h in hashes]


def _named(group: str, hashes: Sequence[Any]) -> Dict[str, Any]:
    """Return the fields of JSON that name blocks."""
    return _given(hashes=_texts(hashes), group=group or None)


def _unpack(answer: bytes) -> Tuple[int, int, int, int, int]:
    """Return the numbers of a binary answer; raise the error in it."""
    if answer[:4] == b"KVE1" and len(answer) >= 8:
        (n,) = struct.unpack_from("<I", answer, 4)
        raise KvfsError(answer[8:8 + n].decode("utf-8", "replace"))
    if len(answer) < _ANSWER.size or answer[:4] != b"KVA1":
        raise _broken(repr(answer[:200]))
    return _ANSWER.unpack_from(answer)[1:]


def _unpack_loads(answer: bytes, count: int) -> List[GroupLoad]:
    groups, at = [], _ANSWER.size
    for _ in range(count):
        if at + 4 > len(answer):
            raise _broken("a short answer")
        (n,) = struct.unpack_from("<I", answer, at)
        load = answer[at + 4:at + 4 + n]
        if len(load) != n:
            raise _broken("a short answer")
        groups.append(GroupLoad(None, load.decode("ascii"), None))
        at += 4 + n
    return groups


def _loads(fields: Mapping[str, Any]) -> List[GroupLoad]:
    return [GroupLoad(g["name"], g["load"], g.get("fetch")) for g in map(_Fields, fields["groups"])]


# Mounts.


_FS_TYPE = "fuse.kvfs"
_OCTAL = re.compile(r"\\([0-7]{3})")


def _mounts(mountinfo: str) -> List[Tuple[str, str]]:
    """Return mount points and types of file systems, later mounts later."""
    found = []
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if len(fields) >= 5 and kind:
                # Bytes beyond ASCII are there as they are; spaces and the like in octal.
                found.append((_OCTAL.sub(lambda m: chr(int(m.group(1), 8)), fields[4]), kind[0]))
    return found


def find_mount(path: Optional[Path] = None, mountinfo: str = "/proc/self/mountinfo") -> str:
    """Return the mount point of the kvfs that contains path; without a path, of the only kvfs.

    Fail with FileNotFoundError if there is none, or, without a path, if there are several.
    """
    mounts = _mounts(mountinfo)
    if path is None:
        points = sorted({point for point, kind in mounts if kind == _FS_TYPE})
        if len(points) != 1:
            raise FileNotFoundError(
                errno.ENOENT, "want one kvfs mount, found %d" % len(points), ", ".join(points) or None)
        return points[0]
    name = os.path.realpath(os.fsdecode(path))
    best, best_kind = "", ""
    for point, kind in mounts:
        inside = name == point or name.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two at one point the later one hides the other
            best, best_kind = point, kind
    if best_kind != _FS_TYPE:
        raise FileNotFoundError(errno.ENOENT, "not in a kvfs mount", name)
    return best


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"([0-9.]+)(h|ms|m|s|us|µs|ns)")


def _seconds(duration: str) -> float:
    """Return the seconds in a duration such as 1h2m3.5s."""
    return math.fsum(float(n) * _UNITS[unit] for n, unit in _DURATION.findall(duration))


# Descriptors of a parent are shared with its children after a fork: their dialogues would mix.
_clients: "weakref.WeakSet[Kvfs]" = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forget()


os.register_at_fork(after_in_child=_after_fork)


class Kvfs:
    """A mount of kvfs.

    mount is the mount point. Default: the environment variable KVFS_MOUNT, which ``kvfs run``
    sets, or else the only kvfs mount. Nothing is opened before the first call.

    Hashes or paths name blocks. Hashes are bytes, which names have in lower-case hexadecimal, or
    str, which names have unchanged. Thousands of hashes of one length, all bytes or all ASCII, are
    fastest: they go to the daemon in binary. ``template`` makes a path below the mount from a
    hash. The default is ``{group}/{hash}``. It may have ``{hash:0:3}`` for parts, and ``{rank}``,
    which runs from 0 to ``ranks`` - 1. Paths are below the mount, with or without it in front.

    ``request`` is a name for the request, at most 128 bytes, for logs and .kvfs/jobs.
    """

    def __init__(self, mount: Optional[Path] = None) -> None:
        if mount is None:
            mount = os.environ.get("KVFS_MOUNT") or find_mount()
        self.mount = os.path.abspath(os.fsdecode(mount))
        self._closed = False
        self._forget()
        _clients.add(self)

    def _forget(self) -> None:
        """Begin with no descriptors and a new lock, as another thread had the old one at a fork."""
        self._lock = threading.Lock()  # guards _idle and _closed; never held across I/O
        self._idle: Dict[str, List[_File]] = {}  # by name; those that are dropped close themselves

    def close(self) -> None:
        """Close all descriptors. Later calls fail with ValueError."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for files in idle.values():
            for file in files:
                file.close()

    def __enter__(self) -> "Kvfs":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # Look-ups.

    def exists(self, hashes: Hashes, *, group: str = "", template: Optional[str] = None, ranks: int = 1,
               lease: bool = True, promote: bool = False, deadline: Optional[float] = None,
               request: Optional[str] = None) -> Exists:
        """Return which of at most 1,000,000 blocks are there.

        ranks     a block is there if its files of all ranks are
        lease     blocks that are there stay readable for mount.lookup_lease, as after stat
        promote   begin to load hits that are not in memory, in order
        deadline  seconds, rounded up to milliseconds: a block that would probably take longer to come into
                  memory counts as late; 0 means no deadline, None that of the group
        """
        listed = _listed(hashes, "hashes")
        options = _options(template, ranks, lease, promote, deadline, request)
        packed = _pack(listed)
        binary = options.pack(_OP_EXISTS, group, packed) if packed else None
        if binary is None:
            fields = _named(group, listed)
            fields.update(options.json(), op="exists")
            return self._exists(_encode(fields), len(listed))
        answer = self._ask("query", binary)
        hits, pending, late, prefix, n = _unpack(answer)
        states = answer[_ANSWER.size:_ANSWER.size + n].decode("latin-1")
        if len(states) != len(listed):
            raise _broken("%d states for %d hashes" % (len(states), len(listed)))
        return Exists(states, hits, pending, late, prefix)

    def exists_keys(self, paths: Iterable[Path], *, lease: bool = True, promote: bool = False,
                    deadline: Optional[float] = None, request: Optional[str] = None) -> Exists:
        """Return which of the blocks at paths are there. Everything else is as in exists."""
        keys = self._keys(paths)
        fields: Dict[str, Any] = {"op": "exists", "keys": keys}
        fields.update(_options(None, 1, lease, promote, deadline, request).json())
        return self._exists(_encode(fields), len(keys))

    def _exists(self, request: bytes, count: int) -> Exists:
        fields = self._json("query", request)
        found = Exists(fields["states"], fields["hits"], fields["pending"], fields["late"], fields["prefix"])
        if len(found) != count:
            raise _broken("%d states for %d blocks" % (len(found), count))
        return found

    def longest_hit(self, spec: Spec, hashes: Hashes, *, num_tokens: Optional[int] = None, cached: int = 0,
                    fetch: bool = False, template: Optional[str] = None, ranks: int = 1, lease: bool = True,
                    promote: bool = False, deadline: Optional[float] = None,
                    request: Optional[str] = None) -> LongestHit:
        """Return how many tokens from the beginning of a prompt need not be computed.

        spec        name of a spec, or the spec itself: see set_specs
        hashes      hashes[u] names the prompt up to the end of its hash block u
        num_tokens  length of the prompt; None: of all hashes
        cached      tokens at the beginning that the engine has already, for fetch and promote
        fetch       list the hashes to be read
        promote     begin to load the blocks to be read into memory
        Everything else is as in exists.
        """
        listed = _listed(hashes, "hashes")
        options = _options(template, ranks, lease, promote, deadline, request)
        packed = None
        if isinstance(spec, str) and not fetch and cached == 0 and num_tokens != 0:
            packed = _pack(listed)
        binary = options.pack(_OP_LONGEST_HIT, str(spec), packed, num_tokens or 0) if packed else None
        if binary is not None:
            answer = self._ask("query", binary)
            hit_tokens, pending, late, capped, n = _unpack(answer)
            return LongestHit(hit_tokens, capped == 1, pending, late, _unpack_loads(answer, n))
        fields = _given(op="longest_hit", spec=spec, hashes=_texts(listed), num_tokens=num_tokens,
                        cached=cached or None, fetch=fetch or None)
        fields.update(options.json())
        got = self._json("query", _encode(fields))
        return LongestHit(got["hit_tokens"], got["capped"], got["pending"], got["late"], _loads(got))

    def load_mask(self, spec: Spec, hit_tokens: int, *, cached: int = 0, num_hashes: int) -> LoadMask:
        """Return what to read for a hit of a given length in tokens. It looks for no blocks.

        num_hashes is the number of hashes of the prompt; cached as for longest_hit.
        """
        got = self._json("query", _encode(
            {"op": "load_mask", "spec": spec, "hit_tokens": hit_tokens, "cached": cached, "num_hashes": num_hashes}))
        return LoadMask(got["hit_tokens"], _loads(got))

    def store_mask(self, spec: Spec, num_tokens: int, *, start: int = 0, prompt_tokens: int) -> List[GroupStore]:
        """Return what is worth writing of the tokens from start to num_tokens.

        prompt_tokens is the length of the prompt, without what was generated after it.
        """
        got = self._json("query", _encode(
            {"op": "store_mask", "spec": spec, "num_tokens": num_tokens, "start": start,
             "prompt_tokens": prompt_tokens}))
        return [GroupStore(g["name"], g["start"], g["end"], g["store"]) for g in map(_Fields, got["groups"])]

    def why(self, paths: Iterable[Path]) -> List[Verdict]:
        """Return for each path, in order, why no block is there, or that one is."""
        got = self._json("query", _encode({"op": "why", "keys": self._keys(paths)}))
        return [
            Verdict(v["path"], v["verdict"], v["text"], v.get("tier"), v.get("rule"), v.get("by"), v.get("to"),
                    v.get("groups"), v.get("time"), v.get("age_seconds"))
            for v in map(_Fields, got["verdicts"])]

    # Moving blocks.

    def start_prefetch(self, hashes: Optional[Hashes] = None, *, keys: Optional[Iterable[Path]] = None,
                       group: str = "", template: Optional[str] = None, ranks: int = 1,
                       request: Optional[str] = None, cancel: Optional[threading.Event] = None) -> Prefetch:
        """Begin to load blocks into memory, in order; return at once.

        Give either hashes, or paths of blocks as keys. The blocks then stay readable for
        mount.lookup_lease. Setting cancel, from another thread, cancels like Prefetch.close.
        """
        if (hashes is None) == (keys is None):
            raise TypeError("prefetch: want either hashes or keys")
        fields: Dict[str, Any] = {"progress": True}
        if keys is not None:
            fields["keys"] = self._keys(keys)
        else:
            fields.update(_named(group, _listed(hashes or [], "hashes")))
        fields.update(_options(template, ranks, True, False, None, request).json())
        return Prefetch(self._follow("prefetch", _encode(fields), cancel))

    def prefetch(self, hashes: Optional[Hashes] = None, *, keys: Optional[Iterable[Path]] = None, group: str = "",
                 template: Optional[str] = None, ranks: int = 1, request: Optional[str] = None,
                 progress: Optional[Callable[[Progress], Any]] = None,
                 cancel: Optional[threading.Event] = None) -> Prefetched:
        """Load blocks into memory, in order, and wait until they are there.

        progress is called at most ten times a second. If it raises an exception, that cancels. Setting
        cancel from another thread cancels too, and raises Cancelled. See start_prefetch for the rest.
        """
        with self.start_prefetch(hashes, keys=keys, group=group, template=template, ranks=ranks,
                                 request=request, cancel=cancel) as running:
            for step in running:
                if progress is not None:
                    progress(step)
            return running.result()

    def evict(self, tier: str, paths: Optional[Iterable[Path]] = None, *, all: bool = False,
              force: bool = False) -> Evicted:
        """Drop blocks from a tier, "memory" or "disk"; open and pinned blocks stay.

        A directory in paths means all blocks below it. all, without paths, means every block. force
        also drops blocks that no other tier has: these are lost.
        """
        fields = _given(tier=tier, paths=None if paths is None else self._keys(paths), all=all or None,
                        force=force or None)
        got = self._json("evict", _encode(fields))
        return Evicted(got["blocks"], got["bytes"], got["kept_total"], got["kept"])

    # One block. These fail with OSError: FileNotFoundError if it is not there.

    def pin(self, path: Path) -> None:
        """Never evict this block until unpin."""
        os.setxattr(self._path(path), "user.kvfs.pinned", b"1")

    def unpin(self, path: Path) -> None:
        """Allow eviction again."""
        os.setxattr(self._path(path), "user.kvfs.pinned", b"0")

    def pinned(self, path: Path) -> bool:
        """Return whether the block is pinned."""
        return self._attribute(path, "pinned") == "1"

    def set_ttl(self, path: Path, seconds: float) -> None:
        """Let the block expire after this time, rounded up to milliseconds; 0: never."""
        if not 0 <= seconds < math.inf:
            raise ValueError("ttl: got %r seconds" % seconds)
        os.setxattr(self._path(path), "user.kvfs.ttl", b"%dms" % math.ceil(seconds * 1000))

    def ttl(self, path: Path) -> Optional[float]:
        """Return the seconds until the block expires; None: never."""
        return _seconds(self._attribute(path, "ttl")) or None

    def checksum(self, path: Path) -> str:
        """Return "crc64nvme:" and 16 hexadecimal digits, computed at the first request."""
        return self._attribute(path, "checksum")

    def state(self, path: Path) -> str:
        """Return "hit", or "pending" while the block is being written or loaded."""
        return self._attribute(path, "state")

    def tiers(self, path: Path) -> List[str]:
        """Return the tiers that hold the block: "memory", "disk", "peer"."""
        names = self._attribute(path, "tier")
        return names.split(",") if names else []

    def _attribute(self, path: Path, name: str) -> str:
        return os.getxattr(self._path(path), "user.kvfs." + name).decode("utf-8").strip()

    # Specs.

    def get_specs(self, names: Optional[Iterable[str]] = None) -> Dict[str, Dict[str, Any]]:
        """Return specs by name, with all defaults filled in; without names all of them."""
        return self._specs({} if names is None else {"get": _listed(names, "names")})

    def set_specs(self, specs: Mapping[str, Mapping[str, Any]]) -> Dict[str, Dict[str, Any]]:
        """Set specs until the daemon stops, all or none; return them with all defaults filled in.

        A spec describes the attention groups of a model: docs/control.md has its fields.
        KvfsError has all errors in the specs.
        """
        return self._specs({"set": specs})

    def remove_specs(self, names: Iterable[str]) -> Dict[str, Dict[str, Any]]:
        """Remove specs; return the removed ones."""
        return self._specs({"remove": _listed(names, "names")})

    def _specs(self, request: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
        specs: Dict[str, Dict[str, Any]] = self._json("specs", _encode(request))["specs"]
        return specs

    # Events and state.

    def events(self, since: Optional[int] = None, groups: Optional[Iterable[str]] = None,
               events: Optional[Iterable[str]] = None, stop: Optional[threading.Event] = None) -> Events:
        """Return an iterator over the events of blocks, from this call on.

        since   begin with the event of this number if the daemon still has it (it keeps 16,384);
                otherwise, and for a number of an earlier daemon, begin with a gap
        groups  only events of these groups
        events  only these kinds: "stored", "evicted", "removed", "renamed"; gaps always come
        stop    ends the iteration when it is set; so does Events.close
        """
        self._check()
        if since is None:
            # Following begins a moment after the open. Its number now keeps what happens in between.
            since = (self.status().get("events") or {}).get("next")
        fields = _given(since=since, groups=None if groups is None else _listed(groups, "groups"),
                        events=None if events is None else _listed(events, "events"))
        return Events(self._follow("events", _encode(fields), stop))

    def status(self) -> Dict[str, Any]:
        """Return .kvfs/status: the state of the daemon, counters and sizes. Every user may read it."""
        self._check()
        file = self._open("status", os.O_RDONLY)
        try:
            return dict(_object(_ask(file, b"")))
        finally:
            file.close()

    # Blocks as files.

    def path(self, key: Path) -> str:
        """Return the path of the file of a block. key is its path below the mount."""
        return os.path.join(self.mount, self._key(key))

    def put(self, key: Path, data: Union[bytes, bytearray, memoryview]) -> None:
        """Write a block. Others see it complete or not at all. Missing directories are made. It may wait for room."""
        path = self.path(key)
        temp = "%s.%s.tmp" % (path, os.urandom(8).hex())
        try:
            try:
                file = open(temp, "wb", buffering=0)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                file = open(temp, "wb", buffering=0)
            with file:
                rest = memoryview(data).cast("B")
                while rest:
                    rest = rest[file.write(rest):]
            os.rename(temp, path)
        except BaseException:
            try:
                os.unlink(temp)
            except OSError:
                pass
            raise

    def get(self, key: Path) -> bytes:
        """Return the bytes of a block. FileNotFoundError: it is not there, or cannot be had in time; compute it."""
        with open(self.path(key), "rb", buffering=0) as file:
            return file.read()

    def get_into(self, key: Path, buffer: Union[bytearray, memoryview]) -> int:
        """Read a block into a buffer, and return its size. BufferError if the block is larger than the buffer."""
        with open(self.path(key), "rb", buffering=0) as file:
            size, n = os.fstat(file.fileno()).st_size, 0
            view = memoryview(buffer).cast("B")
            if size > len(view):
                raise BufferError("the block has %d bytes, the buffer %d" % (size, len(view)))
            while n < size:
                got = file.readinto(view[n:size])
                if not got:
                    raise OSError(errno.EIO, "the block became shorter while it was read", self.path(key))
                n += got
            return size

    # Files.

    def _path(self, path: Path) -> str:
        return os.path.join(self.mount, os.fsdecode(path))

    def _key(self, path: Path) -> str:
        """Return a path below the mount in the form of requests."""
        name = os.fsdecode(path)
        if not name.startswith("/"):
            return name
        name = os.path.normpath(name)
        if name == self.mount:
            return "."
        if not name.startswith(self.mount.rstrip("/") + "/"):
            raise ValueError("%r is not below the mount %s" % (name, self.mount))
        return name[len(self.mount.rstrip("/")) + 1:]

    def _keys(self, paths: Iterable[Path]) -> List[str]:
        return [p if type(p) is str and p[:1] != "/" else self._key(p) for p in _listed(paths, "paths")]

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the client is closed")

    def _open(self, name: str, flags: int) -> _File:
        return _File(os.path.join(self.mount, ".kvfs", name), flags)

    def _json(self, name: str, request: bytes) -> Dict[str, Any]:
        return _decode(self._ask(name, request))

    def _ask(self, name: str, request: bytes) -> bytes:
        """Return the answer to a request. The daemon may have been restarted."""
        try:
            return self._try(name, request)
        except OSError as e:
            if e.errno not in _GONE:
                raise
        with self._lock:
            stale = self._idle.pop(name, [])
        for file in stale:
            file.close()
        return self._try(name, request)

    def _try(self, name: str, request: bytes) -> bytes:
        with self._lock:
            self._check()
            idle = self._idle.get(name)
            file = idle.pop() if idle else None
        if file is None:
            file = self._open(name, os.O_RDWR)
        try:
            answer = _ask(file, request)
        except BaseException:  # interrupted, too: closing cancels
            file.close()
            raise
        with self._lock:
            idle = self._idle.setdefault(name, [])
            keep = not self._closed and len(idle) < _MAX_IDLE
            if keep:
                idle.append(file)
        if not keep:
            file.close()
        return answer

    def _follow(self, name: str, request: bytes, stop: Optional[threading.Event]) -> _Stream:
        """Request an answer that comes in parts."""
        self._check()
        file = self._open(name, os.O_RDWR | os.O_NONBLOCK)
        stream = _Stream(file, stop)
        try:
            file.write(request)
            stream.begin()
        except BaseException:
            file.close()
            raise
        return stream
