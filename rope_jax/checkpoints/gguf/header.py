"""GGUF files as bytes: their header, with metadata and where the tensors are, read and written.

Read here instead of by the package `gguf`, which takes 16 s for a vocabulary of 262,144 tokens. All
numbers are little-endian:

    "GGUF", version u32, tensors u64, keys u64
    each key:     name, type u32, value; a string is its length (u64) and UTF-8; an array is the
                  type of its elements (u32), their number (u64), and they
    each tensor:  name, axes u32, lengths u64 (the last axis first), type u32, offset u64
    data:         from the next multiple of general.alignment (32); offsets count from there
"""

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGUFValueType as ValueType
from numpy.typing import NDArray

from rope_jax.errors import UserError, file_errors

_VERSIONS = (2, 3)
_STRING, _ARRAY = ValueType.STRING, ValueType.ARRAY
_NUMBERS: Mapping[int, np.dtype[Any]] = {
    kind: np.dtype(numbers).newbyteorder("<")
    for kind, numbers in gguf.GGUFReader.gguf_scalar_to_np.items()
}
_KINDS = {kind.value: kind for kind in gguf.GGMLQuantizationType}
Shaped = tuple[tuple[int, ...], gguf.GGMLQuantizationType]
"""A tensor's shape, outputs first, and how its numbers are stored."""
Value = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)


class Stored(NamedTuple):
    """A tensor in a file.

    shape: as in Hugging Face's files, outputs first. data: its bytes, the last axis in blocks.
    """

    file: Path
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    data: NDArray[np.uint8]


class Header(NamedTuple):
    """What the files of a model hold; metadata by key, and the bytes of each with its key."""

    metadata: dict[str, Any]
    entries: dict[str, bytes]
    tensors: dict[str, Stored]
    files: tuple[Path, ...]


def read_header(path: Path) -> Header:
    """Read the header of a file, and of all parts if it is one of several.

    UserError: a file is missing, truncated, or no GGUF file.
    """
    part = _PART.search(path.name)
    count = int(part[2]) if part else 1
    files = tuple(
        path.with_name(_PART.sub(f"-{n + 1:05}-of-{count:05}", path.name)) for n in range(count)
    )
    parts = [_read(file) for file in files]
    metadata = parts[0][0]
    if (real := metadata.get("split.count") or 1) != count:  # 0: parts that were merged
        raise UserError(
            f"{path}: is one of {real} files, which should be named …-00001-of-{real:05}.gguf"
        )
    tensors = {name: stored for *_, held in parts for name, stored in held.items()}
    return Header(*parts[0][:2], tensors, files)


def entry(key: str, value: Value) -> bytes:
    """Return a key and its value as a file has them; whole numbers become u32, i32 in a list."""
    name, kind = _packed(key, _STRING), ValueType.get_type(value)
    if isinstance(value, list):
        inside = ValueType.get_type(value[0]) if value else _STRING
        packed = b"".join(_packed(each, inside) for each in value)
        return name + struct.pack("<IIQ", kind, inside, len(value)) + packed
    kind = ValueType.UINT32 if kind == ValueType.INT32 else kind
    return name + struct.pack("<I", kind) + _packed(value, kind)


def _packed(value: object, kind: int) -> bytes:
    if kind != _STRING:
        return np.array(value, _NUMBERS[kind]).tobytes()
    text = str(value).encode()
    return struct.pack("<Q", len(text)) + text


