"""What can be configured of the corpus: where documents come from and how they are split."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from rope_jax.config.types import Fraction, Frozen, PathText


class _Data(Frozen):
    validation_fraction: Fraction = Field(
        0.05, description="share of documents held out to validate on, unless the source has some"
    )
    test_fraction: Fraction = Field(
        0.1, description="share of documents that eval_ppl.py alone reads, unless given"
    )
    cache_dir: PathText | None = Field(
        None, description="where token files are kept; null: the user's cache directory"
    )

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.validation_fraction + self.test_fraction >= 1:
            raise ValueError("validation_fraction and test_fraction leave nothing to train on")
        return self


Files = Annotated[
    Annotated[list[PathText], Field(min_length=1), Tag("list")]
    | Annotated[dict[Literal["train", "validation", "test"], list[PathText]], Tag("mapping")],
    Discriminator(lambda files: "mapping" if isinstance(files, dict) else "list"),
]


class _FileData(_Data):
    files: Files = Field(description="paths or globs; or lists of them for train, validation, test")


class StdlibData(_Data):
    """Source files of Python's standard library: real text on every machine, no network."""

    type: Literal["stdlib"] = "stdlib"
    test_fraction: Fraction = Field(0.25, description="share of packages that eval_ppl.py reads")
    validation_fraction: Fraction = Field(0.1, description="share of packages to validate on")


class TextData(_FileData):
    """Your own text files, one document a file."""

    type: Literal["text"] = "text"


class JsonLinesData(_FileData):
    """JSON lines, one document a line."""

    type: Literal["jsonl"] = "jsonl"
    column: str = Field("text", description="the field that holds the text")


class ParquetData(_FileData):
    """Parquet files, one document a row."""

    type: Literal["parquet"] = "parquet"
    column: str = Field("text", description="the column that holds the text")


class HubData(_Data):
    """A data set on the Hugging Face hub; code that comes with a data set is never run."""

    type: Literal["hub"] = "hub"
    id: str = Field(description="the data set's id, for instance emozilla/pg19")
    subset: str | None = Field(None, description="the data set's configuration, where it has some")
    revision: str | None = Field(None, description="branch, tag or commit; null: the newest")
    column: str = Field("text", description="the column that holds the text")


def _stdlib_unless_named(data: Any) -> Any:
    return {"type": "stdlib"} | data if isinstance(data, dict) else data


DataConfig = Annotated[
    Annotated[
        StdlibData | TextData | JsonLinesData | ParquetData | HubData, Field(discriminator="type")
    ],
    BeforeValidator(_stdlib_unless_named),
]
