"""What is measured: models with SeqPE beside the same models without it, on a CPU in float32.

A section is a function that yields cases. Each is a set of calls on equal inputs; one is the baseline.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

import seqpe_zoo

NO_OBJECTIVES = {"distance_weight": 0.0, "ood_weight": 0.0}
NEW_TOKENS = 8
"""Tokens of one decoding call."""


class Case(NamedTuple):
    """Calls that are timed against one of them."""

    what: str
    functions: dict[str, Callable[[], object]]
    baseline: str
    warmup: int = 1


class Sizes(NamedTuple):
    """How much is measured."""

    images: tuple[tuple[int, int], ...]
    """(pixels, batch) of the forward passes of ViT-S."""
    training_batch: int
    training_warmup: int
    """A step of SeqPE draws other positions each time; the allocator needs some steps to know their sizes."""
    lengths: tuple[int, ...]
    """Of the forward passes of language models."""
    gpt2_contexts: tuple[int, ...]
    """After which a token is decoded."""
    llama_contexts: tuple[int, ...]
    gpt2_training: tuple[int, int] | None
    """(batch, length)."""
    compiled: bool
    encoded: int
    """Positions of the encoder."""
    vit: dict[str, int]
    gpt2: dict[str, int]
    llama: dict[str, int]
    """Other sizes of the models."""


LLAMA = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
SHORT = Sizes(
    images=((224, 1), (224, 8)),
    training_batch=32,
    training_warmup=1,
    lengths=(512,),
    gpt2_contexts=(512,),
    llama_contexts=(2048,),
    gpt2_training=None,
    compiled=False,
    encoded=4000,
    vit={},
    gpt2={},
    llama=LLAMA,
)
FULL = SHORT._replace(
    images=((224, 1), (224, 8), (448, 1), (448, 8)),
    training_warmup=5,
    lengths=(512, 2048),
    gpt2_contexts=(512, 4096),
    gpt2_training=(8, 512),
    compiled=True,
    encoded=20_000,
)
TINY = Sizes(
    images=((32, 2),),
    training_batch=2,
    training_warmup=1,
    lengths=(16,),
    gpt2_contexts=(16,),
    llama_contexts=(16,),
    gpt2_training=(2, 16),
    compiled=False,
    encoded=50,
    vit={"depth": 1},
    gpt2={"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 100},
    llama={**LLAMA, "num_hidden_layers": 1, "vocab_size": 100},
)
"""Only to see that everything runs."""
SIZES = {"short": SHORT, "full": FULL, "tiny": TINY}


# ViT-S.

PLAIN_VIT, ROPE_VIT = "timm", "timm rope"
TIMM_NAMES = {PLAIN_VIT: "vit_small_patch16_224", ROPE_VIT: "vit_small_patch16_rope_224"}


def vit(sizes: Sizes) -> Iterator[Case]:
    """Forward passes with positions known; timm's rotary ViT is of another class (Eva)."""
    for pixels, batch in sizes.images:
        images = torch.randn(batch, 3, pixels, pixels)
        names = (PLAIN_VIT, ROPE_VIT, "mul", "sum", "bias")
        models = {name: build_vit(name, pixels, sizes.vit).eval() for name in names}
        functions = {name: _forward(model, images) for name, model in models.items()}
        yield Case(f"{pixels} pixels, batch {batch}", functions, PLAIN_VIT)


def vit_training(sizes: Sizes) -> Iterator[Case]:
    """A step with AdamW: forward, both objectives or none, backward, update."""
    batch, pixels = sizes.training_batch, max(sizes.images)[0] if sizes is TINY else 224
    images, labels = torch.randn(batch, 3, pixels, pixels), torch.randint(1000, (batch,))
    models = {
        PLAIN_VIT: build_vit(PLAIN_VIT, pixels, sizes.vit),
        "mul": build_vit("mul", pixels, sizes.vit),
    }
    if sizes is not SHORT:  # a step takes seconds
        models["mul, no objectives"] = build_vit("mul", pixels, sizes.vit, NO_OBJECTIVES)

    def loss_of(model: Any) -> Tensor:
        loss = F.cross_entropy(model(images), labels)
        return loss + model.position_losses().weighted if hasattr(model, "position_losses") else loss

    functions = {name: _training_step(model, loss_of) for name, model in models.items()}
    yield Case(f"{pixels} pixels, batch {batch}", functions, PLAIN_VIT, sizes.training_warmup)


def build_vit(name: str, pixels: int, sizes: dict[str, int], options: dict[str, Any] | None = None) -> Any:
    """Builds timm's ViT-S, plain or rotary, or the plain one with SeqPE in an integration."""
    torch.manual_seed(0)
    if name in TIMM_NAMES:
        return timm.create_model(TIMM_NAMES[name], img_size=pixels, **sizes)
    chosen = {"integration": name, **(options or {})}
    settings = {"pos_embed": "seqpe", "pos_embed_args": chosen, "img_size": pixels, **sizes}
    return timm.create_model(TIMM_NAMES[PLAIN_VIT], **settings)


# Language models.

PLAIN = "transformers"
INTEGRATIONS = ("mul", "bias")


