"""Tiny random models of any transformers type, with inputs; nothing is downloaded.

Several configs and inputs are tried, smallest first, until eager PyTorch gives a finite result that
does not change from call to call.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto

from tests.models.tiny_config import FIRST_SPECIAL_ID, WAYS, tiny_config
from tests.tpu_compile.comparing import tensors_of

MOST_PARAMETERS = 30_000_000
BATCH, TOKENS, TARGETS = 2, 12, 7


class NoTinyModelError(Exception):
    """No config and inputs were found with which eager PyTorch runs the model."""


@dataclass(frozen=True)
class TinyModel:
    """A model with random weights, and the inputs to call it with."""

    model: nn.Module
    inputs: dict[str, Any]

    def run(self, model: Callable[..., Any]) -> list[torch.Tensor]:
        """Return the floating-point outputs of `model` (this one, a copy, or it compiled)."""
        return self.outputs(model(**copy.deepcopy(self.inputs)))

    def outputs(self, result: Any) -> list[torch.Tensor]:
        """Return the floating-point tensors in what the model gave."""
        return tensors_of(result)


def make_tiny(name: str) -> TinyModel:
    """Return a tiny model of the type `name`, such as `"llama"`, in training mode if possible.

    Every dropout is off. A model that draws random numbers all the same is in evaluation mode.

    Raises:
        NoTinyModelError: eager PyTorch runs it with none of the configs and inputs.
    """
    failures: list[str] = []
    for way in WAYS:
        try:
            model = _build(tiny_config(name, way))
        except Exception as error:
            failures.append(f"{way}: {_first_line(error)}")
            continue
        for number, inputs in enumerate(itertools.islice(_inputs(model), 24)):
            tiny = TinyModel(model, inputs)
            try:
                if _settle(tiny):
                    return tiny
                failures.append(f"{way}, inputs {number}: random, or not finite")
            except Exception as error:
                failures.append(f"{way}, inputs {number}: {_first_line(error)}")
    raise NoTinyModelError("; ".join(dict.fromkeys(failures))[:600])


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:160]


def _build(config: PretrainedConfig) -> nn.Module:
    kind = _model_class(type(config))
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise NoTinyModelError(f"{size} parameters")
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Zero initial values (gates, biases, relative positions) would hide what they do.
            if parameter.is_floating_point() and float(parameter.abs().max()) == 0.0:
                parameter.normal_(std=0.02)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model.float()


def _model_class(config: type[PretrainedConfig]) -> Any:
    for mapping in (
        modeling_auto.MODEL_MAPPING,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_PRETRAINING_MAPPING,
    ):
        if config in mapping:
            found = mapping[config]
            return found[0] if isinstance(found, (list, tuple)) else found
    raise NoTinyModelError("no base model")


def _settle(tiny: TinyModel) -> bool:
    """Put the model into the mode in which it gives the same finite result twice; say if it did."""
    for training in (True, False):
        tiny.model.train(training)
        state = copy.deepcopy(tiny.model.state_dict())
        results = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            with torch.no_grad():
                results.append(tiny.run(tiny.model))
            tiny.model.load_state_dict(state)
        first, second = results
        finite = bool(first) and all(bool(t.isfinite().all()) for t in first if t.numel())
        if finite and all(
            a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, second, strict=True)
        ):
            return True
    return False


# --- inputs ----------------------------------------------------------------------------------


def _inputs(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Give one set of inputs after the other, the likeliest first."""
    signature = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) and main in signature else next(iter(signature))
    wanted = [main]
    required = [
        name
        for name, parameter in signature.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    wanted += [name for name in required if name not in wanted]
    paired = (
        ("input_ids", "pixel_values") if "logit_scale" in dict(model.named_parameters()) else ()
    )
    for name in ("attention_mask", "decoder_input_ids", "bbox", *paired):
        if name in signature and name not in wanted:
            wanted.append(name)
    if main != "input_ids" and "input_ids" not in wanted:
        wanted = [name for name in wanted if name != "attention_mask"]
    without_mask = [name for name in wanted if name != "attention_mask"]
    plain = [name for name in without_mask if name in (main, *required)]
    tried: list[list[str]] = []
    for names in (wanted, without_mask, plain):
        if names in tried:
            continue
        tried.append(names)
        choices = [list(_choices(name, model.config)) for name in names]
        for values in itertools.product(*choices):
            yield dict(zip(names, values, strict=True))


def _choices(name: str, config: PretrainedConfig) -> Iterator[Any]:
    """Give values for the argument `name`; the first is right for most models."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    if name in ("input_ids", "decoder_input_ids", "text_input_ids", "decoder_inputs"):
        length = TARGETS if name.startswith("decoder") else TOKENS
        yield torch.randint(3, FIRST_SPECIAL_ID - 1, (BATCH, length), generator=generator)
        books = _find(config, "num_codebooks", 1)
        yield torch.randint(3, 9, (BATCH, length, books), generator=generator)
    elif name == "attention_mask":
        mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
        mask[1, TOKENS - 3 :] = 0
        yield mask
    elif name == "bbox":
        corners = torch.randint(0, 30, (BATCH, TOKENS, 2), generator=generator)
        yield torch.cat([corners, corners + 5], -1)
    elif name in ("pixel_values", "pixel_values_videos"):
        yield from _images(config, normal)
    elif name in ("input_values", "input_features", "audio_values", "audio_features"):
        mels = _find(config, "num_mel_bins", _find(config, "feature_size", 80))
        frames = _find(config, "max_length", 2 * _find(config, "max_source_positions", 16))
        audio = [normal(BATCH, mels, frames), normal(BATCH, 64, mels), normal(BATCH, frames, mels)]
        wave = normal(BATCH, _find(config, "audio_channels", 1), 1600)
        yield from ([normal(BATCH, 4000), wave] if name == "input_values" else [])
        yield from audio
        yield wave
        yield normal(BATCH, 1, 64, mels)
    elif name in ("past_values", "future_values", "past_observed_mask", "observed_mask"):
        length = _find(config, "context_length", 16)
        length = _find(config, "prediction_length", 8) if name == "future_values" else length
        lags = max(_find_list(config, "lags_sequence", [0]))
        length += lags if name.startswith("past") else 0
        channels = _find(config, "num_input_channels", 1)
        for shape in ((BATCH, length), (BATCH, length, channels)):
            yield torch.ones(shape) if name.endswith("mask") else normal(*shape)
    elif name in ("past_time_features", "future_time_features"):
        length = _find(config, "context_length", 16)
        length = _find(config, "prediction_length", 8) if name.startswith("future") else length
        length += max(_find_list(config, "lags_sequence", [0])) if name.startswith("past") else 0
        yield normal(BATCH, length, _find(config, "num_time_features", 0) or 1)
    elif name in (
        "inputs_embeds",
        "hidden_states",
        "inputs",
        "audio_codes",
        "encoder_hidden_states",
    ):
        yield torch.randint(3, FIRST_SPECIAL_ID - 1, (BATCH, TOKENS), generator=generator)
        yield normal(BATCH, TOKENS, _find(config, "d_model", _find(config, "hidden_size", 32)))
    elif name == "visual_feats":
        yield normal(BATCH, 5, _find(config, "visual_feat_dim", 16))
    elif name == "visual_pos":
        yield normal(BATCH, 5, 4)
    elif name in ("task_inputs",):
        yield torch.randint(3, 9, (BATCH, 7), generator=generator)
    else:
        raise NoTinyModelError(f"no values known for the argument {name!r}")


def _images(config: PretrainedConfig, normal: Callable[..., torch.Tensor]) -> Iterator[Any]:
    channels = _find(config, "num_channels", _find(config, "in_channels", 3))
    size = _find(config, "image_size", 64)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    frames = _find(config, "num_frames", 4)
    yield normal(BATCH, channels, height, width)
    yield normal(BATCH, frames, channels, height, width)
    yield normal(BATCH, channels, 64, 64)
    yield normal(BATCH, channels, 224, 224)
    patch = _find(config, "patch_size", 8)
    if isinstance(patch, int):
        yield normal(BATCH, math.prod((4, 4)), channels * patch * patch)


def _find(config: PretrainedConfig, name: str, default: Any) -> Any:
    """Return the attribute `name` of the config or of the first sub-config that has it."""
    found = getattr(config, name, None)
    if found is not None:
        return found
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            found = _find(value, name, None)
            if found is not None:
                return found
    return default


def _find_list(config: PretrainedConfig, name: str, default: list[int]) -> list[int]:
    return list(_find(config, name, default)) or default


def all_types() -> list[str]:
    """Return every model type that has a base model, sorted."""
    transformers.logging.set_verbosity_error()
    return sorted(modeling_auto.MODEL_MAPPING_NAMES)
