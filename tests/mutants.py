"""Damaged copies of a file, for tests of readers: the same ones every time."""

import random
from collections.abc import Iterator


def mutants(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Gives copies with up to three changes: bytes flipped, cut, repeated, inserted, or the end missing."""
    source = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(source.randint(1, 3)):
            start = source.randrange(len(changed) + 1)
            end = min(len(changed), start + source.choice((1, 1, 2, 4, 8, 64)))
            kind = source.choice("flip number cut repeat insert truncate".split())
            if kind == "flip" and start < len(changed):
                changed[start] ^= 1 << source.randrange(8)
            elif kind == "number":
                changed[start:end] = source.choice((b"\0", b"\xff", b"\x7f")) * (end - start)
            elif kind == "cut":
                del changed[start:end]
            elif kind == "repeat":
                changed[start:start] = changed[start:end] * source.choice((1, 3))
            elif kind == "insert":
                changed[start:start] = source.randbytes(end - start)
            elif kind == "truncate" and source.random() < 0.3:
                del changed[start:]
        yield bytes(changed)
