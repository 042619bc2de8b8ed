"""The tools that people use language models with: each runs on ours and gives the right numbers."""

import functools
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

from seqpe_zoo.auto_classes import register_auto_classes
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel
from tests.gpt2.cases import ROADS, pad_left, random_tokens, tiny_config, tiny_model

register_auto_classes()
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each ASCII character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<pad>": 0, **{chr(code): code for code in range(1, 128)}}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<pad>", padding_side="left"
    )


class Texts(torch.utils.data.Dataset):
    """A fixed set of token rows of different lengths."""

    def __init__(self, rows: int = 32, length: int = 12) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(1, 128, (rows, length), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].clone()
        labels[
            : 1 + index % 7
        ] = -100  # nothing predicts the first token; older Trainers count it all the same
        return {"input_ids": self.tokens[index], "labels": labels}


def trainer_for(case: str, folder: Path, **arguments) -> Trainer:
    settings = {
        "output_dir": str(folder),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "report_to": [],
        "logging_steps": 1,
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 3,
        **arguments,
    }
    model = tiny_model(case, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return Trainer(
        model=model, args=TrainingArguments(**settings), train_dataset=Texts(), eval_dataset=Texts(8)
    )


@pytest.mark.parametrize("case", ROADS)
def test_text_generation_pipeline_with_batches(case: str, tokenizer) -> None:
    model = tiny_model(case)
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    settings = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}
    texts = ["hello there", "hi"]
    batched = generator(texts, batch_size=2, **settings)
    for text, answer in zip(texts, batched, strict=True):
        assert generator(text, **settings) == answer


@pytest.mark.parametrize("case", ["rope", "alibi", "seqpe_bias_shared"])
def test_trainer_runs_and_evaluates_the_main_loss(case: str, tmp_path) -> None:
    trainer = trainer_for(case, tmp_path)
    assert math.isfinite(trainer.train().training_loss)
    loss = trainer.evaluate()["eval_loss"]
    model, rows = trainer.model.eval(), Texts(8)
    batch = [rows[index] for index in range(8)]
    labels = torch.stack([row["labels"] for row in batch])
    with torch.no_grad():
        expected = model(torch.stack([row["input_ids"] for row in batch]), labels=labels).loss
    assert loss == pytest.approx(expected.item(), rel=1e-4)


def test_trainer_accumulation_equals_one_large_batch_without_randomness(tmp_path) -> None:
    weights = []
    for size, steps in ((4, 1), (1, 4)):
        trainer = trainer_for(
            "rope", tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=steps
        )
        trainer.train()
        weights.append(trainer.model.state_dict())
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-4, rtol=1e-3)


def test_trainer_accumulation_weighs_objectives_once(tmp_path, monkeypatch) -> None:
    """With the same positions in each micro-batch, accumulated gradients equal those of the whole batch."""
    gradients = []
    original = SeqPEGPT2LMHeadModel.forward

    @functools.wraps(original)
    def with_fixed_positions(self, *args, **kwargs):
        torch.manual_seed(5)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(SeqPEGPT2LMHeadModel, "forward", with_fixed_positions)
    for size, steps in ((4, 1), (1, 4)):
        trainer = trainer_for(
            "seqpe_bias_shared",
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            max_steps=1,
            max_grad_norm=0.0,
            optim="sgd",
            learning_rate=1.0,
            lr_scheduler_type="constant",
        )
        options = trainer.model.transformer.position_encoding.options
        for name, value in (("shift_probability", 0.0), ("dropout", 0.0)):
            object.__setattr__(options, name, value)
        for layer in trainer.model.transformer.position_encoding.encoder.model.layers:
            layer.dropout = 0.0
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        gradients.append({name: before[name] - p.detach() for name, p in trainer.model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("case", ["alibi", "seqpe_bias_shared", "seqpe_mul_shared"])
def test_trainer_in_bfloat16_with_checkpointing(case: str, tmp_path) -> None:
    trainer = trainer_for(
        case, tmp_path, bf16=True, gradient_checkpointing=True, gradient_accumulation_steps=2
    )
    assert math.isfinite(trainer.train().training_loss)


def test_trainer_resumes_where_it_stopped(tmp_path) -> None:
    whole = trainer_for("seqpe_bias_shared", tmp_path / "a", save_strategy="steps", save_steps=3)
    whole.train()
    resumed = trainer_for("seqpe_bias_shared", tmp_path / "b")
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], weight, **CLOSE)


