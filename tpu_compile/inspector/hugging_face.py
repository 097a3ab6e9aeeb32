"""`hf:MODEL_TYPE`: a model of transformers with its default configuration and random weights.

Nothing is downloaded: `AutoConfig.for_model` knows the configuration of every type.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from tpu_compile.ahead.fake import NEEDS_DATA
from tpu_compile.ahead.recording import Made
from tpu_compile.inspector.exits import ExitCode, InspectorError


def build(model_type: str, sizes: Mapping[str, int]) -> Made:
    """Return the model of that type, and inputs of `batch` by `seq` tokens, images or sounds.

    Raises:
        InspectorError: transformers is missing, knows no such type, or cannot build it.
    """
    try:
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError as error:
        raise InspectorError(
            f"hf:{model_type} needs transformers, which is not installed",
            ExitCode.MODEL,
            ways_out=("pip install transformers",),
        ) from error
    transformers.logging.set_verbosity_error()
    known = modeling_auto.MODEL_MAPPING_NAMES
    if model_type not in known:
        near = difflib.get_close_matches(model_type, known, n=1)
        raise InspectorError(
            f"transformers has no model type {model_type!r}",
            ExitCode.MODEL,
            why=f"did you mean {near[0]!r}?" if near else None,
        )
    unknown = sorted(sizes.keys() - {"batch", "seq"})
    if unknown:
        raise InspectorError(
            f"hf:{model_type} takes no size {unknown[0]!r}",
            ExitCode.INPUT,
            ways_out=("--batch and --seq", "--input specifications"),
        )
    try:
        config = transformers.AutoConfig.for_model(model_type)
        config.use_cache = False
        causal = model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        kind: Any = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
        model = kind.from_config(config)
    except NEEDS_DATA:
        raise
    except Exception as error:
        raise InspectorError(
            f"hf:{model_type} cannot be built from its default configuration",
            ExitCode.MODEL,
            why=f"{type(error).__name__}: {error}",
        ) from error
    return model, (), _inputs(model, config, sizes.get("batch", 1), sizes.get("seq", 128))


def _inputs(model: Any, config: Any, batch: int, seq: int) -> dict[str, Any]:
    """Return the main input of the model, and the decoder's where it has one."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    names = [main]
    if "decoder_input_ids" in parameters:
        names.append("decoder_input_ids")
    if "labels" in parameters and main == "input_ids":
        names.append("labels")
    return {name: _value(name, config, batch, seq) for name in names}


def _value(name: str, config: Any, batch: int, seq: int) -> torch.Tensor:
    if name in ("input_ids", "decoder_input_ids", "labels"):
        return torch.randint(0, 2, (batch, seq))
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return torch.randn(batch, getattr(config, "num_channels", 3), height, width)
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", 80)
        return torch.randn(batch, bins, 2 * getattr(config, "max_source_positions", 1500))
    if name == "input_values":
        return torch.randn(batch, 16000)
    raise InspectorError(
        f"The model takes {name!r}, of which nothing is known",
        ExitCode.INPUT,
        ways_out=(f"--input {name}=f32[...]",),
    )
