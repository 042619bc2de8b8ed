"""Random options and positions: a right result, or a ValueError or TypeError of ours with a sentence.

Right means: equal to the encoding of each position by itself, without tables, shared prefixes or chunks. Run
more cases by hand with `python -m tests.portable.test_fuzz 100000`.
"""

import collections
import random
import sys
import traceback
from typing import Any

import torch
from torch import Tensor

from seqpe_zoo.portable import position_encoding as core
from seqpe_zoo.portable import positions as positions_module
from seqpe_zoo.portable.encodings import POSITION_ENCODINGS, build_position_encoding
from seqpe_zoo.portable.positions import Positions, grid_positions

CASES = 2000

WRONG = [float("nan"), float("inf"), -1, -0.5, 0, "3", None, True, [2], 10**19, 1e300, (1,)]
SMALL = ["uint8", "int8", "int16", "int32", "uint16", "uint32", "uint64", "float32", "bool"]
DTYPES = [torch.int64] * 12 + [getattr(torch, name) for name in SMALL]


def draw_options(rng: random.Random, name: str) -> dict[str, Any]:
    """Options of which most are sensible, some are at their ends, and a few make no sense."""
    sensible: dict[str, dict[str, list[Any]]] = {
        "nope": {},
        "ape_sin": {"base": [1, 10000.0, 1e18], "scale": [0.0, 1, -2.5, 1e6]},
        "ape_learn": {},
        "rope": {"base": [1, 10000, 1e18]},
        "rope2d_axial": {"base": [1, 100.0], "table": [True, False]},
        "rope2d_mixed": {"base": [1.0, 10.0], "table": [True, False]},
        "alibi": {"scaled": [True, False]},
        "seqpe": {
            "num_digits": [None, 1, 2, 3, 5, 18], "base": [2, 3, 10, 16, 100], "encoder_dim": [None, 4, 8, 9],
            "encoder_heads": [None, 1, 2, 3], "encoder_layers": [1, 2, 3], "encoder_causal": [True, False],
            "dropout": [0, 0.1, 1.0], "attention_dropout": [0.0, 0.5, 1], "final_norm": [True, False],
            "temperature": [1.0, 0.5, 1e-6, 1e6], "mask_padding": [True, False],
            "allow_absent": [True, False], "integration": [None, "mul", "sum", "bias", "input"],
            "projection": [None, "per_layer", "shared", "none"],
            "multi_head": [True, False], "bias_scale": [1, 0.5, -1.0], "init": ["fan_in", "release"],
            "fit_steps": [1, 5], "extrapolation": ["extend", "interpolate"],
            "distance_weight": [0.0, 0.1, 3], "ood_weight": [0.0, 0.1],
            "shift_probability": [0.0, 0.5, 1.0], "shift_scope": ["example", "batch"],
            "max_position": [None, 1, 2, 10, 99, 10**9, 10**12], "num_pivots": [1, 4],
            "num_candidates": [2, 8], "num_starts": [1, 3], "num_transfer": [1, 6], "local_range": [1, 30],
            "ood_form": ["paper", "release", "release_mse"], "ood_heads": [None, 1, 2, 5],
        },
    }  # fmt: skip
    known = sensible[name]
    given = {key: rng.choice(values) for key, values in known.items() if rng.random() < 0.15}
    if name == "seqpe":  # small, so that thousands of cases take seconds
        given = {
            "num_pivots": 2,
            "num_candidates": 4,
            "num_starts": 2,
            "num_transfer": 4,
            "encoder_dim": 8,
        } | given
    if rng.random() < 0.05:
        given[rng.choice([*known, "bass"])] = rng.choice(WRONG)
    return given


def draw_host(rng: random.Random, name: str) -> dict[str, Any]:
    num_dims = rng.choice([2] if name.startswith("rope2d") else [1, 1, 2, 3])
    host = {
        "dim": rng.choice([8, 16, 24]),
        "num_heads": rng.choice([None, 1, 2, 4]),
        "num_layers": rng.choice([1, 2, 3]),
        "num_dims": num_dims,
        "train_shape": tuple(rng.randint(1, 6) for _ in range(num_dims)),
        "num_prefix": rng.choice([0, 0, 1, 3]),
        "causal": name == "alibi" or rng.random() < 0.5,
    }
    for key, values in {"num_kv_heads": [1, 2], "head_dim": [4, 8, 10], "scaling": [0.1, 1.0]}.items():
        if rng.random() < 0.1:
            host[key] = rng.choice(values)
    if rng.random() < 0.1:
        host["train_shape"] = None
    if rng.random() < 0.04:
        wrong = [*WRONG, (0,), (2, -1), (2.5,), (10**10, 10**10)]
        host[rng.choice([*host, "num_kv_heads", "head_dim", "scaling"])] = rng.choice(wrong)
    return host


