"""Chunks of samples and episode records as one message, without pickle.

A message is one byte, 0 or 1, and a body, either uncompressed (0) or as one zstd frame (1). The body is one MessagePack
array:

    [signature, [record, ...], chunk or nil, [column, ...]]

The columns, arrays as extension data (see `values.py`), come last. The body can thus be written as a list of buffers
that refer to the chunk's memory, and no large column is copied under the interpreter's lock. The chunk's entry
describes a tree as a nested array: 0 is the next column; `[1, node, ...]` a tuple; `[2, [key, ...], node, ...]` a dict;
`[3, value, ...]` a list with one value per row. Flags are bit-packed, the first row in the highest bit of the first
byte.

Under zstd, columns of numbers are stored as byte planes (filter 1), and each plane gets separate zstd blocks with a
separate entropy code. For floats, the bytes with sign and exponent shrink, and the other bytes stay uncompressed. One
code for all bytes compresses less (Pendulum: 22.8 bytes per transition instead of 20.1).
"""

# Theory of operation
#
# The codec is pure: bytes in, columns out, and the other way round. It opens nothing and keeps nothing but zstd's
# contexts, one set a thread, because they are neither thread-safe nor cheap.
#
# Why columns last: MessagePack wants a length before its content, and the columns are large. With the small entry
# first, `encode_message_buffers` writes a list of buffers, of which the large ones are the chunk's own memory. A frame
# of 1 MB is so never copied by Python while other threads wait for the interpreter's lock.
#
# Why planes: neighbouring floats share sign and exponent, but not their last bits. Byte by byte, [a0 b0 c0 ... a1 b1 c1
# ...], the shared bytes stand together. Each plane gets blocks of its own (`COMPRESSOBJ_FLUSH_BLOCK`), so that zstd
# makes one entropy code for each, and stores the noisy planes as they are.
#
# Is compression worth it? "auto" compresses a message of up to 128 kB and looks at the result. Of a larger one it
# compresses 16 kB from the middle of each column, which costs a few percent of the whole; the beginning would not do,
# since an episode often begins with constants. Below a saving of 5 % the time of both sides is worth more.
#
# What a hostile sender can do, and what stops it before memory is allocated:
#
#     a frame that promises gigabytes        `content_size` is compared with the limit, and with what its bytes can hold
#     a frame without a size                 refused
#     an array whose shape overflows         `math.prod` on Python's integers (`arrays.py`)
#     a million nested or tiny values        counted before decoding (`values.py`)
#     4,097 columns                          refused: each costs a check whatever its size
#     equal records, compressed to nothing   at most 64 and one for each 16 bytes on the wire
#
# `_check` runs on both sides: a chunk that does not hold together is a bug of ours when it is written, and a fault of
# the peer when it is read. One function, so that neither side accepts what the other refuses.
#
# Decoded arrays are views of the message, read-only and perhaps unaligned. Alignment would need a padding that depends
# on the position of everything before, and the memory copies them anyway.
#
# Rejected: Arrow and Parquet (tens of MB of dependencies for a robot, and no values of any type in infos); pickle and
# `numpy.save` with objects (can run code); one message a sample (ten small messages cost more than a large one).

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from tmrl_core.errors import CodecError
from tmrl_core.samples.arrays import PLAIN, PLANES, array_head, array_items, array_planes
from tmrl_core.samples.columns import Array, Chunk, Kind, Tree, leaves
from tmrl_core.samples.concatenation import join_infos, join_segments, same_layout
from tmrl_core.samples.segments import EpisodeRecord, Segment
from tmrl_core.samples.supported_values import MAX_DEPTH, UncarriableError, own_key
from tmrl_core.samples.values import (
    ARRAY,
    decode,
    encode,
    encode_value,
    ext_hook,
    pack,
    unpack,
    unpack_key,
)

Compression = Literal["auto", "zstd", "none"]
BytesLike = bytes | bytearray | memoryview

RAW, ZSTD = b"\x00", b"\x01"
MIN_SAVING = 0.05
"""Minimum share of a message that zstd must save; otherwise "auto" sends it uncompressed."""

FEW_RECORDS, RECORD_BYTES = 64, 16
"""A message may have this number of episode records, and one more for each of this number of bytes on the wire."""

MAX_COLUMNS = 4_096
"""Maximum number of columns of a message: each takes time to read and to check, however small it is."""

