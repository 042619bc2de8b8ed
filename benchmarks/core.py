"""The position encoder: digits, shared prefixes, tables (the bars of the core)."""

import multiprocessing
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.report import Row
from benchmarks.timing import compare, peak_memory_of
from seqpe_zoo import SeqPE
from seqpe_zoo.portable.digits import positions_to_digits
from seqpe_zoo.portable.encoder import PositionEncoder


def run(full: bool) -> Iterator[Row]:
    """Measures with two threads, in a full run with one too, and then what sizes cost."""
    for threads in (1, 2) if full else (2,):
        torch.set_num_threads(threads)
        yield from _digits(threads)
        yield from _inference(threads, rounds=5 if full else 2)
        yield from _training(threads, rounds=9 if full else 3)
    yield from _scaling(full)
    yield from _shapes(rounds=3 if full else 1)
    yield from _growth()
    if full:
        yield _memory()


def encode_full_sequences(encoder: PositionEncoder, positions: Tensor) -> Tensor:
    """Runs every layer on every full sequence: what an encoder does that shares nothing."""
    tokens, _ = encoder._tokens(positions)
    final = encoder.cls_embedding.expand(len(positions), 1, -1)
    x = torch.cat([encoder._vocabulary()[tokens], final], dim=1)
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    for layer in encoder.model.layers:  # type: ignore[union-attr]
        x = layer(x, mask, False)
    return encoder._project(x[:, -1])


def _encoder(**options: object) -> PositionEncoder:
    settings = {"dim": 384, "num_digits": 5, "dropout": 0.0, **options}
    return SeqPE(**settings).eval().encoder  # type: ignore[arg-type]


def _digits(threads: int) -> list[Row]:
    positions = torch.randint(0, 20000, (100_000, 1))

    def string_loop() -> Tensor:
        numbers = positions[:, 0].tolist()
        return torch.tensor([[int(digit) for digit in str(number).zfill(5)] for number in numbers])

    candidates = {"digits": lambda: positions_to_digits(positions, 10, 5), "string loop": string_loop}
    ratios = compare(candidates, "string loop", rounds=5)
    return [
        Row.faster(f"digits of 100,000 positions, {threads} thread(s)", ratio, bar=100.0) for ratio in ratios
    ]


def _inference(threads: int, rounds: int) -> list[Row]:
    encoder = _encoder()
    positions = torch.arange(20000)[:, None]

    @torch.no_grad()
    def full() -> None:
        for chunk in positions.split(2000):
            encode_full_sequences(encoder, chunk)

    @torch.no_grad()
    def shared() -> None:
        encoder(positions)

    ratios = compare({"shared prefixes": shared, "full sequences": full}, "full sequences", rounds, warmup=0)
    name = f"encoding 0..19999 (d=384, k=5, 2 layers), {threads} thread(s)"
    return [Row.faster(name, ratio, bar=3.5) for ratio in ratios]


def _training(threads: int, rounds: int) -> list[Row]:
    encoder = _encoder().train()
    positions = torch.randint(0, 20000, (1500, 1))

    def step(encode: object) -> None:
        encoder.zero_grad()
        encode(positions).square().sum().backward()  # type: ignore[operator]

    candidates = {
        "shared prefixes": lambda: step(encoder),
        "full sequences": lambda: step(lambda chunk: encode_full_sequences(encoder, chunk)),
    }
    ratios = compare(candidates, "full sequences", rounds)
    name = f"forward and backward on 1,500 random positions, {threads} thread(s)"
    return [Row.faster(name, ratio, bar=2.5) for ratio in ratios]


def _scaling(full: bool) -> list[Row]:
    """Cost per position against that of 1,000 positions: linear growth means a ratio near or below 1."""
    encoder = _encoder()
    sizes = (1000, 10_000, 100_000) if full else (1000, 10_000)

    def encode(count: int) -> object:
        with torch.no_grad():
            return encoder(torch.arange(count)[:, None])

    rows = []
    for count in sizes[1:]:
        candidates = {"large": lambda count=count: encode(count), "small": lambda: encode(sizes[0])}
        for ratio in compare(candidates, "small", rounds=3):
            share = sizes[0] / count
            rows.append(
                Row.plain(f"{count:,} positions / {sizes[0]:,} positions, per position", ratio, share)
            )
    return rows


def _shapes(rounds: int) -> list[Row]:
    """What width, digits, dimensions and base cost: 4,000 positions against the plain setting."""
    plain = "d=384, 5 digits, 1 dimension, base 10"
    settings: dict[str, dict[str, int]] = {
        plain: {},
        "d=192": {"dim": 192},
        "d=768": {"dim": 768},
        "4 digits": {"num_digits": 4},
        "8 digits": {"num_digits": 8},
        "2 dimensions": {"num_dims": 2},
        "3 dimensions": {"num_dims": 3},
        "base 2, 15 digits": {"base": 2, "num_digits": 15},
        "base 100, 3 digits": {"base": 100, "num_digits": 3},
    }

    def candidate(options: dict[str, int]) -> Callable[[], object]:
        encoder = _encoder(**options)
        dims = options.get("num_dims", 1)
        side = round(4000 ** (1 / dims))
        positions = torch.cartesian_prod(*[torch.arange(side)] * dims).view(-1, dims)

        @torch.no_grad()
        def encode() -> object:
            return encoder(positions)

        return encode

    ratios = compare({name: candidate(options) for name, options in settings.items()}, plain, rounds)
    return [Row.slower(f"encoding some 4,000 positions, {ratio.name}", ratio, None) for ratio in ratios]


def _growth() -> list[Row]:
    """Decoding: looking up the next position, the table growing ahead, against encoding it anew each time."""
    pe = SeqPE(dim=384, num_heads=6, num_layers=12, num_digits=5).eval()

    @torch.no_grad()
    def with_table() -> None:
        pe.drop_caches()
        pe.prepare_range(0, 512)
        for position in range(512, 768):
            pe.prepare_range(position, position + 1)

    @torch.no_grad()
    def without_table() -> None:
        pe.layer_terms(pe.encoder(torch.arange(512)[:, None]))
        for position in range(512, 768):
            pe.layer_terms(pe.encoder(torch.tensor([[position]])))

    ratios = compare({"table": with_table, "no table": without_table}, "no table", rounds=3)
    return [Row.faster("512 positions, then 256 one by one", ratio, bar=None) for ratio in ratios]


def _memory() -> Row:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        extra = pool.apply(_encode_a_million)
    return Row.value(
        "extra memory of encoding 1,000,000 positions (d=384), output included", extra / 1e9, "GB", 2.0
    )


def _encode_a_million() -> int:
    torch.set_num_threads(2)
    encoder = _encoder(num_digits=6)
    with torch.no_grad():
        encoder(torch.arange(2000)[:, None])
        return peak_memory_of(lambda: encoder(torch.arange(1_000_000)[:, None]))
