import socket
import sys
from pathlib import Path

import pytest

from seqpe_zoo.cli import main


def test_app_without_gradio_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)  # as Python marks a module that is not there
    assert main(["app", "--no-browser"]) == 2
    assert "pip install 'seqpe-zoo[app]'" in capsys.readouterr().err


def test_app_without_a_model_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gradio", reason="pip install 'seqpe-zoo[app]'")
    assert main(["app", "--no-browser", "--models", str(tmp_path)]) == 2
    assert "holds no model" in capsys.readouterr().err


def test_port_in_use_ends_with_a_sentence(models_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gradio", reason="pip install 'seqpe-zoo[app]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ["--models", str(models_folder / "text_alibi"), "--port", port]
        assert main(["app", "--no-browser", *words]) == 2
    assert f"port {port}" in capsys.readouterr().err