_LEVEL = 1
# Minimum bytes of a message for a frame, and of a plane for a block.
_LEAST_MESSAGE, _LEAST_PLANE = 256, 128
# "auto" tries to compress a message up to this size, or a part of this size of each column of a larger one.
_WHOLE_TRIAL, _COLUMN_TRIAL = 128 * 1024, 16 * 1024
# Buffers up to this size are joined, because a copy is cheaper than one more buffer.
_JOIN = 64 * 1024
# A block of at least 4 bytes decompresses to at most 128 kB. A frame that announces more is invalid.
_MOST_PER_BYTE = 128 * 1024 // 4

_LEAF, _TUPLE, _DICT, _LIST = 0, 1, 2, 3
_KIND_DTYPES = {"0-d": "biufc", "float": "f", "int": "iu", "bool": "b"}


class SampleMessage(msgspec.Struct, frozen=True):
    """One message.

    Attributes:
        chunk: the samples; None: records only.
        records: finished episodes.
        signature: opaque description of the sender's environment.
    """

    chunk: Chunk | None
    records: list[EpisodeRecord]
    signature: bytes = b""


class _ChunkEntry(msgspec.Struct, frozen=True, array_like=True):
    """A chunk without its columns."""

    rows: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    action: Any
    observation: Any
    reward: Any
    extras: dict[str, Any]
    kinds: tuple[Kind, ...]
    segments: tuple[Segment, ...]
    action_present: bytes
    terminated: bytes
    truncated: bytes
    info: dict[int, Any]


class _Body(msgspec.Struct, frozen=True, array_like=True):
    signature: bytes
    records: list[EpisodeRecord]
    chunk: _ChunkEntry | None
    columns: Annotated[list[Any], msgspec.Meta(max_length=MAX_COLUMNS)]


_BODY_DECODER = msgspec.msgpack.Decoder(_Body, ext_hook=ext_hook)
_NO_COLUMNS = msgspec.msgpack.encode([])


