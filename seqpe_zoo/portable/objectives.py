"""The two position objectives (paper, sections 3.3 and 3.4, appendix A): losses and the positions they see.

Losses are pure functions of vectors. Positions are drawn anew for every step, vectorised and seeded:
contrastive sets hold lexical twins of a pivot among positions anywhere below `max_position` ("global"), or
positions of one small region ("local"); transfer sets pair positions of the training context with shifted
copies. Everything works for any number of dimensions and on any device. Weights and the single encoder call
are in `seqpe.py`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .positions import ravel_positions, unravel_positions

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
    batch, count, width = candidates.shape
    heads = (num_heads, width // num_heads)
    similarity = (
        torch.einsum("bhp,bmhp->bhm", pivot.unflatten(-1, heads), candidates.unflatten(-1, heads)) * scale
    )
    if ignored is not None:
        similarity = similarity.masked_fill(ignored.unsqueeze(1), float("-inf"))
    labels = nearest.repeat_interleave(num_heads)
    return F.cross_entropy(
        similarity.reshape(batch * num_heads, count), labels, label_smoothing=label_smoothing
    )


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


def warmup_ratio(step: int, warmup_steps: int) -> float:
    """Share of the objectives' weights at a step counted from 1: linear up to `warmup_steps`, then 1."""
    return min(1.0, step / warmup_steps) if warmup_steps > 0 else 1.0


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
    """Draws `count` different integers below `high` in each of `rows` rows, in random order.

    Raises:
        ValueError: there are not so many integers.
    """
    if count > high:
        raise ValueError(
            f"cannot draw {count} different positions out of {high}; ask for fewer or widen the range"
        )
    device = generator.device
    if high <= 16 * count:
        keys = torch.rand(rows, high, generator=generator, device=device)
        return keys.topk(count, dim=1).indices
    # With at least 16 times as many integers as wanted, twice the draws hold enough different ones: the
    # chance that they do not is below 1e-30 for count = 1 and falls from there.
    drawn = torch.randint(high, (rows, 2 * count + 24), generator=generator, device=device)
    return _first_distinct(drawn, torch.ones_like(drawn, dtype=torch.bool), count)


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
    device = generator.device
    sides = [max_position] * num_dims
    pivots = torch.randint(max_position, (num_pivots, num_dims), generator=generator, device=device)
    wanted = num_candidates + 1  # one more, because the pivot may be among them
    simple = unravel_positions(sample_distinct(max_position**num_dims, num_pivots, wanted, generator), sides)
    local = _sample_local(
        max_position, num_dims, num_pivots, wanted, max(local_range, 5 * num_candidates), generator
    )
    is_local = torch.rand(num_pivots, generator=generator, device=device) < local_probability
    plain = torch.where(is_local[:, None, None], local, simple)

    num_hard = int(num_candidates * hard_ratio)
    hard = edit_positions(pivots.unsqueeze(1).expand(-1, num_hard, -1), base, max_position, generator)
    # A twin must be farther away than some plain candidate that is kept in any case: so it is never the
    # positive.
    kept = plain[:, : num_candidates - num_hard]
    reach = squared_distance(pivots, kept).double()
    reach = reach.masked_fill((kept == pivots.unsqueeze(1)).all(-1), float("inf"))
    allowed = squared_distance(pivots, hard).double() > reach.amin(dim=1, keepdim=True)
    allowed = allowed & ~is_local.unsqueeze(1)

    pool = torch.cat([hard, plain], dim=1)
    usable = torch.cat([allowed, torch.ones_like(plain[..., 0], dtype=torch.bool)], dim=1)
    usable = usable & (pool != pivots.unsqueeze(1)).any(-1)
    codes = _first_distinct(ravel_positions(pool, sides), usable, num_candidates)
    candidates = unravel_positions(codes, sides)
    distances = squared_distance(pivots, candidates)
    nearest = distances.argmin(dim=1)
    tied = distances == distances.gather(1, nearest.unsqueeze(1))
    tied = tied.scatter(1, nearest.unsqueeze(1), False)
    return ContrastiveSet(pivots, candidates, nearest, tied)


def edit_positions(positions: Tensor, base: int, max_position: int, generator: torch.Generator) -> Tensor:
    """Makes lexical twins: one coordinate of each position gets one to three random digit edits.

    Args:
        positions: (..., n).
        base: base of the digits.
        max_position: an edit that would leave it is not made; a position may therefore come back unchanged.
        generator: source of randomness.
    """
    shape, device = positions.shape[:-1], positions.device
    which = torch.randint(positions.shape[-1], shape, generator=generator, device=device).unsqueeze(-1)
    numbers = positions.gather(-1, which).squeeze(-1)
    edits = torch.randint(1, MOST_EDITS + 1, shape, generator=generator, device=device)
    for step in range(MOST_EDITS):
        edited = _edit_digits(numbers, base, max_position, generator)
        numbers = torch.where(step < edits, edited, numbers)
    return positions.scatter(-1, which, numbers.unsqueeze(-1))


