"""`seqpe-zoo convert` and `seqpe-zoo graft`, as a user types them."""

from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf

from seqpe_zoo.cli import main
from seqpe_zoo.convert.commands import guess_format, parse_options
from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer
from seqpe_zoo.data.errors import DataError

from .release import write_image_run, write_text_run
from .test_gpt2 import small_gpt2
from .test_timm_rope import naver_state, small_eva


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_release_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_image_run(tmp_path / "seqpe" / "image_seqpe_ckpt", "vit_seqpe_attn_mul_multi")
    write_text_run(tmp_path / "seqpe" / "lm_seqpe_ckpt", "gpt2_seqpe_attn_scalar_single")
    assert run("convert", tmp_path / "seqpe", tmp_path / "vit", "--subfolder", "image_seqpe_ckpt") == 0
    said = capsys.readouterr().out
    assert "tensors of SeqPE release for both libraries" in said
    assert "left out: max_accuracy" in said
    assert run("convert", tmp_path / "seqpe" / "lm_seqpe_ckpt", tmp_path / "lm") == 0
    assert "AutoModelForCausalLM" in capsys.readouterr().out


def test_weights_file_and_gpt2_are_converted(tmp_path: Path) -> None:
    torch.save(naver_state(small_eva("rope_mixed")), tmp_path / "rope.pth")
    assert run("convert", tmp_path / "rope.pth", tmp_path / "rope", "--image-size", 64) == 0
    small_gpt2().save_pretrained(tmp_path / "gpt2")
    assert run("convert", tmp_path / "gpt2", tmp_path / "ours") == 0
    assert (tmp_path / "ours" / "model.safetensors").is_file()


def test_gpt2_is_grafted_and_reported_on_real_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_gpt2().save_pretrained(tmp_path / "gpt2")
    build_byte_tokenizer().save_pretrained(tmp_path / "gpt2")
    words = ("--fit-steps", 20, "--integration", "sum", "--option", "num_digits=3")
    assert run("graft", tmp_path / "gpt2", tmp_path / "ours", *words) == 0
    said = capsys.readouterr().out
    assert "on source code of Python's standard library: moved by" in said
    assert (tmp_path / "ours" / "tokenizer.json").is_file()


def test_vit_is_grafted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = timm.create_model("deit_tiny_patch16_224", num_classes=5, **args)
    model.pretrained_cfg.update(input_size=(3, 32, 32), num_classes=5)
    save_for_hf(model, tmp_path / "deit", model_args=args, safe_serialization=True)
    place = f"local-dir:{tmp_path / 'deit'}"
    assert run("graft", place, tmp_path / "ours", "--fit-steps", 20) == 0
    assert "on random images: moved by" in capsys.readouterr().out
    assert run("graft", "--fit-steps", 20, tmp_path / "deit", tmp_path / "bare") == 0
    assert run("graft", f"local-dir:{tmp_path / 'ours'}", tmp_path / "twice") == 2
    assert "no learned table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert", "nowhere/at/all", "zoo"], "is no known source"),
        (["convert", "nowhere", "zoo", "--format", "authors"], "neither a folder nor a Hub id"),
        (["convert", "vit_nothing", "zoo", "--format", "timm"], "timm does not give"),
        (["convert", "empty", "zoo", "--format", "authors"], "is no folder of the release"),
        (["convert", "empty", "empty"], "empty exists"),
        (["graft", "empty", "zoo"], "has no config.json"),
        (["graft", "empty", "zoo", "--option", "colour"], "must be NAME=VALUE"),
        (["graft", "some/where", "zoo", "--option", "colour=1"], "no option colour"),
        (["graft", "vit_bass_patch16_224", "zoo"], "did you mean vit_base_patch16_224"),
        (["graft", "resnet18", "zoo"], "no learned table of positions"),
        (["graft", "absent.safetensors", "zoo"], "absent.safetensors does not exist"),
        (["graft", "some/where", "zoo", "--fit-steps", "-1"], "must not be negative"),
    ],
)
def test_bad_input_ends_with_a_sentence(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


DEEP = "[" * 20_000


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DEEP, "is not JSON"),
        ('{"architecture": 7}', "architecture in the config.json of theirs is no name"),
        ('{"architecture": "vit_tiny_patch16_224", "model_args": []}', "timm does not give"),
        ('{"model_type": {"a": 1}}', "model_type in the config.json of theirs is no name"),
        ('{"model_type": "llama", "hidden_size": "x"}', "theirs cannot be taken"),
        ('{"model_type": "gptj"}', "attention interface"),
    ],
)
def test_a_damaged_or_hostile_configuration_ends_with_a_sentence(
    config: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(config)
    assert run("graft", tmp_path / "theirs", tmp_path / "ours") == 2
    assert message in capsys.readouterr().err


def test_deep_yaml_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pe_config.json").write_text(DEEP)
    assert run("convert", tmp_path, tmp_path / "ours") == 2
    assert "pe_config.json is not YAML" in capsys.readouterr().err
    assert run("graft", "vit_tiny_patch16_224", tmp_path / "ours", "--option", f"base={DEEP}") == 2
    assert "the value of --option base is not YAML" in capsys.readouterr().err


def test_format_of_sources_is_guessed() -> None:
    assert guess_format("huayangli/seqpe", "lm_seqpe_ckpt") == "authors"
    assert guess_format("openai-community/gpt2", None) == "gpt2"
    assert guess_format("vit_small_patch16_rope_mixed_224.naver_in1k", None) == "timm"
    with pytest.raises(DataError, match="--format"):
        guess_format("something", None)


def test_options_are_read_as_yaml() -> None:
    assert parse_options(["num_digits=4", "projection=shared"]) == {"num_digits": 4, "projection": "shared"}
