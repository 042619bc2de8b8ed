"""Bad input: each a clear error, at construction or at first use."""

import pytest
import torch

from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.encodings import list_position_encodings
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel
from tests.gpt2.cases import random_tokens, tiny_config, tiny_model

capacity = pytest.mark.parametrize(
    "case", ["seqpe_mul_shared", "seqpe_sum_shared", "seqpe_bias_shared", "seqpe_input_shared"]
)
SMALL = {"num_digits": 2, "ood_weight": 0.0, "num_candidates": 8}


def small_model(case: str) -> SeqPEGPT2LMHeadModel:
    integration = tiny_config(case).position_encoding_args["integration"]
    return tiny_model(case, position_encoding_args={**SMALL, "integration": integration})


def test_unknown_encoding_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'sinus'.*nope, ape_sin, ape_learn, rope") as error:
        SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(position_encoding="sinus"))
    for name in list_position_encodings():
        assert name in str(error.value)


def test_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"'rope' has no option theta; its options are: base"):
        SeqPEGPT2LMHeadModel(
            SeqPEGPT2Config.tiny(position_encoding="rope", position_encoding_args={"theta": 1.0})
        )
    with pytest.raises(TypeError, match=r"'nope' has no option base; its options are: none"):
        SeqPEGPT2LMHeadModel(
            SeqPEGPT2Config.tiny(position_encoding="nope", position_encoding_args={"base": 2})
        )


def test_unknown_value_of_an_option_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"integration='concat'.*'mul', 'sum', 'bias', 'input'"):
        SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(position_encoding_args={"integration": "concat"}))


@pytest.mark.parametrize("name", ["rope2d_axial", "rope2d_mixed"])
def test_encoding_of_images_is_refused_for_text(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{name}.*not 1-dimensional data such as text; choose one of nope, ape_sin"
    ):
        SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(position_encoding=name))


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="must be divisible by num_heads"):
        SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(n_head=5))


def test_odd_heads_of_rope_are_refused() -> None:
    with pytest.raises(ValueError, match=r"head width 3 .* multiple of 2"):
        SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(position_encoding="rope", n_embd=12, n_head=4))


def test_layers_with_scores_of_their_own_scale_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in scaling"):
        SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(scale_attn_by_inverse_layer_idx=True))


def test_cross_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="cross-attention"):
        SeqPEGPT2LMHeadModel(SeqPEGPT2Config.tiny(add_cross_attention=True))


def test_native_table_beside_an_encoding_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_native=True"):
        SeqPEGPT2Config.tiny(keep_native=True)


def test_wrong_types_are_refused() -> None:
    with pytest.raises(Exception, match="n_layer"):
        SeqPEGPT2Config.tiny(n_layer="two")


@capacity
def test_context_beyond_the_digits_names_the_largest_position_and_the_remedy(case: str) -> None:
    model = small_model(case)
    model(random_tokens(1, 100))
    with pytest.raises(ValueError, match=r"position 100 .*largest allowed position is 99\. Use num_digits=3"):
        model(random_tokens(1, 101))


@capacity
def test_position_ids_beyond_the_digits_are_refused(case: str) -> None:
    model, tokens = small_model(case), random_tokens(2, 3)
    for positions in (torch.tensor([[98, 99, 100]]), torch.tensor([[0, 1, 2], [3, 500, 4]])):
        with pytest.raises(ValueError, match="largest allowed position is 99"):
            model(tokens, position_ids=positions)


@capacity
def test_generation_beyond_the_digits_is_refused(case: str) -> None:
    model = small_model(case)
    with pytest.raises(ValueError, match="largest allowed position is 99"):
        model.generate(
            random_tokens(1, 95), max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0
        )


@capacity
def test_training_beyond_the_digits_is_refused(case: str) -> None:
    model, tokens = small_model(case).train(), random_tokens(1, 120)
    with pytest.raises(ValueError, match="largest allowed position is 99"):
        model(tokens, labels=tokens)


@pytest.mark.parametrize(
    "case", ["nope", "rope", "alibi", "ape_learn", "seqpe_mul_shared", "seqpe_bias_shared"]
)
def test_negative_positions_are_refused(case: str) -> None:
    with pytest.raises(ValueError, match="position -1 is negative"):
        tiny_model(case)(random_tokens(1, 3), position_ids=torch.tensor([[-1, 0, 1]]))


def test_positions_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="an entry for each of the 3 tokens"):
        tiny_model("rope")(random_tokens(1, 3), position_ids=torch.arange(4).unsqueeze(0))


def test_tokens_or_embeddings_but_not_both() -> None:
    model, tokens = tiny_model("nope"), random_tokens(1, 3)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="both input_ids and inputs_embeds"):
        model(input_ids=tokens, inputs_embeds=model.transformer.wte(tokens))


@pytest.mark.parametrize("case", ["alibi", "seqpe_bias_shared"])
def test_attention_that_cannot_add_scores_is_refused(case: str) -> None:
    model = tiny_model(case)
    model.config._attn_implementation_internal = "paged|eager"
    with pytest.raises(ValueError, match=r"'paged\|eager' cannot do; use attn_implementation='sdpa'"):
        model(random_tokens(1, 3), attention_mask=torch.ones(1, 1, 3, 3, dtype=torch.bool))


def test_heads_too_wide_for_flash_attention_are_refused() -> None:
    model = tiny_model("seqpe_bias_shared", n_embd=160, n_head=1, n_layer=1)
    model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(ValueError, match="heads 320 wide, and flash attention takes at most 256"):
        model(random_tokens(1, 3))