def gpt2(sizes: Sizes) -> Iterator[Case]:
    """GPT-2 124M: forward passes, then decoding with a cache."""
    config = GPT2Config(n_positions=8192, **sizes.gpt2)
    yield from _forward_cases(config, sizes.lengths)
    yield from _decode_cases(config, sizes.gpt2_contexts)


def gpt2_training(sizes: Sizes) -> Iterator[Case]:
    """A step with AdamW, both objectives or none."""
    if sizes.gpt2_training is None:
        return
    batch, length = sizes.gpt2_training
    config = GPT2Config(n_positions=1024, **sizes.gpt2)
    tokens = torch.randint(config.vocab_size, (batch, length))
    models = {
        PLAIN: build_text(config),
        "bias": build_text(config, "bias"),
        "bias, no objectives": build_text(config, "bias", NO_OBJECTIVES),
    }
    steps = {
        name: _training_step(model, lambda model: model(tokens, labels=tokens, use_cache=False).loss)
        for name, model in models.items()
    }
    yield Case(f"{batch} x {length} tokens", steps, PLAIN, sizes.training_warmup)


def llama(sizes: Sizes) -> Iterator[Case]:
    """A Llama of 8 layers of 512, its rotation replaced: forward passes, then decoding with a cache."""
    config = LlamaConfig(max_position_embeddings=8192, **sizes.llama)
    yield from _forward_cases(config, sizes.lengths)
    yield from _decode_cases(config, sizes.llama_contexts)


def build_text(config: Any, integration: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """Builds a model of transformers as it is, or with SeqPE in the place of its own positions."""
    torch.manual_seed(0)
    if integration:
        config = seqpe_zoo.with_position_encoding(
            config, "seqpe", train_length=512, integration=integration, **(options or {})
        )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def _text_models(config: Any) -> dict[str, Any]:
    return {PLAIN: build_text(config), **{name: build_text(config, name) for name in INTEGRATIONS}}


def _forward_cases(config: Any, lengths: tuple[int, ...]) -> Iterator[Case]:
    models = _text_models(config)
    for length in lengths:
        tokens = torch.randint(config.vocab_size, (1, length))
        functions = {name: _forward(model, tokens, use_cache=False) for name, model in models.items()}
        yield Case(f"forward of {length:,} tokens", functions, PLAIN)


def _decode_cases(config: Any, contexts: tuple[int, ...]) -> Iterator[Case]:
    for context in contexts:
        tokens = torch.randint(config.vocab_size, (1, context))
        functions = {name: _decoder(model, tokens) for name, model in _text_models(config).items()}
        yield Case(f"a token after {context:,}", functions, PLAIN)


@torch.inference_mode()
def _decoder(model: Any, context: Tensor) -> Callable[[], object]:
    """Returns a function that decodes some tokens greedily and takes them out of the cache again."""
    cache = model(context, use_cache=True, logits_to_keep=1).past_key_values

    @torch.inference_mode()
    def decode() -> None:
        token = context[:, -1:]
        for _ in range(NEW_TOKENS):
            token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        cache.crop(-NEW_TOKENS)

    return decode


# The position encoder, and compiled models.


def encoder(sizes: Sizes) -> Iterator[Case]:
    """The encoder of positions 0, 1, 2, ... (384 wide, 5 digits): shared prefixes once, or each by itself."""
    module = seqpe_zoo.SeqPE(dim=384, num_digits=5).eval().encoder
    positions = torch.arange(sizes.encoded)[:, None]

    @torch.inference_mode()
    def one_by_one() -> None:
        for some in positions.split(2000):
            module.encode_each(some)

    functions = {"each position": one_by_one, "shared prefixes": _forward(module, positions)}
    yield Case(f"{sizes.encoded:,} positions", functions, "each position")


def compiled(sizes: Sizes) -> Iterator[Case]:
    """`torch.compile` of the plain models and of those with SeqPE, in inference."""
    if not sizes.compiled:
        return
    images = torch.randn(8, 3, 224, 224)
    vits = {name: build_vit(name, 224, sizes.vit).eval() for name in (PLAIN_VIT, "mul", "bias")}
    functions = {name: _forward(torch.compile(model), images) for name, model in vits.items()}
    yield Case("ViT-S, 224 pixels, batch 8", functions, PLAIN_VIT, warmup=3)
    config = GPT2Config(n_positions=1024, **sizes.gpt2)
    tokens = torch.randint(config.vocab_size, (1, 512))
    texts = {
        name: _forward(torch.compile(model), tokens, use_cache=False)
        for name, model in _text_models(config).items()
    }
    yield Case("GPT-2, 512 tokens", texts, PLAIN, warmup=3)


def _forward(model: Any, x: Tensor, **options: Any) -> Callable[[], object]:
    @torch.inference_mode()
    def forward() -> object:
        return model(x, **options)

    return forward


def _training_step(model: nn.Module, loss_of: Callable[[Any], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    return step


SECTIONS: dict[str, tuple[str, Callable[[Sizes], Iterator[Case]]]] = {
    "vit": ("ViT-S/16, forward", vit),
    "vit_training": ("ViT-S/16, training step", vit_training),
    "gpt2": ("GPT-2 124M", gpt2),
    "gpt2_training": ("GPT-2 124M, training step", gpt2_training),
    "llama": ("Llama, 8 layers of 512", llama),
    "encoder": ("Position encoder", encoder),
    "compiled": ("Compiled with torch.compile", compiled),
}
