"""The two position objectives (paper, sections 3.3 and 3.4, appendix A): losses and the positions they see.

Losses are pure functions of vectors. Positions are drawn anew for every step, vectorised and seeded:
contrastive sets hold lexical twins of a pivot among positions anywhere below `max_position` ("global"), or
positions of one small region ("local"); transfer sets pair positions of the training context with shifted
copies. Everything works for any number of dimensions and on any device.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .position_encoding import PositionLosses
from .positions import count_digits, ravel_positions, unravel_positions

OOD_FORMS = ("paper", "release", "release_mse")


def distance_contrastive_loss(
    pivot: Tensor,
    candidates: Tensor,
    nearest: Tensor,
    ignored: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """L_delta: the nearest candidate should be the most similar one.

    Args:
        pivot: (B, P).
        candidates: (B, m, P).
        nearest: (B,), which candidate is nearest to the pivot.
        ignored: bool (B, m), candidates that take no part. The release lets chance decide between equally
            near candidates and trains the other as a negative; ours leaves the other out.
        num_heads: similarities are taken head by head; the paper and the runs of the release use 1.
        scale: similarities are multiplied by it; 1 in the paper.
        label_smoothing: as in cross entropy; 0 in the paper.
    """
    heads = (num_heads, candidates.shape[-1] // num_heads)
    pairs = pivot.unflatten(-1, heads), candidates.unflatten(-1, heads)
    similarity = torch.einsum("bhp,bmhp->bhm", *pairs) * scale
    if ignored is not None:
        similarity = similarity.masked_fill(ignored.unsqueeze(1), float("-inf"))
    labels = nearest.repeat_interleave(num_heads)
    return F.cross_entropy(similarity.flatten(0, 1), labels, label_smoothing=label_smoothing)


def ood_distillation_loss(
    teacher: Tensor,
    student: Tensor,
    num_heads: int = 1,
    form: str = "paper",
    scale: float = 1.0,
    student_weight: float = 1.0,
) -> Tensor:
    """L_OOD: shifted positions should relate to each other as the trained ones do.

    Args:
        teacher: (B, m, P), vectors of positions inside the training context.
        student: (B, m, P), vectors of the same positions after a shift.
        num_heads: similarities are taken head by head and averaged.
        form: "paper", KL(teacher || student) of each row, averaged over rows, no gradient to the teacher.
            "release", both directions, averaged over all elements (so 1/m of the rows' mean).
            "release_mse", the release's other metric, squared difference of log-probabilities.
        scale: similarities are multiplied by it; 1 in the paper.
        student_weight: the release's beta: this share moves the student, the rest moves the teacher. 1 in its
            runs; the paper's form has no such share.
    """
    if form not in OOD_FORMS:
        raise ValueError(f"ood_form={form!r} is unknown; choose one of {', '.join(OOD_FORMS)}")
    to_learn = _log_similarity(student, num_heads, scale)
    fixed = _log_similarity(teacher, num_heads, scale)
    if form == "paper":
        if student_weight != 1.0:
            raise ValueError(
                f"student_weight={student_weight} belongs to ood_form='release'; the paper's is 1"
            )
        divergence = F.kl_div(to_learn, fixed.detach(), reduction="none", log_target=True)
        return divergence.sum(-1).mean()
    loss = student_weight * _release_metric(form, to_learn, fixed.detach())
    if student_weight < 1.0:
        loss = loss + (1.0 - student_weight) * _release_metric(form, to_learn.detach(), fixed)
    return loss


def _log_similarity(vectors: Tensor, num_heads: int, scale: float) -> Tensor:
    """Row-wise log-softmax of all dot products, (B, H, m, m), the diagonal included."""
    by_head = vectors.unflatten(-1, (num_heads, vectors.shape[-1] // num_heads)).transpose(1, 2)
    return (torch.matmul(by_head, by_head.transpose(-2, -1)) * scale).log_softmax(dim=-1)


def _release_metric(form: str, student: Tensor, teacher: Tensor) -> Tensor:
    if form == "release_mse":
        return F.mse_loss(student, teacher)
    forwards = F.kl_div(student, teacher, reduction="none", log_target=True).mean()
    return forwards + F.kl_div(teacher, student, reduction="none", log_target=True).mean()


def share_of_batch(
    labels: Tensor | None, num_items_in_batch: Tensor | int | None, shift_labels: Tensor | None = None
) -> Tensor | float:
    """Which part this step is of a batch accumulated over several steps, counted as the main loss counts."""
    if num_items_in_batch is None or labels is None:
        return 1.0
    predicted = shift_labels if shift_labels is not None else labels[..., 1:] if labels.ndim > 1 else labels
    return (predicted != -100).sum() / num_items_in_batch


class StepObjectives:
    """The positions that one training step draws for both objectives, and the losses of their vectors.

    An objective whose weight is zero draws nothing, and its loss is zero.

    Args:
        options: `SeqPEOptions` without open defaults.
        window: size of the training context in each dimension.
        generator: source of randomness; None for one seeded from PyTorch's global one.
        device: of the encoder.
    """

    def __init__(self, options: Any, window: Sequence[int], generator: Any, device: torch.device) -> None:
        self.options = options
        window = [max(1, side) for side in window]  # a side is 0 where all tokens lack a coordinate
        generator = optional_generator(generator, device)
        sets = []
        if options.distance_weight > 0:
            size = (options.max_position, len(window), options.base)
            counts = (options.num_pivots, options.num_candidates)
            drawn = sample_contrastive(*size, *counts, generator, local_range=options.local_range)
            self.nearest, self.tied = drawn.nearest.to(device), drawn.tied.to(device)
            sets.append(torch.cat([drawn.pivots.unsqueeze(1), drawn.candidates], dim=1))
        if options.ood_weight > 0:
            counts = (options.num_starts, options.num_transfer)
            sets.append(torch.cat(sample_transfer(window, options.max_position, *counts, generator), dim=1))
        self.shapes = [drawn.shape[:2] for drawn in sets]
        nothing = torch.empty(0, len(window), dtype=torch.long, device=device)
        self.positions = torch.cat([nothing, *(drawn.flatten(0, 1).to(device) for drawn in sets)])
        """All positions, (N, n)."""

    def losses(self, vectors: Tensor) -> PositionLosses:
        """Returns the losses of the vectors (N, W) of `positions`."""
        options, parts = self.options, vectors.split([shape.numel() for shape in self.shapes])
        sets = [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes)]  # (B, m, W)
        distance = ood = vectors.new_zeros(())
        if options.distance_weight > 0:
            pivots, candidates = sets[0].tensor_split([1], dim=1)
            distance = distance_contrastive_loss(pivots.squeeze(1), candidates, self.nearest, self.tied)
        if options.ood_weight > 0:
            teachers, students = sets[-1].chunk(2, dim=1)
            ood = ood_distillation_loss(teachers, students, options.ood_heads, options.ood_form)
        return PositionLosses(distance, ood, options.distance_weight * distance + options.ood_weight * ood)


# Which positions the objectives see.

MOST_EDITS = 3
"""A lexical twin is one to three digit edits away, as in the release; the paper says one."""


class ContrastiveSet(NamedTuple):
    """Pivots with their candidates."""

    pivots: Tensor
    """(B, n)."""
    candidates: Tensor
    """(B, m, n), different from each other and from the pivot."""
    nearest: Tensor
    """(B,), the candidate nearest to the pivot; on a tie the first."""
    tied: Tensor
    """Bool (B, m), candidates that are exactly as near but were not chosen."""


class TransferSet(NamedTuple):
    """Positions of the training context and the same positions shifted, both (B, m, n)."""

    teachers: Tensor
    students: Tensor


def sample_distinct(high: int, rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Draws `count` different integers below `high` in each of `rows` rows, in random order."""
    if count > high:
        raise ValueError(
            f"cannot draw {count} different positions out of {high}; ask for fewer or widen the range"
        )
    source: Any = {"generator": generator, "device": generator.device}
    if high <= 16 * count:
        return torch.rand(rows, high, **source).topk(count, dim=1).indices
    # With at least 16 times as many integers as wanted, twice the draws hold enough different ones: the
    # chance that they do not is below 1e-30 for count = 1 and falls from there.
    return _first_distinct(torch.randint(high, (rows, 2 * count + 24), **source), count)


def squared_distance(pivots: Tensor, candidates: Tensor) -> Tensor:
    """Squared Euclidean distance of candidates (B, m, n) to pivots (B, n); squares keep ties exact."""
    return (pivots.unsqueeze(1) - candidates).square().sum(-1)


def sample_contrastive(
    max_position: int,
    num_dims: int,
    base: int,
    num_pivots: int,
    num_candidates: int,
    generator: torch.Generator,
    hard_ratio: float = 0.25,
    local_probability: float = 0.5,
    local_range: int = 256,
) -> ContrastiveSet:
    """Draws the sets of the contrastive objective.

    Args:
        max_position: L_max, coordinates are below it.
        num_dims: n.
        base: base in which digits are edited.
        num_pivots: B.
        num_candidates: m.
        generator: source of randomness; its device is where everything happens.
        hard_ratio: share of lexical twins among the candidates of a global set.
        local_probability: share of local sets. One half as in the paper ("randomly select one of them"); the
            release has 0.6 for text and, by a slip, never draws global twins or local sets for images.
        local_range: a local region holds at least so many positions, and at least 5 m.
    """
    source: Any = {"generator": generator, "device": generator.device}
    sides = [max_position] * num_dims
    pivots = torch.randint(max_position, (num_pivots, num_dims), **source)
    wanted = num_candidates + 1  # one more, because the pivot may be among them
    simple = unravel_positions(sample_distinct(max_position**num_dims, num_pivots, wanted, generator), sides)
    region = max(local_range, 5 * num_candidates)
    local = _sample_local(max_position, num_dims, num_pivots, wanted, region, generator)
    is_local = torch.rand(num_pivots, **source) < local_probability
    plain = torch.where(is_local[:, None, None], local, simple)

    num_hard = int(num_candidates * hard_ratio)
    hard = edit_positions(pivots.unsqueeze(1).expand(-1, num_hard, -1), base, max_position, generator)
    pool = torch.cat([hard, plain], dim=1)
    distances = squared_distance(pivots, pool).double()
    distances = distances.masked_fill(distances == 0, float("inf"))  # the pivot itself
    # A twin must be farther away than a plain candidate that is kept in any case: so it is never the nearest.
    reach = distances[:, num_hard:num_candidates].amin(dim=1, keepdim=True)
    usable = distances.isfinite()
    usable[:, :num_hard] &= (distances[:, :num_hard] > reach) & ~is_local.unsqueeze(1)
    codes = torch.where(usable, ravel_positions(pool, sides), -1)
    candidates = unravel_positions(_first_distinct(codes, num_candidates), sides)
    distances = squared_distance(pivots, candidates)
    nearest = distances.argmin(dim=1)
    tied = distances == distances.gather(1, nearest.unsqueeze(1))
    tied = tied.scatter(1, nearest.unsqueeze(1), False)
    return ContrastiveSet(pivots, candidates, nearest, tied)


def edit_positions(positions: Tensor, base: int, max_position: int, generator: torch.Generator) -> Tensor:
    """Makes lexical twins of positions (..., n): one coordinate of each gets one to three random digit edits.

    An edit that would leave `max_position` is not made; a position may therefore come back unchanged.
    """
    source: Any = {"generator": generator, "device": positions.device}
    shape = positions.shape[:-1]
    which = torch.randint(positions.shape[-1], shape, **source).unsqueeze(-1)
    numbers = positions.gather(-1, which).squeeze(-1)
    edits = torch.randint(1, MOST_EDITS + 1, shape, **source)
    for step in range(MOST_EDITS):
        edited = _edit_digits(numbers, base, max_position, source)
        numbers = torch.where(step < edits, edited, numbers)
    return positions.scatter(-1, which, numbers.unsqueeze(-1))


def _edit_digits(numbers: Tensor, base: int, max_position: int, source: dict[str, Any]) -> Tensor:
    """Swaps, inserts, replaces or deletes one digit of each number, by arithmetic on its two sides."""
    num_places = count_digits(base, max_position)
    powers = torch.tensor([base**place for place in range(num_places + 2)], device=numbers.device)
    length = (numbers.unsqueeze(-1) >= powers[1:num_places]).sum(-1) + 1

    def draw(below: Tensor) -> Tensor:
        return (torch.rand(numbers.shape, dtype=torch.float64, **source) * below).long()

    place, other = draw(length), draw(length)
    gap = draw(length + 1)  # a digit may also be inserted before the first or after the last
    digit = torch.randint(base, numbers.shape, **source)
    at, at_other, at_gap = powers[place], powers[other], powers[gap]
    here, there = numbers // at % base, numbers // at_other % base
    swapped = numbers + (there - here) * at + (here - there) * at_other
    inserted = numbers // at_gap * at_gap * base + digit * at_gap + numbers % at_gap
    replaced = numbers + (digit - here) * at
    deleted = numbers // (at * base) * at + numbers % at
    choice = torch.randint(4, (1, *numbers.shape), **source)
    edited = torch.stack([swapped, inserted, replaced, deleted]).gather(0, choice).squeeze(0)
    return torch.where(edited < max_position, edited, numbers)


def sample_transfer(
    window: Sequence[int], max_position: int, num_starts: int, num_positions: int, generator: torch.Generator
) -> TransferSet:
    """Draws the sets of the distillation objective.

    Shifts reach beyond the trained context: in one dimension by a quarter of it at least, as in the release;
    in more, at least one coordinate is moved by a whole side.

    Args:
        window: size of the training context in each dimension.
        max_position: L_max; shifted contexts end below it.
        num_starts: B, shifts drawn.
        num_positions: m, positions compared for each shift, at most as many as the context has.
        generator: source of randomness.
    """
    least = [max(1, window[0] // 4)] if len(window) == 1 else window
    most = [max_position - side for side in window]
    movable = [n for n, (low, high) in enumerate(zip(least, most)) if high >= low]
    if not movable or min(most) < 0:
        raise ValueError(
            f"a context of {tuple(window)} leaves no room for shifted copies below "
            f"max_position={max_position}; raise it (and num_digits where needed), or set ood_weight=0"
        )
    device = generator.device

    def draw(low: Sequence[int], high: Sequence[int]) -> Tensor:
        source: Any = {"generator": generator, "device": device}
        columns = [torch.randint(a, max(a, b) + 1, (num_starts,), **source) for a, b in zip(low, high)]
        return torch.stack(columns, dim=-1)

    starts = draw([0] * len(window), most)
    is_outside = (starts >= torch.tensor(least, device=device)).any(dim=1, keepdim=True)
    chosen = torch.tensor(movable, device=device)[draw([0], [len(movable) - 1])]  # (B, 1)
    is_moved = ~is_outside & (torch.arange(len(window), device=device) == chosen)
    starts = torch.where(is_moved, draw(least, most), starts)
    cells = math.prod(window)
    index = sample_distinct(cells, num_starts, min(num_positions, cells), generator)
    teachers = unravel_positions(index, window)
    return TransferSet(teachers, teachers + starts.unsqueeze(1))


def sample_shifts(
    window: Sequence[int],
    max_position: int,
    batch_size: int,
    probability: float,
    scope: str,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Draws start positions of the examples of a batch.

    Args:
        window: extent of the batch's positions in each dimension.
        max_position: L_max; shifted positions end below it. A window that fills it is not shifted.
        batch_size: B.
        probability: share of shifted examples.
        scope: "example" shifts each example by itself; "batch" all or none, as the release.
        generator: source of randomness, on the CPU, where it must be known how many starts there are.

    Returns:
        Starts (R, n), the first of which is the origin, and for each example its start (B,).
    """
    draws = torch.rand(batch_size if scope == "example" else 1, generator=generator)
    shifted = (draws < probability).expand(batch_size) & all(side < max_position for side in window)
    count = int(shifted.sum())
    starts = torch.zeros(1 + count, len(window), dtype=torch.long)
    for dimension, side in enumerate(window):
        high = max(1, max_position - side + 1)
        starts[1:, dimension] = torch.randint(high, (count,), generator=generator)
    return starts, torch.where(shifted, shifted.long().cumsum(0), 0)


def _sample_local(
    max_position: int, num_dims: int, rows: int, count: int, volume: int, generator: torch.Generator
) -> Tensor:
    """Draws positions of one random small cube in each row, (rows, count, n)."""
    source: Any = {"generator": generator, "device": generator.device}
    side = max(1, math.floor(max(volume, count) ** (1.0 / num_dims)))
    side = min(max_position, side + (side**num_dims < max(volume, count)))
    start = torch.randint(max_position - side + 1, (rows, 1, num_dims), **source)
    cells = sample_distinct(side**num_dims, rows, count, generator)
    return unravel_positions(cells, [side] * num_dims) + start


def _first_distinct(codes: Tensor, count: int) -> Tensor:
    """Returns the first `count` different codes from 0 on of each row, in order: (B, S) to (B, count)."""
    places, unusable = torch.arange(codes.shape[1], device=codes.device), codes < 0
    distinct = torch.where(unusable, -1 - places, codes)  # the unusable repeat nothing
    ordered, index = distinct.sort(dim=1, stable=True)  # of equal codes, the earlier stands first
    repeats = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    rejected = unusable | torch.zeros_like(unusable).scatter(1, index, repeats)
    order = (places + rejected.long() * codes.shape[1]).argsort(dim=1)
    return codes.gather(1, order[:, :count])


def optional_generator(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """Returns the generator of a training step: the user's, or one seeded from PyTorch's global one.

    Trainers seed, save and restore that one; the rank of the process is mixed in, so that each process draws
    positions of its own.
    """
    if generator is not None:
        return generator
    seed, rank = int(torch.randint(2**62, ())), 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
    return torch.Generator(device).manual_seed((seed + rank * 0x9E3779B97F4A7C15) % 2**63)
