"""The position encoder: digits, shared prefixes, tables (the bars of the core)."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.report import Row
from benchmarks.timing import compare, peak_memory_of, seconds_of
from seqpe_zoo import SeqPE
from seqpe_zoo.portable.positions import positions_to_digits
from seqpe_zoo.portable.encoder import PositionEncoder


def run(full: bool) -> Iterator[Row]:
    """Measures with two threads, in a full run with one too, and then what sizes cost."""
    for threads in (1, 2) if full else (2,):
        torch.set_num_threads(threads)
        yield from _digits(threads)
        yield from _inference(threads, rounds=5 if full else 2)
        yield from _training(threads, rounds=9 if full else 3)
    yield from _scaling(full)
    yield from _shapes(full)
    yield from _growth()
    if full:
        yield from _a_million()


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
    """Building a table, cost per position against one of 1,000: linear growth means a ratio near 1."""
    pe = _table_owner()
    sizes = (1000, 10_000, 100_000) if full else (1000, 10_000)
    rows = []
    for count in sizes[1:]:
        candidates = {"large": lambda count=count: _build_table(pe, count), "small": lambda: _build_table(pe)}
        for ratio in compare(candidates, "small", rounds=3):
            share = sizes[0] / count
            title = f"table of {count:,} positions / of {sizes[0]:,}, per position"
            rows.append(Row.plain(title, ratio, share))
    return rows


def _table_owner() -> SeqPE:
    return SeqPE(dim=384, num_heads=6, num_layers=12, num_digits=6).eval()


@torch.no_grad()
def _build_table(pe: SeqPE, count: int = 1000) -> None:
    """Encodes positions and projects them to what attention layers need."""
    pe.drop_caches()
    pe.prepare_range(0, count)


def _shapes(full: bool) -> list[Row]:
    """What width, digits, dimensions and base cost: 4,000 positions against the plain setting.

    Neighbours share most of their prefixes; positions drawn at random, as in training, share fewer.
    """
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

    def candidate(options: dict[str, int], at_random: bool) -> Callable[[], object]:
        encoder = _encoder(**options)
        dims = options.get("num_dims", 1)
        side = round(4000 ** (1 / dims))
        positions = torch.cartesian_prod(*[torch.arange(side)] * dims).view(-1, dims)
        if at_random:
            positions = torch.randint(encoder.capacity, positions.shape)

        @torch.no_grad()
        def encode() -> object:
            return encoder(positions)

        return encode

    rows = []
    for at_random in (False, True) if full else (False,):
        candidates = {name: candidate(options, at_random) for name, options in settings.items()}
        kind = "random positions" if at_random else "neighbouring positions"
        for ratio in compare(candidates, plain, rounds=3 if full else 1):
            rows.append(Row.slower(f"encoding some 4,000 {kind}, {ratio.name}", ratio, None))
    return rows


def _growth() -> list[Row]:
    """Decoding: looking up the next position, the table growing ahead, against encoding it anew each time."""
    pe = _table_owner()

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
    rows = [Row.faster("512 positions, then 256 one by one", ratio, bar=None) for ratio in ratios]
    times = _times_of_growth(pe, 512, 1024)
    words = f"{statistics.mean(times):.2f} ms in the mean, {max(times):.1f} ms where the table grows"
    return [*rows, Row("one position more, after 512 to 1,023", words)]


@torch.no_grad()
def _times_of_growth(pe: SeqPE, start: int, stop: int) -> list[float]:
    """Milliseconds of each step of decoding that positions take."""
    _build_table(pe, start)
    times = []
    for position in range(start, stop):
        begin = time.perf_counter()
        pe.prepare_range(position, position + 1)
        times.append(1000 * (time.perf_counter() - begin))
    return times


def _a_million() -> Iterator[Row]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        extra, ratio = pool.apply(_encode_a_million)
    yield Row("encoding 1,000,000 positions / 1,000, per position (once)", f"{ratio:.2f}x")
    yield Row.value(
        "extra memory of encoding 1,000,000 positions (d=384), output included", extra / 1e9, "GB", 2.0
    )


def _encode_a_million() -> tuple[int, float]:
    torch.set_num_threads(2)
    encoder = _encoder(num_digits=6)
    few, many = torch.arange(1000)[:, None], torch.arange(1_000_000)[:, None]
    with torch.no_grad():
        small = seconds_of(lambda: encoder(few), calls=3)
        begin = time.perf_counter()
        extra = peak_memory_of(lambda: encoder(many))
        return extra, (time.perf_counter() - begin) / small / 1000