class _Contexts(threading.local):
    """zstd's contexts, one set per thread, because they are not thread-safe and are costly to make."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def most_records(wire_bytes: int) -> int:
    """Return the maximum number of episode records in a message of this size on the wire.

    Compressed, equal records take almost no bytes, and each becomes a line in the trainer's files. The encoder sends a
    message uncompressed in which they would take less.
    """
    return FEW_RECORDS + wire_bytes // RECORD_BYTES


def encode_message(
    chunk: Chunk | Sequence[Chunk] | None,
    records: Sequence[EpisodeRecord],
    *,
    signature: bytes = b"",
    compression: Compression = "auto",
) -> bytes:
    """Return one message as bytes.

    Args:
        chunk: samples, or None; or chunks of one layout (`same_layout`), which are joined.
        records: finished episodes.
        signature: opaque bytes for the other side.
        compression: "auto" uses zstd if it saves `MIN_SAVING` or more.

    Raises:
        CodecError: a value in the chunk cannot be carried, or chunks differ in their layout.
    """
    return b"".join(encode_message_buffers(chunk, records, signature=signature, compression=compression))


def encode_message_buffers(
    chunk: Chunk | Sequence[Chunk] | None,
    records: Sequence[EpisodeRecord],
    *,
    signature: bytes = b"",
    compression: Compression = "auto",
) -> list[bytes | memoryview]:
    """Return one message as consecutive buffers; for arguments and errors, see `encode_message`.

    Large uncompressed columns are not copied: their buffers are the chunk's memory, which must not change while they
    are in use. Copies under the interpreter's lock have at most 64 kB, apart from values in lists and infos.
    """
    head, columns = _body([chunk] if isinstance(chunk, Chunk) else chunk or (), records, signature)
    size = len(head) + sum(column.nbytes for column in columns)
    if compression == "zstd" or (compression == "auto" and _promises_saving(columns, size)):
        compressed = _compress(head, columns)
        if len(records) <= most_records(len(compressed)) and (
            compression == "zstd" or len(compressed) <= (1 - MIN_SAVING) * size
        ):
            return [ZSTD, compressed]
    buffers: list[bytes | memoryview] = [RAW, head]
    for column in columns:
        buffers.append(_column_head(column, PLAIN))
        buffers.extend(map(array_items, column.pieces))
    return _joined(buffers)


def decode_message(data: BytesLike, *, max_bytes: int) -> SampleMessage:
    """Undo `encode_message`.

    Arrays are views of `data` (or of its decompressed form), must not be written to, and may be unaligned, unless a
    filter had to be undone.

    Args:
        data: one message.
        max_bytes: maximum size of the message, compressed or decompressed. Checked before any allocation.

    Raises:
        CodecError: the message is too large, or `encode_message` did not write it.
    """
    view = memoryview(data).cast("B")
    if len(view) > max_bytes:
        raise CodecError(f"a message of {len(view)} bytes, more than the limit of {max_bytes}")
    if view[:1] == ZSTD:
        view = _decompress(view[1:], max_bytes)
    elif view[:1] == RAW:
        view = view[1:]
    else:
        raise CodecError(f"a message that begins with {bytes(view[:1])!r}, which names no compression")
    body: _Body = decode(_BODY_DECODER, view)
    columns = iter(body.columns)
    chunk = None if body.chunk is None else _chunk_of(body.chunk, columns)
    if next(columns, columns) is not columns:
        raise CodecError(f"a message with {len(body.columns)} columns, which is not what its chunk has")
    return SampleMessage(chunk, body.records, body.signature)


def decoded_bytes(data: BytesLike) -> int:
    """Return the size of a message without compression, as it states it; of an invalid one, its own size."""
    view = memoryview(data).cast("B")
    if view[:1] != ZSTD:
        return len(view)
    try:
        size: int = zstandard.get_frame_parameters(view[1:]).content_size
    except zstandard.ZstdError:
        return len(view)
    return len(view) if size == zstandard.CONTENTSIZE_UNKNOWN else max(size, len(view))


def split_chunk(chunk: Chunk, max_bytes: int) -> Iterator[Chunk]:
    """Yield the chunk in pieces (views), each one sample or at most `max_bytes` when encoded without compression.

    Raises:
        CodecError: a value in the chunk cannot be carried.
    """
    head, columns = _body([chunk.slice(0, 0)], (), b"")
    # Sizes of a message's fixed part and of each row. Counts and flags grow slightly with the rows.
    fixed = len(head) + 64 + sum(len(_column_head(column, PLAIN)) for column in columns)
    row_bytes = sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in columns)
    sizes = np.full(chunk.rows, row_bytes + 1, np.int64)
    first = 0
    for segment in chunk.segments:
        sizes[first] += len(encode(segment))
        first += segment.rows
    for column in leaves(chunk.fields):
        if isinstance(column, list):
            sizes += [len(encode_value(value)) for value in column]
    for row, info in chunk.info.items():
        sizes[row] += 9 + len(encode_value(info))
    ends = np.cumsum(sizes)
    start = 0
    while start < chunk.rows:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + max_bytes - fixed, side="right"))
        stop = max(start + 1, stop)
        yield chunk.slice(start, stop)
        start = stop


def _check(chunk: Chunk) -> None:
    """Check that the parts of a chunk belong together, when encoding and when decoding.

    Raises:
        CodecError: they do not match.
    """
    rows = chunk.rows
    columns = list(leaves(chunk.fields))
    if len(columns) > MAX_COLUMNS:
        raise CodecError(f"a chunk of {len(columns)} columns, more than the limit of {MAX_COLUMNS}")
    if not isinstance(chunk.reward, np.ndarray):
        raise CodecError("a chunk whose rewards are not an array")
    if not all(isinstance(name, str) for name in chunk.extras):
        raise CodecError("a chunk with an extra whose name is not text")
    for column in (*columns, chunk.action_present, chunk.terminated, chunk.truncated):
        if isinstance(column, np.ndarray) and not column.ndim:
            raise CodecError(f"a column that is a single value in a chunk of {rows} rows")
        if len(column) != rows:
            raise CodecError(f"a column of {len(column)} rows in a chunk of {rows} rows")
    lengths = [segment.rows for segment in chunk.segments]
    if sum(lengths) != rows or (lengths and min(lengths) < 1):
        raise CodecError(f"segments that do not add up to the {rows} rows of their chunk")
    if chunk.info and any(not 0 <= row < rows for row in chunk.info):
        raise CodecError(f"an info of a row that a chunk of {rows} rows does not have")
    if chunk.kinds and len(chunk.kinds) != len(columns):
        raise CodecError(f"{len(chunk.kinds)} kinds for {len(columns)} columns")
    for kind, column in zip(chunk.kinds, columns, strict=False):
        if kind and (isinstance(column, list) or column.ndim != 1 or column.dtype.kind not in _KIND_DTYPES[kind]):
            raise CodecError(f"a column that cannot be of kind {kind!r}")


# Writing


class _Column:
    """One column of a message, as pieces from its chunks."""

    __slots__ = ("dtype", "nbytes", "pieces", "shape")

    def __init__(self, pieces: Sequence[Array]) -> None:
        first = pieces[0]
        self.pieces = pieces
        self.dtype = first.dtype
        self.shape = first.shape
        self.nbytes = first.nbytes
        if len(pieces) > 1:
            self.shape = (sum(map(len, pieces)), *first.shape[1:])
            self.nbytes = sum(piece.nbytes for piece in pieces)

    def array(self) -> Array:
        """Return the column in one piece."""
        # Without the dtype, NumPy would change the byte order to its own, and the column's head names another.
        return self.pieces[0] if len(self.pieces) == 1 else np.concatenate(self.pieces, dtype=self.dtype)


def _body(chunks: Sequence[Chunk], records: Sequence[EpisodeRecord], signature: bytes) -> tuple[bytes, list[_Column]]:
    """Return the body up to its first column, and the columns."""
    columns: list[_Column] = []
    entry = None
    if chunks:
        first = chunks[0]
        for chunk in chunks:
            _check(chunk)
        if not all(same_layout(first, other) for other in chunks[1:]):
            raise CodecError("chunks of different layouts, which cannot be one message")
        names = ("action", "observation", "reward", *(f"extras[{name!r}]" for name in first.extras))
        fields = zip(*(chunk.fields for chunk in chunks), strict=True)
        action, observation, reward, *extras = [
            _node(trees, name, columns) for trees, name in zip(fields, names, strict=True)
        ]
        entry = _ChunkEntry(
            rows=sum(chunk.rows for chunk in chunks),
            action=action,
            observation=observation,
            reward=reward,
            extras=dict(zip(first.extras, extras, strict=True)),
            kinds=first.kinds,
            segments=join_segments(chunks),
            action_present=_packed([chunk.action_present for chunk in chunks]),
            terminated=_packed([chunk.terminated for chunk in chunks]),
            truncated=_packed([chunk.truncated for chunk in chunks]),
            info={row: pack(info, "info") for row, info in join_infos(chunks) if info},
        )
    head = encode(_Body(signature, list(records), entry, []))
    assert head.endswith(_NO_COLUMNS)
    return head[: -len(_NO_COLUMNS)] + b"\xdd" + struct.pack(">I", len(columns)), columns


def _packed(flags: Sequence[NDArray[np.bool_]]) -> bytes:
    return np.packbits(flags[0] if len(flags) == 1 else np.concatenate(flags)).tobytes()


def _node(trees: Sequence[Tree], name: str, columns: list[_Column]) -> Any:
    """Return the entry's description of the trees, which have one layout; add their columns to `columns`."""
    tree: Any = trees[0]
    if isinstance(tree, np.ndarray):
        columns.append(_Column(trees))  # type: ignore[arg-type]  # all are arrays
        return _LEAF
    if isinstance(tree, tuple):
        return [_TUPLE, *[_node(children, name, columns) for children in zip(*trees, strict=True)]]
    if isinstance(tree, dict):
        try:
            keys = [own_key(key) for key in tree]
        except UncarriableError as error:
            raise error.named(name) from None
        return [_DICT, keys, *[_node([other[key] for other in trees], name, columns) for key in tree]]
    return [_LIST, *[pack(value, name) for part in trees for value in part]]


