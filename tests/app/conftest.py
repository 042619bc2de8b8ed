"""The models that all tests of the page show."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from seqpe_zoo.app.zoo import Zoo, find_models

from .stand_ins import save_classifier, save_language_model


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two language models, the first with positions up to 99, and two image models, up to 9 patches."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    save_language_model(folder / "text_seqpe", "seqpe", num_digits=2, max_position=99)
    save_language_model(folder / "text_alibi", "alibi")
    save_classifier(folder / "vit_seqpe", "seqpe", num_digits=1, max_position=9)
    save_classifier(folder / "vit_rope", "rope2d_axial")
    return folder


@pytest.fixture(scope="session")
def zoo(models_folder: Path) -> Zoo:
    return Zoo(find_models([str(models_folder)]))


@pytest.fixture(scope="module")
def address(models_folder: Path) -> Iterator[str]:
    """Serves the page; only tests that have gradio ask for it."""
    from seqpe_zoo.app.page import build_page, launch_page

    page = build_page(find_models([str(models_folder)]))
    _, local, _ = launch_page(page, server_name="127.0.0.1", prevent_thread_lock=True)
    yield local
    page.close(verbose=False)