def draw_positions(rng: random.Random, encoding: Any) -> Any:
    """A grid, a tensor of positions, or something that is neither."""
    num_dims, bound = encoding.host.num_dims, encoding.capacity or 500
    side = min(rng.choice([1, 3, 9, 40]), bound)
    if rng.random() < 0.4:
        size = tuple(rng.randint(0 if rng.random() < 0.1 else 1, 6) for _ in range(num_dims))
        start = tuple(rng.randint(0, side) for _ in range(num_dims)) if rng.random() < 0.4 else ()
        if rng.random() < 0.08:
            size, start = rng.choice(
                [((), ()), ((3,) * 5, ()), ((-1,) * num_dims, ()), (size, (1,) * 6), ((2.0,), ())]
            )
        if rng.random() < 0.05:
            start = (bound,) * num_dims
        return Positions(size, start)
    if rng.random() < 0.05:
        return rng.choice([[[1]], 3, "1", None, torch.zeros(()), torch.zeros(3, 7, dtype=torch.long)])
    shape = rng.choice([(5,), (2, 4), (0,), (3, 0), (1,)])
    low = -1 if rng.random() < (0.7 if encoding.allow_absent else 0.1) else 0
    high = rng.choice([side, side, 120, 255, min(bound, 2**62)])
    if encoding.name in ("ape_learn", "rope2d_axial", "rope2d_mixed") or getattr(
        encoding, "interpolates", False
    ):
        high = rng.choice([side, 2**62])  # tables are stretched as far; between these they take seconds
    ids = [rng.randint(low, max(low, high - 1)) for _ in range(torch.Size(shape).numel() * encoding.num_dims)]
    dtype = rng.choice(DTYPES)
    tensor = torch.tensor(ids, dtype=torch.long).reshape(*shape, encoding.num_dims)
    tensor = tensor.to(dtype)
    if rng.random() < 0.02:
        tensor = tensor.to("meta")
    return tensor if rng.random() < 0.4 else Positions(ids=tensor)


def encode_one_by_one(encoding: Any, positions: Tensor) -> Tensor:
    """Vectors of positions (N, n), each by itself."""
    limit = (positions.amax(0) + 1).tolist() if len(positions) else [0] * encoding.num_dims
    if encoding.name == "seqpe" and not encoding.interpolates:
        rows = [encoding.encoder.encode_each(row) for row in positions.split(1)]
    else:
        rows = [encoding.encode(row, limit) for row in positions.split(1)]
    return torch.cat(rows) if len(positions) else encoding.encode(positions, limit)


def check_result(encoding: Any, given: Any, result: Any) -> None:
    ids = given if isinstance(given, Tensor) else given.ids
    if ids is None:
        numbered = encoding.flattens and encoding.host.num_dims > 1
        cells = torch.Size(given.size).numel()
        start = encoding.host.num_prefix if numbered else given.start or None
        ids = grid_positions((cells,), (start,)) if numbered else grid_positions(given.size, start)
    ids = ids.long()
    expected = encode_one_by_one(encoding, ids.reshape(-1, encoding.num_dims))
    expected = expected.reshape(*ids.shape[:-1], expected.shape[-1])
    if isinstance(given, Tensor):
        close(result, expected)
        return
    expected = encoding.encode_prefix(expected)
    close(result.encoded, expected)
    for found, wanted in zip(result.layers, encoding.layer_inputs(expected), strict=True):
        close(found, wanted)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape, f"{found.shape} instead of {expected.shape}"
    assert found.isfinite().all(), "not finite"
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(found / scale, expected / scale, atol=1e-4, rtol=1e-3)


def run_case(seed: int) -> str:
    """Runs one case; returns what became of it."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    name = rng.choice([*POSITION_ENCODINGS, "seqpe", "seqpe", "seqpe"])
    case: list[Any] = [name]
    try:
        case += [host := draw_host(rng, name), options := draw_options(rng, name)]
        encoding = build_position_encoding(name, **host, **options)
        encoding.eval()
        for _ in range(3):
            case.append(given := draw_positions(rng, encoding))
            with torch.set_grad_enabled(rng.random() < 0.2):
                result = encoding(given)
            if isinstance(getattr(given, "ids", given), Tensor) and getattr(given, "ids", given).is_meta:
                raise AssertionError("a result of positions that nobody knows")
            with torch.no_grad():
                check_result(encoding, given, result)
        encoding.train()
        if isinstance(given, Positions):
            batch = given.ids.shape[0] if given.ids is not None and given.ids.ndim == 3 else 2
            step = encoding(given, batch, objectives=True)
            assert all(inputs.isfinite().all() for inputs in [step.encoded, *step.layers]), (
                "not finite in training"
            )
            assert step.losses is None or all(loss.isfinite() for loss in step.losses), (
                f"losses {step.losses}"
            )
    except (ValueError, TypeError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1].filename
        ours = (core.__file__, positions_module.__file__)
        if not any(frame.startswith(file.rpartition("/")[0]) for file in ours) or len(str(error)) < 20:
            raise AssertionError(f"case {seed}: {case}: {type(error).__name__} not ours: {error}") from error
        return type(error).__name__
    except Exception as error:
        raise AssertionError(f"case {seed}: {case}: {type(error).__name__}: {error}") from error
    return "right"


def test_random_options_and_positions_give_a_right_result_or_an_error_of_ours() -> None:
    outcomes = collections.Counter(run_case(seed) for seed in range(CASES))
    assert min(outcomes["right"], outcomes["ValueError"], outcomes["TypeError"]) > CASES // 50, outcomes


if __name__ == "__main__":
    found: collections.Counter[str] = collections.Counter()
    for number in range(int(sys.argv[1])):
        try:
            found[run_case(number)] += 1
        except AssertionError as error:
            found["failed"] += 1
            if found["failed"] <= int(sys.argv[2] if len(sys.argv) > 2 else 20):
                print(str(error)[:700], "\n")
    print(dict(found))