def _column_head(column: _Column, filter_: int) -> bytes:
    try:
        head = array_head(column.dtype, column.shape, filter_)
        return struct.pack(">BIb", 0xC9, len(head) + column.nbytes, ARRAY) + head
    except UncarriableError as error:
        raise error.named("a column") from None
    except struct.error:
        raise CodecError(f"a column of {column.nbytes} bytes, more than one message carries") from None


def _compress(head: bytes, columns: Sequence[_Column]) -> bytes:
    heads = [_column_head(column, PLANES if column.dtype.itemsize > 1 else PLAIN) for column in columns]
    size = len(head) + sum(map(len, heads)) + sum(column.nbytes for column in columns)
    stream = _contexts.compressor.compressobj(size=size)
    out = [stream.compress(head)]
    for column_head, column in zip(heads, columns, strict=True):
        out.append(stream.compress(column_head))
        array = column.array()
        if array.itemsize == 1:
            out.append(stream.compress(array_items(array)))
            continue
        for plane in array_planes(array):
            if array.size >= _LEAST_PLANE:
                out.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
            out.append(stream.compress(plane.data))
    out.append(stream.flush())
    return b"".join(out)


def _promises_saving(columns: Sequence[_Column], size: int) -> bool:
    """Return True if zstd is worth using. A large message is judged by a part from the middle of each column."""
    if size <= _WHOLE_TRIAL:
        return size >= _LEAST_MESSAGE
    left = 0.0
    for column in columns:
        items = np.ascontiguousarray(column.pieces[len(column.pieces) // 2]).reshape(-1)
        count = min(items.size, max(1, _COLUMN_TRIAL // column.dtype.itemsize))
        if count:
            start = (items.size - count) // 2
            saved = len(_compress(b"", [_Column([items[start : start + count]])]))
            left += saved * (column.nbytes / (count * column.dtype.itemsize))
    return left <= (1 - MIN_SAVING) * sum(column.nbytes for column in columns)


def _joined(buffers: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """Join small neighbouring buffers."""
    joined: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > _JOIN:
            if small:
                joined.append(b"".join(small))
            small, size = [], 0
        if len(buffer) > _JOIN:
            joined.append(buffer)
        else:
            small.append(buffer)
            size += len(buffer)
    if small:
        joined.append(b"".join(small))
    return joined


# Reading


def _decompress(frame: memoryview, max_bytes: int) -> memoryview:
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            raise CodecError("a zstd frame that does not say how large its content is")
        if size > max_bytes:
            raise CodecError(f"a message of {size} bytes when decompressed, more than the limit of {max_bytes}")
        if size > _MOST_PER_BYTE * len(frame):
            raise CodecError(f"a zstd frame of {len(frame)} bytes that promises {size}, which it cannot hold")
        return memoryview(_contexts.decompressor.decompress(frame, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from error


def _chunk_of(entry: _ChunkEntry, columns: Iterator[Any]) -> Chunk:
    chunk = Chunk(
        rows=entry.rows,
        action=_tree(entry.action, columns),
        observation=_tree(entry.observation, columns),
        reward=_tree(entry.reward, columns),
        extras={name: _tree(node, columns) for name, node in entry.extras.items()},
        kinds=entry.kinds,
        segments=entry.segments,
        action_present=_flags(entry.action_present, entry.rows),
        terminated=_flags(entry.terminated, entry.rows),
        truncated=_flags(entry.truncated, entry.rows),
        info={row: unpack(info) for row, info in entry.info.items()},
    )
    if not all(isinstance(info, dict) for info in chunk.info.values()):
        raise CodecError("an info that is not a dict")
    _check(chunk)
    return chunk


def _flags(packed: bytes, rows: int) -> NDArray[np.bool_]:
    if len(packed) != (rows + 7) // 8:
        raise CodecError(f"{len(packed)} bytes of flags for {rows} rows")
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=rows).view(np.bool_)


def _tree(node: Any, columns: Iterator[Any], depth: int = 0) -> Any:
    if type(node) is int and node == _LEAF:
        column = next(columns, None)
        if not isinstance(column, np.ndarray):
            raise CodecError("a column that is missing or no array")
        return column
    if type(node) is not list or not node or type(node[0]) is not int or depth > MAX_DEPTH:
        raise CodecError("a tree that cannot be")
    tag, *children = node
    if tag == _TUPLE:
        return tuple([_tree(child, columns, depth + 1) for child in children])
    if tag == _LIST:
        return [unpack(value) for value in children]
    if tag != _DICT or not children or type(children[0]) is not list:
        raise CodecError("a tree that cannot be")
    keys = [unpack_key(key) for key in children.pop(0)]
    if len(keys) != len(children) or len(set(keys)) != len(keys):
        raise CodecError("a tree whose keys do not fit its children")
    return {key: _tree(child, columns, depth + 1) for key, child in zip(keys, children, strict=True)}
