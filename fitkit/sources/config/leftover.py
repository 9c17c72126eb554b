"""Keys that bear on what a layer keeps and that a family's function did not read: a reason to refuse, never to ignore."""

from __future__ import annotations

import re

from fitkit.errors import UnsupportedModel, short
from fitkit.sources.config.view import Config

# Words in a key that speak of caches, states or kinds of attention.
_STATE = (
    r"(^|_)windows?(_|$)|sliding|(^|_)swa_|chunk_size$|^linear_|(^|_)(mamba|ssm|rwkv|wkv|recurrent)(_|$)|^conv_|_conv_|lightning"
    r"|_lora_rank$|^kv_|_kv_shared|shared_kv|^index_|^indexer|compress(_|ed|ion|$)|sparse_attention|(^|_)cla(_|$)|^attn_type|attention_types?$|att_impl"
    r"|layer_types?$|layers?_block_types?$|^block_types?$|^hybrid_|local_layer|local_att|global_att|global_head|^num_global_"
    r"|cross_attention_(layers|every)|^state_size$|engram|retention|^ttt_|^memory_"
)
# Of those, what changes no size: initial values, factors, kernels, how a prompt is cut, switches of the training code.
_HARMLESS = (
    r"(^|_)(init|initializer|dt|a_log|multipliers?|act|activation|theta|base_freq|kernels|bias|norm|scale|eigval|bound|xavier|dropout|interleave"
    r"|alpha|factor|inner_layernorms|use_mlp|freq|offset|iteration|tail|beta|eps|topk|token|tokens|rope|floor|norm_before_gate)(_|$)"
    r"|^(mamba_|prefill_|ssm_)?chunk_size$|^chunk_size_feed_forward$|^context_window_size$|^max_window_layers$|^conv_dim(_out)?$"
    r"|^use_sliding_window$|^(compression|quantization)_config$|^use_unified_vision_chunk$"
)
_FULL = {"full_attention", "attention", "global_attention", "full"}
_TEXT = ("text_config", "language_config", "llm_config")


def refuse_leftovers(config: Config, family: str) -> None:
    """Raise UnsupportedModel where a key about caches, states or kinds of attention was not read.

    `family` is named in the message. A list of layer types that says nothing but full attention, and a single chunk
    or kernel size, are no reason.
    """
    for key, value in config.unread().items():
        if not re.search(_STATE, key) or re.search(_HARMLESS, key):
            continue
        if isinstance(value, list) and all(isinstance(word, str) and word in _FULL for word in value):
            continue
        raise UnsupportedModel(
            f"{config.place}: {key} is {short(value)}, which says something about caches or states that {short(family)} is not known to have; "
            f"its function in fitkit/sources/config has to read that key, or remove it from the file if it means nothing."
        )
    for part in config.parts(*_TEXT):
        refuse_leftovers(part, part.text("model_type", default=family))