@pytest.mark.parametrize("case", ["rope", "seqpe_bias_shared", "seqpe_mul_shared"])
def test_peft_lora_trains_saves_and_merges(case: str, tmp_path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    config = LoraConfig(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    model, tokens = get_peft_model(tiny_model(case), config), random_tokens(2, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model.train()(tokens, labels=tokens).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(tokens).logits
        loaded = PeftModel.from_pretrained(tiny_model(case), tmp_path).eval()
        torch.testing.assert_close(loaded(tokens).logits, expected, **CLOSE)
        torch.testing.assert_close(model.merge_and_unload()(tokens).logits, expected, **CLOSE)
        assert (expected - tiny_model(case)(tokens).logits).abs().max() > 1e-3


@pytest.mark.parametrize("case", ROADS)
@pytest.mark.parametrize("places", ["auto", "layers on disk", "positions on disk"])
def test_device_map(case: str, places: str, tmp_path) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    model.save_pretrained(tmp_path / "model")
    devices: str | dict[str, str] = "auto"
    if places != "auto":
        devices = dict.fromkeys(["transformer.wte", "transformer.wpe", "transformer.drop"], "cpu")
        devices |= {"transformer.h.0": "cpu", "transformer.h.1": "disk", "transformer.ln_f": "cpu"}
        devices |= {"lm_head": "cpu", "transformer.position_encoding": "cpu"}
    if places == "positions on disk":
        devices = {**devices, "transformer.position_encoding": "disk"}
    loaded = SeqPEGPT2LMHeadModel.from_pretrained(
        tmp_path / "model", device_map=devices, offload_folder=tmp_path / "disk"
    )
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, **CLOSE)
    generated = loaded.generate(tokens, max_new_tokens=3, do_sample=False)
    assert torch.equal(generated, model.generate(tokens, max_new_tokens=3, do_sample=False))


@pytest.mark.slow
@pytest.mark.parametrize("case", ROADS)
@torch.no_grad()
def test_compiled_model_equals_eager(case: str) -> None:
    torch.compiler.reset()
    model, (tokens, mask) = tiny_model(case, n_layer=1), pad_left(random_tokens(2, 12), [0, 3])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens).logits, model(tokens).logits, **CLOSE)
    shown = mask.bool()
    padded = compiled(tokens, attention_mask=mask).logits[shown]
    torch.testing.assert_close(padded, model(tokens, attention_mask=mask).logits[shown], **CLOSE)


@pytest.mark.slow
@torch.no_grad()
def test_compiled_by_inductor_equals_eager() -> None:
    torch.compiler.reset()
    model, tokens = tiny_model("seqpe_bias_shared", n_layer=1), random_tokens(2, 12)
    torch.testing.assert_close(torch.compile(model)(tokens).logits, model(tokens).logits, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rope", "alibi", "seqpe_mul_shared", "seqpe_bias_shared"])
def test_compiled_generation_with_a_cache_of_fixed_size(case: str) -> None:
    from transformers import CompileConfig

    torch.compiler.reset()
    model, (tokens, mask) = tiny_model(case, n_layer=1), pad_left(random_tokens(2, 6), [0, 2])
    settings = {"attention_mask": mask, "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    expected = model.generate(tokens, **settings)
    compiling = CompileConfig(backend="aot_eager", mode=None)
    compiling._compile_all_devices = True
    generated = model.generate(tokens, cache_implementation="static", compile_config=compiling, **settings)
    assert torch.equal(generated, expected)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["alibi", "seqpe_bias_shared"])
@torch.no_grad()
def test_flex_attention_equals_sdpa(case: str) -> None:
    torch.compiler.reset()
    model, (tokens, mask) = tiny_model(case, n_embd=64, n_head=4), pad_left(random_tokens(2, 12), [0, 3])
    shown = mask.bool()
    expected = model(tokens, attention_mask=mask).logits[shown]
    model.set_attn_implementation("flex_attention")
    torch.testing.assert_close(
        model(tokens, attention_mask=mask).logits[shown], expected, atol=1e-4, rtol=1e-3
    )


class LogitsOnly(torch.nn.Module):
    """What a graph is made of: tokens and mask in, logits out."""

    def __init__(self, model: SeqPEGPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, attention_mask=attention_mask, use_cache=False).logits


DYNAMIC = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=3, max=60)}