def _edit_digits(numbers: Tensor, base: int, max_position: int, generator: torch.Generator) -> Tensor:
    """Swaps, inserts, replaces or deletes one digit of each number, by arithmetic on its two sides."""
    num_places = 1
    while base**num_places < max_position:
        num_places += 1
    powers = torch.tensor([base**place for place in range(num_places + 2)], device=numbers.device)
    length = (numbers.unsqueeze(-1) >= powers[1:num_places]).sum(-1) + 1

    def draw(below: Tensor) -> Tensor:
        share = torch.rand(numbers.shape, generator=generator, device=numbers.device, dtype=torch.float64)
        return (share * below).long()

    place, other = draw(length), draw(length)
    gap = draw(length + 1)  # a digit may also be inserted before the first or after the last
    digit = torch.randint(base, numbers.shape, generator=generator, device=numbers.device)
    at, at_other, at_gap = powers[place], powers[other], powers[gap]
    here, there = numbers // at % base, numbers // at_other % base
    choices = torch.stack(
        [
            numbers + (there - here) * at + (here - there) * at_other,  # swap
            numbers // at_gap * at_gap * base + digit * at_gap + numbers % at_gap,  # insert
            numbers + (digit - here) * at,  # replace
            numbers // (at * base) * at + numbers % at,  # delete
        ]
    )
    choice = torch.randint(4, numbers.shape, generator=generator, device=numbers.device)
    edited = choices.gather(0, choice.unsqueeze(0)).squeeze(0)
    return torch.where(edited < max_position, edited, numbers)


def sample_transfer(
    window: Sequence[int], max_position: int, num_starts: int, num_positions: int, generator: torch.Generator
) -> TransferSet:
    """Draws the sets of the distillation objective.

    Args:
        window: size of the training context in each dimension.
        max_position: L_max; shifted contexts end below it.
        num_starts: shifts drawn.
        num_positions: positions compared for each shift, at most as many as the context has.
        generator: source of randomness.

    Raises:
        ValueError: the max_position has no room for a shifted context.
    """
    cells = math.prod(window)
    starts = _sample_outside_starts(window, max_position, num_starts, generator)
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
        generator: source of randomness, on the CPU: how many starts there are must be known to the host.

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
    side = max(1, math.floor(max(volume, count) ** (1.0 / num_dims)))
    side = min(max_position, side + (side**num_dims < max(volume, count)))
    start = torch.randint(
        max_position - side + 1, (rows, 1, num_dims), generator=generator, device=generator.device
    )
    cells = sample_distinct(side**num_dims, rows, count, generator)
    return unravel_positions(cells, [side] * num_dims) + start


def _sample_outside_starts(
    window: Sequence[int], max_position: int, count: int, generator: torch.Generator
) -> Tensor:
    """Draws starts (count, n) of contexts that reach beyond the trained one.

    In one dimension they begin at a quarter of the context, as in the release; in more, at least one
    coordinate is moved by a whole side.
    """
    device = generator.device
    least = [window[0] // 4 if len(window) == 1 else side for side in window]
    most = [max_position - side for side in window]
    movable: list[int] = [
        dimension for dimension in range(len(window)) if most[dimension] >= max(1, least[dimension])
    ]
    if not movable or min(most) < 0:
        raise ValueError(
            f"a context of {tuple(window)} leaves no room for shifted copies below "
            f"max_position={max_position}; raise it (and num_digits where needed), or set ood_weight=0"
        )
    columns = [torch.randint(high + 1, (count,), generator=generator, device=device) for high in most]
    outside = torch.stack([column >= max(1, low) for column, low in zip(columns, least)]).any(0)
    chosen = torch.randint(len(movable), (count,), generator=generator, device=device)
    for number, dimension in enumerate(movable):
        low = max(1, least[dimension])
        moved = torch.randint(low, most[dimension] + 1, (count,), generator=generator, device=device)
        columns[dimension] = torch.where(~outside & (chosen == number), moved, columns[dimension])
    return torch.stack(columns, dim=-1)


def _first_distinct(codes: Tensor, usable: Tensor, count: int) -> Tensor:
    """Returns the first `count` different usable codes of each row, in order: (B, S) to (B, count)."""
    ordered, index = codes.sort(dim=1, stable=True)  # of equal codes, the earlier stands first
    blocked = ~usable.gather(1, index)
    # Only a usable predecessor makes a code a repetition; unusable ones sort among equals by their place, so
    # mark repetitions by the count of usable equals before them.
    same = torch.zeros_like(blocked)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    rank = (~blocked).long().cumsum(1)
    start_rank = (
        torch.where(same, 0, rank - (~blocked).long()).cummax(1).values
    )  # usable codes before the run
    repeated = rank - (~blocked).long() > start_rank
    rejected = torch.zeros_like(usable).scatter(1, index, blocked | repeated)
    places = torch.arange(codes.shape[1], device=codes.device)
    order = (places + rejected.long() * codes.shape[1]).argsort(dim=1)
    return codes.gather(1, order[:, :count])


def optional_generator(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """Returns the generator of a training step.

    Without one from the user, a seed is drawn from PyTorch's global generator, which trainers seed, save and
    restore, and mixed with the process's rank, so that each process draws positions of its own.
    """
    if generator is not None:
        return generator
    seed, rank = int(torch.randint(2**62, ())), 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
    return torch.Generator(device).manual_seed((seed + rank * 0x9E3779B97F4A7C15) % 2**63)