def write_gguf(
    path: Path,
    entries: Sequence[bytes],
    tensors: Mapping[str, Shaped],
    data: Iterable[NDArray[Any]],
) -> None:
    """Write a file. tensors: shapes and types, in the order of their data."""
    offset, header = 0, [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries)), *entries]
    for name, (shape, kind) in tensors.items():
        place = struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset)
        header += [_packed(name, _STRING), place]
        offset += math.prod(gguf.quant_shape_to_byte_shape(shape, kind))
        offset += -offset % gguf.GGUF_DEFAULT_ALIGNMENT
    with path.open("wb") as file:
        file.write(b"".join(header))
        for array in data:
            file.write(b"\0" * (-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
            file.write(np.ascontiguousarray(array).data)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes], dict[str, Stored]]:
    with file_errors(path):
        data = np.memmap(path, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    if bytes(data[:4]) != b"GGUF":
        raise UserError(f"{path}: is not a GGUF file")
    if (version := int.from_bytes(data[4:8].tobytes(), "little")) not in _VERSIONS:
        raise UserError(
            f"{path}: is of version {version} of GGUF, or big-endian; only little-endian files of "
            f"version {' or '.join(map(str, _VERSIONS))} can be read"
        )
    try:
        return _parsed(path, data)
    except (ValueError, TypeError, ArithmeticError, MemoryError, RecursionError) as error:
        raise UserError(f"{path}: is truncated or damaged ({error}); download it again") from None


class _Cursor:
    """Reads one value after the other. ValueError: the file ends before."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data, self.at = data, len("GGUF") + 4
        self._bytes = memoryview(data)  # type: ignore[arg-type]

    def numbers(self, value_type: int, count: int) -> list[Any]:
        dtype = _NUMBERS[value_type]
        stored = self.data[self._next(count * dtype.itemsize)].view(dtype)
        # the shortest decimals, 1e-06 and not 9.999999974752427e-07
        return [float(str(x)) for x in stored] if value_type == 6 else stored.tolist()

    def number(self, value_type: int = 10) -> Any:
        return self.numbers(value_type, 1)[0]

    def string(self) -> str:
        length = int.from_bytes(self._bytes[self._next(8)], "little")
        return str(self._bytes[self._next(length)], "utf-8")

    def value(self, value_type: int) -> Any:
        if value_type == _STRING:
            return self.string()
        if value_type in _NUMBERS:
            return self.number(value_type)
        if value_type != _ARRAY:
            raise ValueError(f"a value has type {value_type}")
        inside, count = self.number(4), self.number()
        if inside in _NUMBERS:
            return self.numbers(inside, count)
        return [self.value(inside) for _ in range(count)]

    def _next(self, size: int) -> slice:
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise ValueError("the header does not end")
        return slice(start, self.at)


def _parsed(
    path: Path, data: NDArray[np.uint8]
) -> tuple[dict[str, Any], dict[str, bytes], dict[str, Stored]]:
    """Return a file's metadata, their bytes, and its tensors."""
    cursor = _Cursor(data)
    count, keys = cursor.numbers(10, 2)
    metadata: dict[str, Any] = {}
    stored, tensors = {}, {}
    for _ in range(keys):
        start, key = cursor.at, cursor.string()
        if key in metadata:
            raise ValueError(f"{key} occurs twice")
        metadata[key] = cursor.value(cursor.number(4))
        stored[key] = data[start : cursor.at].tobytes()
    entries = []
    for _ in range(count):
        name, axes = cursor.string(), cursor.number(4)
        shape = tuple(reversed(cursor.numbers(10, axes)))
        entries.append((name, shape, cursor.number(4), cursor.number()))
    alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    first = -(-cursor.at // alignment) * alignment
    for name, shape, number, at in entries:
        if name in tensors or at % alignment:
            raise ValueError(f"{name} occurs twice, or starts off the alignment")
        kind = _KINDS.get(number)
        if kind is None:
            raise UserError(f"{path}: {name} has type {number}, which the package gguf lacks")
        in_bytes = gguf.quant_shape_to_byte_shape(shape, kind)
        start, end = first + at, first + at + math.prod(in_bytes)
        if end > len(data):
            raise ValueError(f"{name} ends at byte {end:,} of {len(data):,}")
        tensors[name] = Stored(path, shape, kind, data[start:end].reshape(in_bytes))
    return metadata, stored, tensors