@pytest.mark.slow
@pytest.mark.parametrize("case", ROADS)
@torch.no_grad()
def test_exported_program_equals_eager_at_other_sizes(case: str) -> None:
    model = LogitsOnly(tiny_model(case))
    tokens, mask = pad_left(random_tokens(2, 12), [0, 3])
    program = torch.export.export(model, (tokens, mask), dynamic_shapes=(DYNAMIC, DYNAMIC)).module()
    tokens, mask = pad_left(random_tokens(3, 20), [0, 3, 9])
    shown = mask.bool()
    torch.testing.assert_close(program(tokens, mask)[shown], model(tokens, mask)[shown], **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("case", ROADS)
@torch.no_grad()
def test_onnx_runs_with_equal_logits_and_a_baked_table(case: str, tmp_path) -> None:
    import onnxruntime

    model = tiny_model(case)
    if case.startswith("seqpe"):
        model.transformer.position_encoding.freeze_to_table(64)
    module, (tokens, mask) = LogitsOnly(model), pad_left(random_tokens(2, 12), [0, 3])
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(
        module, (tokens, mask), path, dynamo=True, dynamic_shapes=(DYNAMIC, DYNAMIC), verbose=False
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tokens, mask = pad_left(random_tokens(3, 20), [0, 3, 9])
    names = [given.name for given in session.get_inputs()]
    logits = session.run(None, dict(zip(names, (tokens.numpy(), mask.numpy()), strict=True)))[0]
    shown = mask.bool()
    torch.testing.assert_close(
        torch.from_numpy(logits)[shown], module(tokens, mask)[shown], atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("case", ["rope", "alibi", "seqpe_bias_shared", "seqpe_mul_shared"])
@torch.no_grad()
def test_torchao_int8_stays_close(case: str) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model, tokens = tiny_model(case), random_tokens(2, 12)
    expected = model(tokens).logits.softmax(-1)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    assert (model(tokens).logits.softmax(-1) - expected).abs().max() < 0.05
    assert model.generate(tokens, max_new_tokens=3, do_sample=False).shape == (2, 15)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rope", "seqpe_bias_shared"])
def test_lm_evaluation_harness_on_a_local_task(case: str, tokenizer, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    data = tmp_path / "questions.jsonl"
    rows = [{"question": f"q{number}", "answers": ["a", "bb", "ccc"], "right": 0} for number in range(4)]
    data.write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "local.yaml").write_text(
        "task: local_choice\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "
        f"{data}\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{{{question}}}}'\n"
        "doc_to_choice: '{{answers}}'\ndoc_to_target: right\nmetric_list:\n  - metric: acc\n"
    )
    model = HFLM(pretrained=tiny_model(case), tokenizer=tokenizer, batch_size=2, device="cpu")
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = simple_evaluate(
        model=model, tasks=["local_choice"], task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    assert results["results"]["local_choice"]["acc,none"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    sample = results["samples"]["local_choice"][0]
    text = torch.tensor([tokenizer.encode("q0 a")])
    with torch.no_grad():
        scores = tiny_model(case)(text).logits.log_softmax(-1)[0]
    # The harness puts a space before each answer.
    continuation = sum(scores[place - 1, text[0, place]] for place in range(2, text.shape[1]))
    assert float(sample["resps"][0][0][0]) == pytest.approx(continuation.item(), abs=1e-3)


def test_tiny_config_is_named_for_the_tools() -> None:
    config = tiny_config("seqpe_bias_shared")
    assert config.max_position_embeddings == config.n_positions
    assert config.hidden_size == config.n_embd
