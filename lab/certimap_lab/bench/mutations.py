"""Mutations of files: of their bytes and words, and of the arrays of an archive."""

from __future__ import annotations

import io
import random
import re
import zipfile

import numpy as np

from certimap_lab.bench.fuzz_seeds import JSON

_NUMBERS = (
    b"0 -1 1 2 3 1e999 -0 1e-999 nan inf 99999999999 4294967296 9223372036854775808 1_0 0x1p-2000 32768 "
    b"1e99999999999999999999"
).split()
_SIGNS = b"\" ' ( ) [ ] { } , ; | = /* */ // # : \\".split(b" ")
_BYTES = [b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80\xa8", b"\x85"]
_NAMES = b"property table default network variable probability BAYES MARKOV indicator gaussian null lo A c".split()
_BLANKS = [b"", b" ", b"\n", b"\r\n", b"\t", b"c ", b"+ ", b"* ", b"type discrete", b'"B c"']
_LONG = [b"1" * 400, b"1" * 5000, b"(" * 300, b"[" * 3000, b'{"a":' * 3000, b"/*" * 300, b"2 " * 300, b", " * 300]
_WORDS = [*_NUMBERS, *_SIGNS, *_BYTES, *_NAMES, *_BLANKS, *_LONG]
_TOKEN = re.compile(rb"[^\s,;(){}\[\]\"|]+")


def mutated(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Return a file with one to a few mutations."""
    for _ in range(1 if rng.random() < 0.7 else rng.randint(2, 6)):
        data = _MUTATIONS[rng.randrange(len(_MUTATIONS))](data, rng, seeds)
    return data


def _span(data: bytes, rng: random.Random, longest: int = 40) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.randint(1, longest))


def _flip(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]


def _delete(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _double(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 1, 2, 30)) + data[end:]


def _move(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    start, end = _span(data, rng)
    at = rng.randint(0, len(data))
    return data[:at] + data[start:end] + data[at:]


def _insert(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(_WORDS) + data[at:]


def _replace(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Put a word in place of one of the file's."""
    words = [found.span() for found in _TOKEN.finditer(data)]
    if not words:
        return _insert(data, rng, seeds)
    start, end = rng.choice(words)
    return data[:start] + rng.choice(_WORDS) + data[end:]


def _cut(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _splice(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


_MUTATIONS = (_flip, _flip, _delete, _double, _move, _insert, _replace, _replace, _replace, _cut, _splice)


def mutated_archive(rng: random.Random, data: bytes, seeds: tuple[bytes, ...]) -> bytes:
    """Mutate the archive's bytes, or its entries with checksums that fit."""
    if rng.random() < 0.3:
        return mutated(data, rng, seeds)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(entries))
        entries[name] = _mutated_entry(entries[name], rng, tuple(entries.values()))
    if rng.random() < 0.1:
        del entries[rng.choice(sorted(entries))]
    method = zipfile.ZIP_DEFLATED if rng.random() < 0.05 else zipfile.ZIP_STORED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def _mutated_entry(content: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Mutate an array: its bytes, or its values where its header is kept."""
    if rng.random() < 0.4:
        return mutated(content, rng, seeds)
    try:
        values = np.load(io.BytesIO(content)).copy()
    except Exception:  # an entry that was mutated before
        return mutated(content, rng, seeds)
    if values.dtype.kind == "U":  # the JSON text, mutated as such
        text = mutated(str(values[()]).encode("utf-8", "replace"), rng, (JSON,)).decode("utf-8", "replace")
        values = np.array(text)
    elif values.size:
        at = rng.randrange(values.size)
        odd = (-1, 0, 1, 2, 127, -128) if values.dtype.kind == "i" else (-1.0, 0.0, np.nan, np.inf, -np.inf, 0.3)
        values.reshape(-1)[at] = rng.choice(odd)
        if rng.random() < 0.2:
            values = values.reshape(-1)[: rng.randrange(values.size + 1)]
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
