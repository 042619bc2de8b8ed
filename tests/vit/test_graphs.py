"""The ViT as a graph: torch.fx, torch.compile, torch.export and ONNX, for every encoding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers import create_feature_extractor

from .small_models import ENCODINGS, images, small_vit

encodings = pytest.mark.parametrize(("name", "options"), ENCODINGS)
PATCHES = torch.export.Dim("rows", min=2, max=20), torch.export.Dim("columns", min=2, max=20)
DYNAMIC = {"x": {2: 4 * PATCHES[0], 3: 4 * PATCHES[1]}}


@encodings
def test_traced_graph_equals_the_model(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options, dynamic_img_size=True)
    graph = create_feature_extractor(model, ["head"])
    for x in (images(), images(24, 32)):
        assert torch.equal(graph(x)["head"], model(x))
    assert sum(p.numel() for p in graph.parameters()) == sum(p.numel() for p in model.parameters())


@encodings
def test_traced_graph_trains_all_parameters(name: str, options: dict[str, Any]) -> None:
    graph = create_feature_extractor(small_vit(name, options).train(), ["head"]).train()
    graph(images())["head"].mean().backward()
    assert [key for key, parameter in graph.named_parameters() if parameter.grad is None] == []


@pytest.mark.slow
@encodings
def test_compiled_model_equals_eager(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    model = small_vit(name, options, dynamic_img_size=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for x in (images(), images(24, 32)):
            torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_compiled_model_trains() -> None:
    torch._dynamo.reset()
    model = small_vit().train()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(images()).mean().backward()
    losses = model.position_losses()
    assert losses.weighted > 0
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@encodings
def test_traced_by_jit_equals_eager(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options)
    x = images()
    with torch.no_grad():
        traced = torch.jit.trace(model, x)
        torch.testing.assert_close(traced(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*ENCODINGS, ("seqpe", {"extrapolation": "interpolate"})])
def test_exported_model_takes_any_height_and_width(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options, dynamic_img_size=True)
    with torch.no_grad():
        exported = torch.export.export(model, (images(16, 24),), dynamic_shapes=DYNAMIC).module()
        for x in (images(16, 24), images(40, 32), images(8, 12)):
            torch.testing.assert_close(exported(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@encodings
def test_onnx_model_runs_at_any_size(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = small_vit(name, options, dynamic_img_size=True)
    path = tmp_path / "model.onnx"
    with torch.no_grad():
        program = torch.onnx.export(
            model, (images(16, 24),), dynamo=True, dynamic_shapes=DYNAMIC, verbose=False
        )
        program.save(path)
        session = onnxruntime.InferenceSession(path)
        for x in (images(16, 24), images(40, 32)):
            (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
            torch.testing.assert_close(torch.from_numpy(logits), model(x), atol=1e-5, rtol=1e-5)
