"""Positions of three dimensions, end to end: the video example trains and takes longer and larger clips."""

import importlib.util
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "video_vit.py"


def load_example() -> object:
    spec = importlib.util.spec_from_file_location("video_vit", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_is_short_enough_to_copy() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60


def test_video_model_trains_and_takes_longer_and_larger_clips() -> None:
    module = load_example()
    model = module.VideoViT(num_classes=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        labels = torch.randint(2, (8,))
        # Motion to the right or to the left: classes that only positions in time tell apart.
        clips = torch.stack([moving_bar(bool(label)) for label in labels])
        loss, position_losses = model.training_loss(clips, labels)
        optimizer.zero_grad()
        (loss + position_losses.weighted).backward()
        optimizer.step()
        losses.append(float(loss))
    assert sum(losses[-4:]) < sum(losses[:4])
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, 32, 48, 64)).shape == (1, 2)


def moving_bar(to_the_right: bool) -> torch.Tensor:
    """A clip (3, 8, 32, 32) of a bar that moves."""
    clip = torch.zeros(3, 8, 32, 32)
    for frame in range(8):
        column = 4 * frame if to_the_right else 28 - 4 * frame
        clip[:, frame, :, column : column + 4] = 1.0
    return clip + 0.1 * torch.randn_like(clip)


def test_order_of_time_matters() -> None:
    module = load_example()
    model = module.VideoViT(num_classes=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    clip = moving_bar(True)[None]
    with torch.no_grad():
        assert not torch.allclose(model(clip), model(clip.flip(2)), atol=1e-3)


def test_clip_beyond_the_digits_is_a_clear_error() -> None:
    model = load_example().VideoViT(num_classes=2)
    with pytest.raises(ValueError, match="largest allowed position is 99"):
        model.eval()(torch.randn(1, 3, 202, 16, 16))
