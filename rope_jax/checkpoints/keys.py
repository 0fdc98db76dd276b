"""Keys of a config.json that nothing here reads: which of them may change the logits?

transformers writes names, ids, settings of generation and of training into config.json, and other
tools add their own. Nothing in a forward pass reads them. What does change a family's forward pass
is in its table (`families.py`); a key that is in neither list is judged by its name and its value.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rope_jax.rope.messages import show_value

_IGNORED = frozenset(
    {
        # names and bookkeeping
        *("architectures", "dtype", "id2label", "label2id", "license", "model_type"),
        *("_name_or_path", "_model_name_or_path", "torch_dtype", "transformers_version"),
        *("transformers.js_config", "unsloth_fixed", "unsloth_version", "finetuning_task"),
        *("base_model_name_or_path", "language", "tokenizer_class", "vocab_file", "_commit_hash"),
        # how a program runs the model
        *("chunk_size_feed_forward", "is_decoder", "is_encoder_decoder", "pretraining_tp"),
        *("output_attentions", "output_hidden_states", "return_dict", "torchscript", "use_cache"),
        *("use_bfloat16", "tf_legacy_loss", "is_llama_config", "tie_encoder_decoder"),
        *("use_liger_kernel", "use_memory_efficient_attention", "num_key_value_groups"),
        *("num_logits_to_keep", "logits_to_keep"),
        # lengths that other keys state for the forward pass
        *("max_position_embeddings", "model_max_length", "max_sequence_length", "seq_length"),
        *("n_positions", "block_size"),
        # generation
        *("max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping"),
        *("num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p"),
        *("typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("output_scores", "return_dict_in_generate", "remove_invalid_values", "prefix"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
        *("task_specific_params", "generation_config", "chat_template", "quantization_config"),
        # training
        *("problem_type", "num_labels", "label_smoothing", "use_gradient_checkpointing"),
    }
)
# The same by pattern: ids of tokens, dropout, initialization, losses, caches, ways to compute.
_IGNORED_PATTERN = re.compile(
    r".*_token_(ids?|index)|(bos|eos|pad|unk|sep|cls|mask)_token|.*dropout.*|.*_pdrop|drop_path_rate"
    r"|.*_drop_rate|init(ializer)?_(range|std|factor|method|scale|gain|cutoff_factor)"
    r"|.*aux_loss(_coef|_weight)?|z_loss(_coef|_weight)?|(kv_)?cache_(implementation|dtype)"
    r"|(use_)?flash_att(n|ention)(_[23])?|_?attn_implementation(_\w+)?|.*gradient_checkpointing.*"
)
# Words that occur in keys which change a forward pass.
_CHANGES = re.compile(
    r"rope|rotary|yarn|ntk|alibi|position|theta|freq|attn|attention|mask|causal|bidirectional|"
    r"window|sliding|chunk|sink|head|norm|rms|(^|_)ln(_|$)|eps(_|ilon|$)|scal(e|ing|ar)|multiplier|"
    r"(^|_)mult(_|$)|softcap|(^|_)cap(_|$)|clip|softmax|logit|temperature|bias|(^|_)act(_|iv|$)|"
    r"elu(_|$)|silu|glu(_|$)|mlp|ffn|feed_?forward|intermediate|hidden|(^|_)dim|width|depth|"
    r"residual|expert|moe|router|(^|_)gat(e|ed|ing)(_|$)|spars|dense|layer|block|conv|kernel|ssm|"
    r"mamba|recurren|linear|lora|adapter|quant|(^|_)bits|embed|(^|_)t(ie|ied|ying)(_|$)|share|prun|"
    r"lambda|alpha|beta|gamma|(^|_)tau(_|$)|mup|offset|loop|parallel|differential|subln|rezero|nope|"
    r"(^|_)(pos|pe|q|k|v|o|qk|kv|qkv|query|key|value)(_|$)",
    re.IGNORECASE,
)
# Keys that turn off what every family here has.
_ON = re.compile(
    r"(is_|use_)?causal(_mask)?|use_mask|(use_)?(rope|rotary)(_(pos_)?emb(edding)?s?)?|"
    r"(norm_)?elementwise_affine|scale_attn_weights"
)


def unread_keys(hf: Mapping[str, Any], known: Collection[str], pairs: int) -> list[str]:
    """Return the keys that nothing reads and that a reader of the config might ask about.

    known: the keys that the family's table, or the code about positions, reads or ignores.
    pairs: rotary pairs of a head. A list of that length, or of one element for each layer, is
        taken for a setting of the model, whatever it is called.

    ValueError: a key's name or value says that it changes the forward pass.
    """
    layers = hf.get("num_hidden_layers")
    unread = []
    for key, value in hf.items():
        if key == "auto_map" and value:
            unread.append("auto_map (code that comes with a model is never run)")
            continue
        if key in known or key in _IGNORED or _IGNORED_PATTERN.fullmatch(key):
            continue
        is_off = value is None or value in (False, 0, "", [], {})
        if is_off if not _ON.fullmatch(key) else value in (None, True):
            continue
        is_named = any(map(_CHANGES.search, _keys(key, value)))
        is_list = isinstance(value, list) and len(value) in (layers, pairs)
        if is_off or is_named or (is_list and all(isinstance(x, int | float) for x in value)):
            raise ValueError(
                f"{key}: is {show_value(value)}, which nothing here reads for {hf['model_type']}, "
                "and it may change the logits; if it does not, import the model with "
                f"scripts/import_hf.py MODEL 'ignored_keys=[{key}]'"
            )
        unread.append(key)
    return unread


def _keys(key: str, value: Any) -> Iterator[str]:
    """Yield a key, and those of all mappings in its value."""
    yield key
    for inside, x in value.items() if isinstance(value, Mapping) else ():
        yield from _keys(str(inside), x)
