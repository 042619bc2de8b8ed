"""AttnMul of a training step as one function of autograd, for CPUs.

Put together from parts, splitting q, k and v and multiplying two of them is some fifteen passes over memory
forwards and backwards, and two more where a few examples of a batch are shifted and terms are laid out for
all. Here the terms of an example stay in the processor's cache while it is multiplied, gradients are written
where they belong, and examples share rows of terms without a copy.
"""

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .tracing import is_plain_cpu, is_transformed

SMALLEST_EXAMPLE = 2**15
"""Elements of an example's queries and keys, below which a loop over examples takes longer than it saves."""


def can_multiply(x: Tensor, columns: int, terms: Tensor, rows: Optional[Tensor]) -> bool:
    """Whether `multiply_query_key` works here, and is worth while: float32 on a CPU, outside of graphs.

    Args:
        x: (B, L, .), the projection or what is to be projected.
        columns: 2 * H * D.
        terms: as in `multiply_query_key`.
        rows: likewise.
    """
    if not torch.is_grad_enabled() or not is_plain_cpu(x, terms):
        return False
    if terms.ndim != (2 if rows is None else 3) or (rows is not None and rows.shape[0] != x.shape[0]):
        return False
    return terms.shape[-2:] == (x.shape[-2], columns) and x.shape[-2] * columns >= SMALLEST_EXAMPLE


def multiply_query_key(
    qkv: Tensor, terms: Tensor, rows: Optional[Tensor], num_heads: int, bias: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor, Tensor]:
    """Splits a projection and multiplies its queries and keys by terms.

    Args:
        qkv: (B, L, 3 * H * D), side by side.
        terms: (L, 2 * H * D) for all examples, or (R, L, 2 * H * D) with `rows`.
        rows: for each example its row among R, (B,).
        num_heads: H.
        bias: (2 * H * D), what the projection left out of queries and keys, and is added to them first.

    Returns:
        q, k and v, (B, H, L, D); v lies where it was.
    """
    if rows is None:
        terms, row_numbers = terms.unsqueeze(0), [0] * qkv.shape[0]
    else:
        row_numbers = rows.tolist()
    shift = None if bias is None else terms * bias  # (x + bias) * terms = x * terms + shift
    return _MultiplyQueryKey.apply(qkv, terms, shift, row_numbers, num_heads)


def _by_part(x: Tensor, num_heads: int, parts: int) -> Tuple[Tensor, ...]:
    """Views (..., L, parts * H * D) as one (..., L, H, D) for each part."""
    return x.unflatten(-1, (parts, num_heads, -1)).unbind(-3)


class _MultiplyQueryKey(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, terms: Tensor, shift: Optional[Tensor], rows: List[int], num_heads: int
    ) -> Tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(qkv, terms)
        ctx.has_shift, ctx.rows, ctx.num_heads = shift is not None, rows, num_heads
        columns = terms.shape[-1]
        placed = qkv.new_empty(*qkv.shape[:-1], columns)
        for example, out, row in zip(qkv[..., :columns].unbind(0), placed.unbind(0), rows):
            if shift is None:
                torch.mul(example, terms[row], out=out)
            else:
                torch.addcmul(shift[row], example, terms[row], out=out)
        q, k = _by_part(placed, num_heads, 2)
        v = _by_part(qkv, num_heads, 3)[2]
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Optional[Tensor], ...]:
        of_parts = [gradient.transpose(1, 2) for gradient in gradients]  # (B, L, H, D)
        qkv, terms = ctx.saved_tensors
        if torch.is_grad_enabled() or is_transformed() or not all(map(_lies_in_memory, of_parts)):
            of_qkv, of_terms, of_shift = _followed_backward(of_parts, qkv, terms, ctx.rows)
        else:
            of_qkv, of_terms, of_shift = _backward(
                of_parts, qkv, terms, ctx.rows, ctx.num_heads, ctx.has_shift
            )
        return of_qkv, of_terms, of_shift if ctx.has_shift else None, None, None


def _lies_in_memory(x: Tensor) -> bool:
    """Whether a tensor is numbers, and not a stand-in for many (`is_grads_batched` of torch.autograd)."""
    return bool(torch._C._dispatch_keys(x).has(torch._C.DispatchKey.CPU))


def _backward(
    of_parts: Sequence[Tensor],
    qkv: Tensor,
    terms: Tensor,
    rows: List[int],
    num_heads: int,
    has_shift: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Gradients of the projection, of terms and, where there is one, of the shift."""
    of_qkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    of_terms, of_shift = torch.zeros_like(terms), torch.zeros_like(terms)
    outs, inputs = (_by_part(x, num_heads, 3) for x in (of_qkv, qkv))
    factors, products, sums = (_by_part(x, num_heads, 2) for x in (terms, of_terms, of_shift))
    for part in (0, 1):
        factor, product, total = (of_row[part].unbind(0) for of_row in (factors, products, sums))
        examples = zip(of_parts[part].unbind(0), inputs[part].unbind(0), outs[part].unbind(0), rows)
        for gradient, x, out, row in examples:
            torch.mul(gradient, factor[row], out=out)
            product[row].addcmul_(gradient, x)
            if has_shift:
                total[row].add_(gradient)
    outs[2].copy_(of_parts[2])
    return of_qkv, of_terms, of_shift


def _followed_backward(
    of_parts: Sequence[Tensor], qkv: Tensor, terms: Tensor, rows: List[int]
) -> Tuple[Tensor, Tensor, Tensor]:
    """The same in operations that PyTorch can follow: for gradients of gradients, or of many at a time."""
    columns = terms.shape[-1]
    index = torch.tensor(rows, dtype=torch.long, device=qkv.device)
    of_q, of_k, of_v = (part.reshape(*qkv.shape[:-1], columns // 2) for part in of_parts)
    of_placed = torch.cat([of_q, of_k], dim=-1)
    of_qkv = torch.cat([of_placed * terms[index], of_v], dim=-1)
    of_terms, of_shift = (
        torch.zeros_like(terms).index_add(0, index, of_examples)
        for of_examples in (of_placed * qkv[..., :columns], of_placed)
    )
    return of_qkv, of_terms, of_shift
