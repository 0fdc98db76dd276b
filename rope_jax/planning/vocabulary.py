"""How many tokens a run's tokenizer has, without training one."""

from pathlib import Path

from rope_jax.config.tokenizer import BPETokenizerConfig
from rope_jax.config.training import Config
from rope_jax.data.tokenizers import open_tokenizer
from rope_jax.model.decoder import vocabulary_size
from rope_jax.runs.directory import RunDirectory


def planned_vocabulary(config: Config, run: Path | None = None) -> int:
    """Return the size of the model's vocabulary.

    run: the directory of a run, which has its own copy of the tokenizer; None: it is not trained
    yet. Then a tokenizer of type `bpe` is taken to have as many tokens as it is asked for, the most
    that it may get.

    UserError: the tokenizer cannot be read, or the vocabulary that the model states is too small.
    """
    if run is not None:
        size = RunDirectory(run).open_tokenizer(config).vocab_size
    elif isinstance(config.tokenizer, BPETokenizerConfig):
        size = config.tokenizer.vocab_size
    else:
        size = open_tokenizer(
            config.tokenizer, config.data, known=config.model.vocab_size
        ).vocab_size
    return vocabulary_size(config.model, size)
