"""Inference reuses position inputs and notices what changes them; encoder calls are counted to prove it."""

import contextlib
import copy
import pickle

import peft
import pytest
import torch
from torch import nn

from seqpe_zoo import Positions, SeqPE, build_position_encoding, register_position_encoding
from seqpe_zoo.portable.encoder import PositionEncoder
from seqpe_zoo.portable.encodings import POSITION_ENCODINGS
from seqpe_zoo.portable.position_encoding import PositionEncoding

TEXT = {"num_heads": 2, "num_layers": 2, "num_digits": 3, "encoder_dim": 16}
IMAGE = {"num_heads": 2, "num_layers": 2, "num_dims": 2, "num_prefix": 1, "encoder_dim": 16}

CLOSE = {"atol": 1e-4, "rtol": 1e-4}  # a table computes other positions beside those asked for


@pytest.fixture
def pe():
    return SeqPE(dim=16, **TEXT).eval()


@pytest.fixture
def encoded(monkeypatch):
    """The positions that encoders were asked for, call by call."""
    calls = []
    original = PositionEncoder.forward

    def counting(self, positions):
        calls.append(positions.reshape(-1, self.num_dims).tolist())
        return original(self, positions)

    monkeypatch.setattr(PositionEncoder, "forward", counting)
    return calls


# Inputs are reused.


@torch.no_grad()
def test_a_text_is_encoded_once(pe, encoded):
    first = pe(Positions((20,))).layers[0]
    again = pe(Positions((4,), (5,))).layers[0]
    given = pe(Positions(ids=torch.tensor([[[6], [5]]]))).layers[0]
    assert len(encoded) == 1
    assert again.data_ptr() == first[5:].data_ptr()  # a view of the table
    assert torch.equal(given[0], first[[6, 5]])


@torch.no_grad()
def test_growth_encodes_the_new_positions_alone(pe, encoded):
    pe(Positions((10,)))
    pe(Positions((12,)))
    seen = [position for call in encoded for position in call]
    assert len(encoded) == 2
    assert len(seen) == len({tuple(position) for position in seen})


@torch.no_grad()
def test_decoding_token_by_token_calls_the_encoder_rarely(pe, encoded):
    pe(Positions((10,)))
    for step in range(10, 130):
        pe(Positions((1,), (step,)), 0)
    assert len(encoded) == 2


@torch.no_grad()
def test_a_few_positions_far_away_do_not_make_a_long_table(encoded):
    pe = SeqPE(dim=16, num_digits=5).eval()
    found = pe(Positions(ids=torch.tensor([[90_000], [3]]))).encoded
    torch.testing.assert_close(
        found, pe.encoder.encode_each(torch.tensor([[90_000], [3]])), atol=1e-5, rtol=1e-5
    )
    assert sum(map(len, encoded)) == 2


@torch.no_grad()
def test_tables_never_ask_beyond_capacity(pe, encoded):
    pe(Positions((990,)))
    pe(Positions((1000,)))
    assert max(position[0] for call in encoded for position in call) == 999


@torch.no_grad()
def test_a_grid_is_computed_once(encoded):
    image = SeqPE(dim=16, **IMAGE).eval()
    first, again = image(Positions((4, 5), (0, 0))), image(Positions((4, 5), (0, 0)))
    assert len(encoded) == 1
    assert all(x is y for x, y in zip(first.layers, again.layers, strict=True))
    assert first.layers[0].shape == (21, 32)
    image(Positions((4, 5), (0, 1)))
    image(Positions((5, 4), (0, 0)))
    assert len(encoded) == 3


def test_nothing_is_reused_where_gradients_are_wanted(pe, encoded):
    pe(Positions((3,))).layers[0].sum().backward()
    pe(Positions((3,)))
    assert len(encoded) == 2
    assert pe.encoder.digit_embedding.grad is not None


def test_a_frozen_encoder_serves_a_model_that_trains(pe, encoded):
    pe.requires_grad_(False)
    x = torch.randn(3, 32, requires_grad=True)
    with torch.inference_mode():
        pe(Positions((3,)))
    (pe(Positions((3,))).layers[0] * x).sum().backward()
    assert len(encoded) == 1
    assert x.grad is not None


@torch.no_grad()
def test_evaluating_again_keeps_what_is_known(pe, encoded):
    pe(Positions((3,)))
    pe.eval()
    pe(Positions((3,)))
    assert len(encoded) == 1


@torch.no_grad()
def test_tables_are_neither_saved_nor_pickled(pe):
    before = set(pe.state_dict())
    size = len(pickle.dumps(pe))
    pe(Positions((50,)))
    assert set(pe.state_dict()) == before
    assert len(pickle.dumps(pe)) == size
    twin = copy.deepcopy(pe)
    twin.encoder.digit_embedding += 1.0
    torch.testing.assert_close(twin(Positions((3,))).layers, twin.compute_inputs(Positions((3,))).layers)


# Inputs are never stale: inference equals the computation without tables, whatever was done before.


