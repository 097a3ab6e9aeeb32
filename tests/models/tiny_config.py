"""Tiny configs of transformers' model types, made from the default ones by rules on names.

One rule shrinks one kind of number (depths, widths, heads, vocabularies, ...) wherever it occurs;
sub-configs are shrunk the same way. Whether the result hangs together is found by trying it: see
`tests.models.tiny`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 99
# Ids from here on are special ones; inputs are drawn below.
FIRST_SPECIAL_ID = 60

Number = int | float
Rule = tuple[str, Callable[[Number], Any]]

_NO_NOISE = (
    r"drop|noise|jitter|mask_time_prob|mask_feature_prob",
    lambda value: 0.0 if isinstance(value, float) else value,
)
_DEPTH: tuple[Rule, ...] = (
    (r"num_feat_extract_layers|vision_feature_layer|num_kv_shared_layers", lambda value: value),
    (r"first_k_dense_replace|num_nextn_predict_layers", lambda value: min(value, 1)),
    (r"(^|_)(layers?|depth|n_layer|num_blocks|num_encoder_blocks)$", lambda value: min(value, 2)),
)
_LENGTH: tuple[Rule, ...] = (
    (r"max_(2d_)?position_embeddings|n_positions|max_seq_len", lambda value: min(value, 64)),
    (r"max_(source|target|audio)_positions", lambda value: min(value, 64)),
    (r"sliding_window$|attention_window", lambda value: min(value, 8)),
    (r"(mamba_)?chunk_size$", lambda value: min(value, 4) if value > 0 else value),
    (r"num_queries|num_query_tokens|num_object_queries", lambda value: min(value, 10)),
)
_NAMED: tuple[Rule, ...] = (
    _NO_NOISE,
    *_DEPTH,
    *_LENGTH,
    (r"vocab_size", lambda value: VOCABULARY if value > VOCABULARY else value),
    (r"(num|n)_(key_value|kv)_heads|linear_num_key_heads", lambda value: min(value, 2)),
    (r"qk_head_dim", lambda value: 16),
    (r"head_dim$|d_kv$|d_head$|rotary_dim$|kv_channels", lambda value: min(value, 8)),
    (r"heads?$", lambda value: min(value, 4)),
    (r"lora_rank|time_step_rank|dt_rank", lambda value: min(value, 16)),
    (r"state_size|ssm_state|d_state", lambda value: min(value, 8)),
    (r"experts_per_tok|moe_topk|moe_k$", lambda value: min(value, 2)),
    (r"(num|n)_(routed_|local_)?experts$|num_moe_experts", lambda value: min(value, 4)),
    (r"^n_group$", lambda value: min(value, 2)),
    (r"^topk_group$", lambda value: 1),
    (r"intermediate|ffn|d_ff$|n_inner|d_inner|mlp_dim|feedforward", lambda value: min(value, 48)),
    (r"(hidden|embedding|projection)_(size|dim)$", lambda value: min(value, 32)),
    (r"d_model$|n_embd$|embed_dim$|latent_dim$|^dim$|emb_dim$", lambda value: min(value, 32)),
    (r"(pooler|output|projector|encoder|decoder)_\w*size$", lambda value: min(value, 32)),
    (r"codevector_dim|feature_size|channels$", lambda value: min(value, 32)),
    (r"image_size|img_size", lambda value: 32),
    (r"patch_size$", lambda value: min(value, 8)),
    (r"num_mel_bins", lambda value: min(value, 16)),
    (r"window_size$", lambda value: min(value, 4)),
    (r"num_conv_pos_embedding", lambda value: min(value, 4)),
    (r"num_groups$", lambda value: min(value, 8)),
    (r"codebook_size|num_codevectors_per_group", lambda value: min(value, 16)),
)

# Keeps every ratio of widths: the numbers that the first way does not know depend on each other.
_RATIO: tuple[Rule, ...] = (
    _NO_NOISE,
    *_DEPTH,
    *_LENGTH,
    (r"vocab_size", lambda value: VOCABULARY if value > VOCABULARY else value),
    (r"heads?$|experts|group|image_size|patch_size|_size_per|window", lambda value: value),
    (
        r"(size|dim|rank|channels|d_model|n_embd|d_ff|d_kv|d_state|intermediate|ffn\w*)$",
        lambda value: value // 8 if value >= 64 else value,
    ),
)
_SHALLOW: tuple[Rule, ...] = (
    _NO_NOISE,
    *_DEPTH,
    (r"vocab_size", lambda value: VOCABULARY if value > VOCABULARY else value),
)

WAYS: dict[str, tuple[Rule, ...]] = {"named": _NAMED, "ratio": _RATIO, "shallow": _SHALLOW}

# What ties numbers of one type together in a way that no name tells.
OVERRIDES: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "n_groups": 2},
    # Every second layer of a stage shifts its windows, and a window must fit the last stage.
    "swin": {"depths": [2, 2], "num_heads": [2, 4], "embed_dim": 16, "window_size": 4},
}


def tiny_config(name: str, way: str) -> PretrainedConfig:
    """Return a tiny config of the model type `name`; `way` is a key of `WAYS`.

    Raises:
        KeyError: transformers has no such type.
    """
    return _shrink(CONFIG_MAPPING[name](), way)


def _shrink(config: PretrainedConfig, way: str) -> PretrainedConfig:
    changed: dict[str, Any] = {}
    used_ids: dict[Number, int] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or isinstance(value, bool):
            continue
        if isinstance(value, PretrainedConfig) and value.model_type == "timm_backbone":
            changed[name] = _backbone_instead_of_timm(len(value.out_indices or [0]))
        elif isinstance(value, PretrainedConfig):
            changed[name] = _shrink(value, way)
        elif name == "pad_token_id":
            # Some position embeddings start behind it.
            changed[name] = 1 if isinstance(value, int) and value >= 0 else value
        elif name.endswith(("token_id", "token_index")):
            changed[name] = _special_id(value, used_ids)
        elif isinstance(value, (int, float)):
            new = _number(name, value, way)
            # Where stages have depths, these say how many there are.
            if new != value and value != len(getattr(config, "depths", ())):
                changed[name] = new
        elif isinstance(value, (list, tuple)) and value:
            new = _sequence(name, list(value), config, way)
            if new != list(value):
                changed[name] = type(value)(new)
    changed.update({"use_cache": False} if hasattr(config, "use_cache") else {})
    if hasattr(config, "apply_spec_augment"):
        changed["apply_spec_augment"] = False
    heads = getattr(config, "num_attention_heads", None)
    if heads is not None and heads == getattr(config, "num_key_value_heads", None):
        changed["num_key_value_heads"] = changed.get("num_attention_heads", heads)
    if way == "named":
        changed.update(OVERRIDES.get(config.model_type, {}))
    return type(config)(**changed)


def _backbone_instead_of_timm(features: int) -> PretrainedConfig:
    """Return a tiny ResNet with `features` feature maps; timm is no dependency of the tests."""
    return CONFIG_MAPPING["resnet"](
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage1", "stage2", "stage3", "stage4"][-features:],
    )


def _special_id(value: Any, used: dict[Number, int]) -> Any:
    """Return an id inside the tiny vocabulary; different ids stay different."""
    if isinstance(value, list):
        return [_special_id(item, used) for item in value]
    if not isinstance(value, int) or value < 0:
        return value
    return used.setdefault(value, FIRST_SPECIAL_ID + len(used))


def _number(name: str, value: Number, way: str) -> Any:
    for pattern, change in WAYS[way]:
        if re.search(pattern, name):
            return change(value)
    return value


def _sequence(name: str, value: list[Any], config: PretrainedConfig, way: str) -> list[Any]:
    """Return a list of numbers made small, or one entry for each of the layers that are left."""
    for depth in ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers"):
        layers = getattr(config, depth, None)
        if isinstance(layers, int) and len(value) == layers > 2 and not hasattr(config, "depths"):
            return _first_of_each(value, _number(depth, layers, way))
    if way == "shallow" and name != "depths":
        return value
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return value
    if name == "depths":
        return [1] * len(value)
    if re.search("heads", name):
        return [item // value[0] for item in value]
    if re.search("image_size|img_size", name):
        return [32] * len(value) if way == "named" else value
    if min(value) >= 32:
        unit = 32 if len(set(value)) == 1 else 8
        return [max(item * unit // min(value), 1) for item in value]
    return value


def _first_of_each(value: list[Any], count: int) -> list[Any]:
    """Return `count` entries with as many different ones among them as possible."""
    different: list[Any] = []
    for item in value:
        if item not in different:
            different.append(item)
    return (different + value)[:count]
