"""The examples are short enough to copy, and run as their docstrings say."""

from pathlib import Path

import pytest

from .markdown_blocks import REPOSITORY
from .page_runner import run_command

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def test_they_are_all_known() -> None:
    names = ["dense_features", "extend_context", "swap_position_encoding", "timm_train", "video_vit"]
    assert [path.stem for path in EXAMPLES] == names


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_enough_to_copy(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("swap_position_encoding", ["ape_learn 16px", "rope2d_axial 16px", "seqpe 16px"]),
        ("extend_context", ["rope 64:", "alibi 64:", "seqpe 64:", "rope+seqpe 64:", " 1024: "]),
        ("video_vit", ["torch.Size([1, 2])"]),
        ("dense_features", ["(1, 384, 37, 28)"]),
    ],
)
def test_example_runs(name: str, printed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["python", str(REPOSITORY / "examples" / f"{name}.py"), "2"]) == 0
    output = capsys.readouterr().out
    assert [text for text in printed if text not in output] == []
