"""Hugging Face's libraries on the device: generation, the Trainer, accelerate."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import pytest
import torch
import transformers

import tpu_compile
import tpu_compile.device


@pytest.fixture(scope="module")
def llama() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=61,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_beams": 2}, marks=pytest.mark.full),
        {"cache_implementation": "static", "disable_compile": True},
    ],
    ids=["greedy", "beams", "static cache"],
)
def test_generate(llama: transformers.PreTrainedModel, options: dict[str, Any]) -> None:
    tokens = torch.randint(2, 61, (2, 5))
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    ours = copy.deepcopy(llama).to("tpu")
    given = {"do_sample": False, "max_new_tokens": 4, **options}
    expected = llama.generate(input_ids=tokens, attention_mask=mask, **given)
    with tpu_compile.device.mode("fused"):
        found = ours.generate(
            input_ids=tokens.to("tpu"), attention_mask=mask.to("tpu"), **given
        ).cpu()
    assert torch.equal(found, expected)
    assert not tpu_compile.stats().fallback_ops


def test_samples_follow_the_seed(llama: transformers.PreTrainedModel) -> None:
    ours = copy.deepcopy(llama).to("tpu")
    tokens = torch.randint(2, 61, (2, 5), device="tpu")
    drawn = []
    with tpu_compile.device.mode("fused"):
        for seed in (1, 1):
            torch.manual_seed(seed)
            drawn.append(ours.generate(input_ids=tokens, do_sample=True, max_new_tokens=3).cpu())
    assert torch.equal(drawn[0], drawn[1])


def test_device_map(llama: transformers.PreTrainedModel) -> None:
    pytest.importorskip("accelerate")
    with tempfile.TemporaryDirectory() as folder:
        llama.save_pretrained(folder)
        loaded = transformers.LlamaForCausalLM.from_pretrained(folder, device_map="tpu")
    assert {p.device for p in loaded.parameters()} == {torch.device("tpu", 0)}
    for name, value in llama.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].cpu(), value)


def test_trainer_and_accelerator() -> None:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    expected = torch.nn.Linear(3, 2)
    model = Classifier(expected)
    rows = [{"x": torch.randn(3), "labels": torch.tensor(i % 2)} for i in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            num_train_epochs=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        assert arguments.device == torch.device("tpu", 0)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        result = trainer.train()
    assert 0.1 < result.training_loss < 2
    assert next(model.parameters()).device.type == "tpu"
    assert accelerate.Accelerator().device.type == "tpu"


class Classifier(torch.nn.Module):
    """What the Trainer wants of a model: a loss and logits."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
