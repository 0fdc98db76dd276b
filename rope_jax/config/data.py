"""Schema of the corpus: where documents come from and how they are split."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from rope_jax.config.tasks import AnyMixedTask
from rope_jax.config.types import Fraction, Frozen, ListOf, PositiveInt
from rope_jax.errors import UserError
from rope_jax.rope.settings import single_error


class _Data(Frozen):
    """Keys that every source has."""

    validation_fraction: Fraction = Field(0.05, description="share for validation without a split")
    test_fraction: Fraction = Field(0.1, description="share for sweeps alone, without a split")
    max_documents: PositiveInt | None = Field(None, description="per split, the first; null: all")
    mix: ListOf[AnyMixedTask] = Field(
        default_factory=tuple,
        description="tasks in place of some training windows, as {task: passkey, share: 0.02}",
    )
    split_special_tokens: bool = Field(
        True, description="texts such as <|im_start|>: true: like all text; false: control tokens"
    )
    eos: str | None = Field(None, min_length=1, description="token after a document; null: none")
    cache_dir: str | None = Field(None, description="tokens' folder; null: the user's cache")

    @property
    def has_special_tokens(self) -> bool:
        """Whether documents may hold control tokens, besides those that start them."""
        return not self.split_special_tokens or self.eos is not None

    @model_validator(mode="after")
    def _shares_are_of_one_whole(self) -> "_Data":
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError("validation_fraction and test_fraction leave nothing to train on")
        if (total := sum(task.share for task in self.mix)) > 1 + 1e-9:
            raise ValueError(f"mix: the shares add up to {total:g}; at most 1 is possible")
        return self


Files = Annotated[
    Annotated[list[str], Field(min_length=1)]
    | dict[Literal["train", "validation", "test"], list[str]],
    single_error("should be a list of paths, or one for each of train, validation and test"),
]


class _FileData(_Data):
    """Keys that every source of local files has."""

    files: Files = Field(description="paths or globs: one list, or one for each split")
    split_bytes: Annotated[int, Field(ge=1024)] | None = Field(
        None, description="longest part of a document, which is cut; null: not cut"
    )


class StdlibData(_Data):
    """Source files of Python's standard library: real text on every machine, without network."""

    type: Literal["stdlib"] = "stdlib"
    test_fraction: Fraction = Field(0.25, description="share of packages for sweeps alone")
    validation_fraction: Fraction = Field(0.1, description="share of packages for validation")


class TextData(_FileData):
    """Your own text files, one document per file; may be compressed: .gz, .bz2, .xz or .zst."""

    type: Literal["text"] = "text"


class JsonLinesData(_FileData):
    """JSON, one document per line or per element of a list; may be compressed, as text."""

    type: Literal["jsonl"] = "jsonl"
    column: str = Field("text", description="field that contains the text, or messages")


class ParquetData(_FileData):
    """Parquet files, one document per row."""

    type: Literal["parquet"] = "parquet"
    column: str = Field("text", description="column that contains the text, or messages")


class HubData(_Data):
    """A data set on the Hugging Face hub; code in a data set is never run."""

    type: Literal["hub"] = "hub"
    id: str = Field(description="id of the data set, for instance emozilla/pg19")
    subset: str | None = Field(None, description="configuration of the data set, if it has several")
    revision: str | None = Field(None, description="branch, tag or commit; null: the newest")
    column: str = Field("text", description="column that contains the text, or messages")
    streaming: bool = Field(False, description="read only what is used; false: download all first")


def check_has_texts(data: _Data | None, model: object) -> None:
    """UserError unless texts are given, for a model that was imported without any."""
    if data is None:
        raise UserError(
            f"data: {model} has no texts of its own; name some, such as "
            "'data.files=[books/*.txt]' (or data.type=stdlib: Python's standard library)"
        )


def check_read_whole(data: _Data | None) -> None:
    """ValueError if texts of a sweep's own have keys of training: nothing is trained on them."""
    if data is None:
        return
    if data.mix:
        raise ValueError("data.mix: nothing is trained here; ask with a sweep's tasks instead")
    if isinstance(data, StdlibData):
        return
    for name in ("validation_fraction", "test_fraction"):
        if getattr(data, name) != type(data).model_fields[name].default:
            raise ValueError(f"data.{name}: all of these documents are read; remove it")


def _with_type(data: object) -> object:
    """Files without a type are of text; otherwise the source is Python's standard library."""
    if not isinstance(data, dict):
        return data
    return {"type": "text" if "files" in data else "stdlib"} | data


DataConfig = Annotated[
    Annotated[
        StdlibData | TextData | JsonLinesData | ParquetData | HubData, Field(discriminator="type")
    ],
    BeforeValidator(_with_type),
]
