"""The two position objectives as pure functions of vectors (paper, sections 3.3 and 3.4).

Which positions the vectors belong to is decided in `samplers.py`; weights and the single encoder call are in
`pe_seqpe.py`.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

OOD_FORMS = ("paper", "release", "release_mse")


def distance_contrastive_loss(
    pivot: Tensor,
    candidates: Tensor,
    nearest: Tensor,
    ignored: Optional[Tensor] = None,
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


def warmup_ratio(step: int, warmup_steps: int) -> float:
    """Share of the objectives' weights at a step counted from 1: linear up to `warmup_steps`, then 1."""
    return min(1.0, step / warmup_steps) if warmup_steps > 0 else 1.0