def train_in_eval(pe, fused):
    """Steps of an optimizer in evaluation mode; fused ones leave the versions of parameters at 0."""
    optimizer = torch.optim.AdamW(pe.parameters(), lr=0.1, fused=fused)
    for _ in range(2):
        with torch.enable_grad():
            pe(Positions((3,) * pe.num_dims)).layers[0].square().sum().backward()
        optimizer.step()


def write_data(where):
    def write(pe):
        where(pe.encoder.model.layers[0].fc1.weight.data)

    return write


def load(pe, assign=False):
    state = {
        name: tensor * 1.5 if tensor.is_floating_point() else tensor
        for name, tensor in pe.state_dict().items()
    }
    pe.load_state_dict(state, assign=assign)


@contextlib.contextmanager
def swapping():
    """As `.to` and `load_state_dict` will work in coming versions of PyTorch."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def swap_half(pe):
    with swapping():
        pe.half()
        pe.float()
        pe.encoder.digit_embedding.data.mul_(2)


def swap_load(pe):
    with swapping():
        load(pe)


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


def parametrize(pe):
    nn.utils.parametrize.register_parametrization(pe.encoder.out, "weight", Doubled())


def quantize(pe):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(pe.encoder, Int8WeightOnlyConfig())
    pe(Positions((3,) * pe.num_dims))
    pe.to(torch.bfloat16)


def add_lora(pe):
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["qkv", "fc1"], init_lora_weights=False), pe)


def double_output(module, args, output):
    return output * 2


EVENTS = {
    "optimizer": lambda pe: train_in_eval(pe, fused=False),
    "fused optimizer": lambda pe: train_in_eval(pe, fused=True),
    "in place": lambda pe: pe.encoder.place_embedding.mul_(2.0),
    ".data": write_data(lambda weight: weight.mul_(2)),
    ".data of a row": write_data(lambda weight: weight[33].mul_(9.0)),
    ".data of a column": write_data(lambda weight: weight[:, 5].mul_(9.0)),
    "loading": load,
    "loading by assignment": lambda pe: load(pe, assign=True),
    "loading by swap": swap_load,
    "moving": lambda pe: pe.to(torch.float64),
    "moving by swap": swap_half,
    "int8, then moved": quantize,
    "lora": add_lora,
    "submodule": lambda pe: setattr(pe.encoder.model.layers, "0", copy.deepcopy(pe.encoder.model.layers[1])),
    "submodule without parameters": lambda pe: setattr(pe.encoder, "norm", nn.Tanh()),
    "parametrization": parametrize,
    "hook": lambda pe: pe.encoder.out.register_forward_hook(double_output),
    "pre-hook": lambda pe: pe.encoder.out.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "forward": lambda pe: setattr(pe.encoder.out, "forward", lambda x: x[..., :16]),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("host", [TEXT, IMAGE], ids=["text", "image"])
@torch.no_grad()
def test_inference_is_never_stale(host, event):
    pe = SeqPE(dim=16, **{**host, "encoder_dim": 48, "final_norm": False, "dropout": 0.0}).eval()
    positions = Positions((3,) * pe.num_dims, (1,) * pe.num_dims)
    before = pe(positions).layers[0].clone()
    event(pe)
    found, expected = pe(positions).layers[0], pe.compute_inputs(positions).layers[0]
    torch.testing.assert_close(found, expected, **({} if found.dtype == torch.bfloat16 else CLOSE))
    if event is not EVENTS["moving"]:
        assert not torch.allclose(found.float(), before, atol=1e-3)  # the event does change something


@torch.no_grad()
def test_adapters_are_switched_off_and_on(pe):
    positions = Positions((3,))
    plain = pe(positions).layers[0]
    config = peft.LoraConfig(target_modules=["qkv", "fc1"], init_lora_weights=False)
    adapted = peft.get_peft_model(pe, config)
    with_adapter = pe(positions).layers[0]
    with adapted.disable_adapter():
        torch.testing.assert_close(pe(positions).layers[0], plain)
    torch.testing.assert_close(pe(positions).layers[0], with_adapter)
    assert not torch.allclose(plain, with_adapter, atol=1e-3)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(positions).layers[0], with_adapter, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_hooks_that_are_removed_leave_no_trace(pe):
    positions = Positions((3,))
    plain = pe(positions).layers[0].clone()
    for add in (pe.encoder.out.register_forward_hook, nn.modules.module.register_module_forward_hook):
        handle = add(lambda module, args, output: output * 2 if isinstance(module, nn.Linear) else output)
        try:
            assert not torch.allclose(pe(positions).layers[0], plain, atol=1e-3)
        finally:
            handle.remove()
        assert torch.equal(pe(positions).layers[0], plain)


@torch.no_grad()
def test_functional_call_uses_the_given_parameters(pe):
    positions = Positions((3,))
    plain = pe(positions).layers[0].clone()
    other = {name: parameter * 2 for name, parameter in pe.named_parameters()}
    found = torch.func.functional_call(pe, other, (positions,)).layers[0]
    twin = copy.deepcopy(pe)
    twin.load_state_dict({**twin.state_dict(), **other})
    torch.testing.assert_close(found, twin(positions).layers[0])
    assert torch.equal(pe(positions).layers[0], plain)


@torch.no_grad()
def test_dropout_that_is_switched_on_alone_is_drawn_anew():
    pe = SeqPE(dim=16, **TEXT, dropout=0.5).eval()
    pe(Positions((3,)))
    pe.encoder.train()
    assert not torch.equal(pe(Positions((3,))).layers[0], pe(Positions((3,))).layers[0])


@torch.no_grad()
def test_weights_made_in_inference_mode_are_watched_by_their_values():
    with torch.inference_mode():
        pe = SeqPE(dim=16, **TEXT).eval()
        pe(Positions((3,)))
        pe.encoder.place_embedding.mul_(2)
        torch.testing.assert_close(pe(Positions((3,))).layers, pe.compute_inputs(Positions((3,))).layers)


@torch.no_grad()
def test_buffers_of_an_encoding_of_ones_own_are_watched():
    class Scaled(PositionEncoding):
        name = "scaled_for_a_test"

        def __init__(self, dim, **kwargs):
            super().__init__(dim, **kwargs)
            self.register_buffer("scale", torch.ones(1))

        def encode(self, positions, limit=None):
            return positions.float() * self.scale

    register_position_encoding(Scaled)
    try:
        pe = build_position_encoding("scaled_for_a_test", 8, num_dims=2).eval()
        pe(Positions((2, 2)))
        pe.scale.fill_(3.0)
        assert pe(Positions((2, 2))).encoded.max() == 3.0
    finally:
        del POSITION_ENCODINGS["scaled_for_a_test"]


@pytest.mark.parametrize("name", ["seqpe", "rope2d_mixed", "ape_learn"])
@torch.no_grad()
def test_autocast_does_not_leak_into_grids(name):
    image = build_position_encoding(
        name, 16, num_heads=2, num_layers=2, num_dims=2, train_shape=(6, 6)
    ).eval()
    expected = [inputs.clone() for inputs in image(Positions((6, 40))).layers]
    image.clear_cache()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = image(Positions((6, 40))).layers
    torch.testing.assert_close(found, expected)


def test_autocast_does_not_round_learned_rotations():
    image = build_position_encoding("rope2d_mixed", 16, num_heads=2, num_dims=2).train()
    expected = image(Positions((6, 40))).layers[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(image(Positions((6, 40))).layers[0], expected)


@torch.no_grad()
def test_autocast_does_not_leak_into_tables(pe):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = pe(Positions((3,))).layers[0]
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, pe.compute_inputs(Positions((3,))).layers[0])


# Frozen tables, for export.


@torch.no_grad()
def test_a_frozen_table_gives_equal_vectors(pe):
    positions = torch.randint(0, 50, (3, 4, 1))
    expected = pe(positions)
    pe.freeze_to_table(50)
    assert pe.frozen_table.shape == (50, 16)
    assert "frozen_table" not in pe.state_dict()
    torch.testing.assert_close(pe(positions), expected)
    pe.unfreeze()
    torch.testing.assert_close(pe(positions), expected)


@torch.no_grad()
def test_a_frozen_table_ends_where_weights_may_change(pe):
    position, other = torch.tensor([[5]]), SeqPE(dim=16, **TEXT).eval()
    pe.freeze_to_table(50).load_state_dict(other.state_dict())
    torch.testing.assert_close(pe(position), other(position))
    pe.freeze_to_table(50).train()
    pe.encoder.digit_embedding += 1.0
    torch.testing.assert_close(pe.eval()(position), pe.encoder.encode_each(position))


@pytest.mark.parametrize(
    "positions", [Positions((12, 56)), Positions(ids=torch.tensor([[3, 25]])), torch.tensor([[3, 25]])]
)
def test_positions_outside_of_a_frozen_table_are_refused(positions):
    """(3, 25) of a table of 20 x 20 is not (4, 5)."""
    pe = SeqPE(dim=16, **IMAGE).eval().freeze_to_table(20)
    with pytest.raises(
        ValueError, match=r"outside of the frozen table, which ends at 19; .*freeze_to_table\("
    ):
        pe(positions)


def test_positions_outside_of_a_frozen_table_are_an_error_in_a_graph():
    pe = SeqPE(dim=16, num_dims=2, encoder_dim=16).eval().freeze_to_table(20)
    program = torch.export.export(pe, (torch.tensor([[3, 4], [5, 6]]),)).module()
    with torch.no_grad(), pytest.raises((IndexError, RuntimeError), match=r"out of|range"):
        program(torch.tensor([[3, 25], [0, 0]]))


@pytest.mark.parametrize(
    ("size", "message"), [(1001, "largest allowed position is 999"), (0, "at least 1"), (-5, "at least 1")]
)
def test_a_frozen_table_has_a_sensible_size(pe, size, message):
    with pytest.raises(ValueError, match=message):
        pe.freeze_to_table(size)


def test_a_frozen_table_that_no_memory_holds_is_refused():
    with pytest.raises(ValueError, match="freeze a smaller one"):
        SeqPE(dim=8, num_dims=3, num_digits=4).freeze_to_table(9999)
