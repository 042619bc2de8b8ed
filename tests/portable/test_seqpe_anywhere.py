"""SeqPE as a module of its own: in any nn.Module, under the tools that people use on modules."""

import copy
import os
import pickle

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from seqpe_zoo import SeqPE
from seqpe_zoo.portable.objectives import StepObjectives


class Classifier(nn.Module):
    """PyTorch's own encoder with SeqPE added to the input."""

    def __init__(self):
        super().__init__()
        self.position = SeqPE(dim=32, num_dims=2, num_digits=2, train_shape=(4, 4))
        layer = nn.TransformerEncoderLayer(32, nhead=2, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)

    def forward(self, x, positions):
        return self.encoder(x + self.position(positions)).mean(1)


@pytest.fixture
def pe():
    return SeqPE(dim=32, num_dims=2, num_digits=2).eval()


@pytest.fixture
def positions():
    return torch.randint(0, 100, (3, 5, 2))


def test_seqpe_trains_inside_pytorchs_transformer(positions):
    model = Classifier()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, target = torch.randn(3, 5, 32), torch.randn(3, 32)
    losses = []
    for _ in range(15):
        main = (model(x, positions) - target).square().mean()
        (main + model.position.position_losses().weighted).backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(main.detach()))
    assert losses[-1] < losses[0]


def test_bfloat16(pe, positions):
    exact = pe(positions)
    rounded = copy.deepcopy(pe).to(torch.bfloat16)(positions)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("training", [False, True])
def test_compiled_equals_eager(pe, positions, training):
    pe.train(training)
    pe.encoder.model.layers.apply(lambda module: setattr(module, "dropout", 0.0))
    compiled = torch.compile(pe, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(positions), pe(positions), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_inductor_equals_eager(pe, positions):
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(pe)(positions), pe(positions), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_exported_with_a_dynamic_length_equals_eager(pe, positions, frozen):
    if frozen:
        pe.freeze_to_table()
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(pe, (positions,), dynamic_shapes=({1: length},))
    longer = torch.randint(0, 100, (3, 17, 2))
    torch.testing.assert_close(program.module()(longer), pe(longer), atol=1e-5, rtol=1e-5)


def test_functional_call_uses_the_given_parameters(pe, positions):
    with torch.no_grad():
        pe(positions)  # fill the table with the module's own numbers
        doubled = {name: parameter * 2 for name, parameter in pe.named_parameters()}
        other = torch.func.functional_call(pe, doubled, (positions,))
        twin = copy.deepcopy(pe)
        twin.load_state_dict(doubled)
        torch.testing.assert_close(other, twin(positions))
        assert not torch.allclose(other, pe(positions))


def test_gradients_by_torch_func(pe, positions):
    parameters = {name: parameter.detach() for name, parameter in pe.named_parameters()}

    def loss(values):
        return torch.func.functional_call(pe, values, (positions,)).square().sum()

    gradients = torch.func.grad(loss)(parameters)
    pe(positions).square().sum().backward()
    for name, parameter in pe.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-4, rtol=1e-4)


def test_meta_construction_then_loading(pe, positions):
    with torch.device("meta"):
        twin = SeqPE(dim=32, num_dims=2, num_digits=2)
    twin.load_state_dict(pe.state_dict(), assign=True)
    torch.testing.assert_close(twin.eval()(positions), pe(positions))


def test_copies_and_pickles_are_equal(pe, positions):
    expected = pe(positions)
    torch.testing.assert_close(copy.deepcopy(pe)(positions), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(pe))(positions), expected)


def _train_on_one_rank(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    pe = SeqPE(dim=32, num_dims=1, num_digits=3, train_shape=(8,))
    model = nn.parallel.DistributedDataParallel(_Losses(pe))
    loss, drawn = model()
    loss.backward()
    torch.save({"drawn": drawn, "grad": pe.encoder.digit_embedding.grad}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


class _Losses(nn.Module):
    def __init__(self, pe):
        super().__init__()
        self.pe = pe

    def forward(self):
        step = StepObjectives(self.pe.options, (8,), None, torch.device("cpu"))
        return step.losses(self.pe.encoder(step.positions)).weighted, step.positions


@pytest.mark.slow
def test_distributed_ranks_draw_their_own_positions_and_share_gradients(tmp_path):
    mp.spawn(_train_on_one_rank, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert not torch.equal(first["drawn"], second["drawn"])
    torch.testing.assert_close(first["grad"], second["grad"])


def test_words_and_patches_go_through_one_encoder():
    """A unified interface: a word is (t, absent, absent), a patch of a picture (t, row, column)."""
    pe = SeqPE(dim=32, num_dims=3, num_digits=2, allow_absent=True)
    words = torch.tensor([[0, -1, -1], [1, -1, -1]])
    patches = torch.tensor([[2, row, column] for row in range(2) for column in range(2)])
    vectors = pe(torch.cat([words, patches]).expand(2, -1, -1))
    assert vectors.shape == (2, 6, 32)
    vectors.square().sum().backward()
    assert pe.encoder.dimension_embedding.grad.abs().sum(-1).min() > 0
    with pytest.raises(ValueError, match="allow_absent=True"):
        SeqPE(dim=32, num_dims=3, num_digits=2)(words)
